python scripts/performance/run_script.py --model_family_name llama --model_recipe_name llama3_70b --gpu h100 \
    --num_gpus 64 --gpus_per_node 8 --compute_dtype fp8_cs --seq_length 8192 -mb 1 -gb 128 -tp 4 -pp 4 -vp 5
