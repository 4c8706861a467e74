python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
    data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=3072 \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
    trainer.n_gpus_per_node=8 trainer.nnodes=2
