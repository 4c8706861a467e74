#!/bin/bash
# GPT-3 175B on 1,024 GPUs. Arguments as in examples/gpt3/train_gpt3_175b_distributed.sh of NVIDIA/Megatron-LM.

export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${SLURM_NNODES:-"128"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 # where to
DATA_PATH=${2:-"data/pile_text_document"}
STAMP=$(date +%Y-%m-%d)

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr localhost
)
MODEL_ARGS=(
    --num-layers 96 --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # can use flash, fused, unfused or local
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --train-iters 500000
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    # --lr-decay-iters 430000 \
    --min-lr 6.0e-6
)
PARALLEL_ARGS="--tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 3 \
    --sequence-parallel --recompute-activations"
DATA_ARGS=(
    --data-path $DATA_PATH
    --vocab-file gpt2-vocab.json
    --merge-file gpt2-merges.txt
    --split '949,50,1'
)
LOGGING_ARGS=(--log-interval 100 --save "$CHECKPOINT_PATH/$STAMP" --eval-iters 10)
if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING_ARGS+=(--wandb-project ${WANDB_PROJECT:-"gpt3"})
fi

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    $PARALLEL_ARGS ${DATA_ARGS[@]} "${LOGGING_ARGS[@]}" 2>&1 | tee run.log
