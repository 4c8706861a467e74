"""Model and layout sizes in a configuration: short and long name, and the largest accepted value."""

from __future__ import annotations

from operator import index

from predictor.core.base.errors import ConfigError

BOTH_NAMES = {
    "pipeline_parallel_size": "pp",
    "tensor_parallel_size": "mp",
    "data_parallel_size": "dp",
    "micro_batch_size": "b",
    "num_attention_heads": "h",
    "sequence_length": "l",
    "hidden_size": "dim",
    "num_micro_batches": "steps_per_update",
    "num_layers": "encoders",
    "gradient_bucket_elements": "comm_bucket",
    "forward_all_reduces": "fwd_syncs",
    "backward_all_reduces": "bwd_syncs",
    "gpu": "gpu_name",
    "system": "operator_data_folder",
}
# A slipped key adds digits, and every formula would still return a number. Each limit is some ten times beyond the
# largest run in print (about 10⁵ GPUs, 10³ layers, 10⁷ tokens of context), and keeps a replay from taking minutes.
LARGEST = {
    "pipeline_parallel_size": 1024,
    "tensor_parallel_size": 1024,
    "context_parallel_size": 1024,
    "expert_parallel_size": 1024,
    "expert_tensor_parallel_size": 1024,
    "virtual_pipeline_parallel_size": 1024,
    "data_parallel_size": 1_000_000,
    "gpus_per_node": 1024,
    "micro_batch_size": 100_000,
    "num_micro_batches": 10_000,
    "global_batch_size": 1_000_000_000,
    "num_layers": 10_000,
    "offload_activation_layers": 10_000,
    "recompute_group_layers": 10_000,
    "hidden_size": 1_000_000,
    "ffn_hidden_size": 10_000_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
    "head_dim": 100_000,
    "sliding_window": 100_000_000,
    "num_position_embeddings": 100_000_000,
    "attention_chunk": 100_000_000,
    "document_tokens": 100_000_000,
    "mean_sequence_length": 100_000_000,
    "q_lora_rank": 1_000_000,
    "kv_lora_rank": 1_000_000,
    "qk_nope_head_dim": 100_000,
    "qk_rope_head_dim": 100_000,
    "v_head_dim": 100_000,
    "num_heads": 100_000,
    "num_groups": 100_000,
    "num_key_heads": 100_000,
    "num_value_heads": 100_000,
    "key_head_dim": 100_000,
    "value_head_dim": 100_000,
    "state_size": 100_000,
    "conv_kernel": 1000,
    "chunk_size": 1_000_000,
    "top_k": 100_000_000,
    "num_mtp_layers": 100,
    "token_types": 100_000,
    "rank": 100_000,
    "patch_size": 100_000,
    "image_size": 1_000_000,
    "tokens_per_image": 10_000_000,
    "images_per_sample": 100_000,
    "num_experts": 100_000,
    "experts_per_token": 100_000,
    "expert_ffn_hidden_size": 10_000_000,
    "shared_expert_ffn_hidden_size": 10_000_000,
    "sequence_length": 100_000_000,
    "vocab_size": 100_000_000,
    "other_parameters": 10**14,
    "prefetch_units": 10_000,
    "gpus_per_domain": 1_000_000,
    "gradient_bucket_elements": 10**13,
    "forward_all_reduces": 1000,
    "backward_all_reduces": 1000,
}
LARGEST_SLOTS = 1_000_000
LARGEST_RUN_GPUS = 10_000_000


def both_names(name: str) -> str:
    """Return a field's name, with its short form behind it where it has one."""
    return f"{name} ({BOTH_NAMES[name]})" if name in BOTH_NAMES else name


def whole(name: str, value: object, smallest: int = 1, largest: int | None = None) -> int:
    """Return a size given in Python as an int.

    Raises:
        ConfigError: not a whole number (a bool is none), or outside what is allowed.
    """
    limit = LARGEST.get(name, largest)
    try:
        number = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise ConfigError(f"{both_names(name)} is {value!r}; expected a whole number")
    if number < smallest:
        raise ConfigError(f"{both_names(name)} is {number}; it must be at least {smallest}")
    if limit is not None and number > limit:
        raise ConfigError(f"{both_names(name)} is {number}; more than {limit:,} is taken for a slip")
    return number


def must_divide(divisor_name: str, divisor: int, name: str, value: int) -> None:
    """Check that one size divides another.

    Raises:
        ConfigError: it does not; the message offers the closest that do.
    """
    if value % divisor:
        legal = [d for d in range(1, min(value, 4096) + 1) if value % d == 0]
        close = sorted(sorted(legal, key=lambda d: abs(d - divisor))[:6])
        offer = f"{', '.join(map(str, close[:-1]))} or {close[-1]}" if len(close) > 1 else str(close[0])
        raise ConfigError(
            f"{both_names(divisor_name)} is {divisor}; it must divide {both_names(name)}, {value}. Try {offer}."
        )
