#!/bin/bash
# Llama 3 8B in fp8 on 8 GPUs. Arguments as in examples/llama/train_llama3_8b_h100_fp8.sh of NVIDIA/Megatron-LM.
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0
    --attention-dropout 0.0 --hidden-dropout 0.0
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
    --attention-backend fused --apply-layernorm-1p
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 128
    --bf16 --grad-reduce-in-bf16
    --cross-entropy-loss-fusion --calculate-per-token-loss
    --manual-gc --empty-unused-memory-level 1
)
DTYPE_ARGS=(
    --fp8-format hybrid
    --fp8-amax-history-len 1024
    --fp8-amax-compute-algo max
    --fp8-param-gather
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 1 --context-parallel-size 1 --pipeline-model-parallel-size 1 --sequence-parallel
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
DATA_ARGS=(--mock-data --tokenizer-type NullTokenizer --vocab-size 128255)

torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${DTYPE_ARGS[@]} ${PARALLEL_ARGS[@]} ${DATA_ARGS[@]}
