deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo \
    --pretrain meta-llama/Meta-Llama-3-8B --max_len 4096 --packing_samples \
    --train_batch_size 64 --micro_train_batch_size 1 --zero_stage 3 --bf16 --gradient_checkpointing
