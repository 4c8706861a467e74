#!/bin/bash
# Continued pre-training on a node of eight GPUs.
BATCH=2
export OMP_NUM_THREADS=1
torchrun --nproc_per_node 8 run_clm.py \
  --model_name_or_path meta-llama/Llama-3.2-1B \
  --train_file data/notes.txt \
  --block_size 4096 \
  --per_device_train_batch_size $BATCH \
  --gradient_accumulation_steps 4 \
  --torch_dtype bfloat16 --bf16 True \
  --gradient_checkpointing True \
  --max_steps 500 \
  --output_dir out
