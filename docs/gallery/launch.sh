#!/bin/bash
# Llama 3 70B on 64 nodes of 8 H100, as a Slurm job starts Megatron-LM; the tokenizer decides the vocabulary.
#SBATCH --nodes=64
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
LAUNCHER="torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:29500"
ARGS=(
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672
    --num-attention-heads 64 --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 500000
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0 --bf16 --use-flash-attn --transformer-impl transformer_engine
    --micro-batch-size 1 --global-batch-size 1024 --train-samples 1953125
    --lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine --weight-decay 0.1 --clip-grad 1.0
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER_MODEL" --data-path "$DATA_PATH"
    --save "$CHECKPOINTS" --load "$CHECKPOINTS" --save-interval 500 --log-interval 10
)
srun $LAUNCHER pretrain_gpt.py "${ARGS[@]}"
