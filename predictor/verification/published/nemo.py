"""Megatron-Core as NeMo, Megatron-Bridge, MLPerf's submissions, SimuMax and Megatron-LM's examples drive it.

Sources. NeMo, scripts/performance/helpers.py and nemo/lightning/pytorch/callbacks/megatron_comm_overlap.py:
tensor-parallel traffic is overlapped where tensor parallelism is used, sequence parallelism with it, gradients are
reduced and parameters gathered beside computing. NeMo, pull request 9188: Transformer Engine prefers cuDNN's attention
from Hopper on, FlashAttention 2 before. Megatron-LM, megatron/core/distributed: with a distributed optimizer
gradients are reduce-scattered. Columns say the rest. SimuMax's launcher sets none of the overlaps, and reduces in fp32.
"""

from __future__ import annotations

from typing import Any

from predictor.verification.published.architectures import model_of
from predictor.verification.published.patterns import layers_of_layout
from predictor.verification.published.row import Row, UnexpressedError, batch, layout
from predictor.verification.published.systems import machine
from predictor.workloads.frameworks import MEGATRON_LM
from predictor.workloads.run import RecomputeModule

RECIPES = (
    ("nvfp4", "nvfp4"),
    ("mxfp8", "mxfp8"),
    ("finer quantization granularity", "mxfp8"),
    ("block", "fp8_blockwise"),
    ("current", "fp8_tensorwise"),
    ("tensorwise", "fp8_tensorwise"),
    ("fp8", "fp8_delayed"),  # NeMo's and Megatron-LM's own default
)


def recipe(row: Row) -> str | None:
    """Return the low precision of a row's linear layers; None where all is in 16 bits.

    Raises:
        UnexpressedError: the row does not say its precision.
    """
    precision = row.text("precision").lower()
    if not precision:
        raise UnexpressedError("precision is not stated")
    if precision.split()[0] in ("bf16", "fp16", "float16", "bfloat16"):
        return None
    text = f"{row.text('fp8_recipe')} {precision}".lower()
    return next((name for word, name in RECIPES if word in text), None)


def _check(row: Row) -> None:
    if row.has("framework", "JAX", "MaxText", "Paxml"):
        raise UnexpressedError("XLA schedules the step (JAX), which is not modelled")
    if row.text("cpu_offload_layers"):
        raise UnexpressedError("activations are offloaded to the host, which is not modelled")


def _recompute(row: Row) -> dict[str, Any]:
    text = row.text("recompute").lower()
    if text.startswith("full"):
        layers = [word for word in text.replace(",", " ").split() if word.isdigit()]
        return {"recompute": "full", **({"recompute_num_layers": int(layers[0])} if "block" in text else {})}
    if text.startswith("selective"):
        named = text.partition(":")[2]
        modules = [module.value for module in RecomputeModule if module in named.replace("+", " ").split()]
        return {"recompute": "selective", "recompute_modules": modules}
    return {"recompute": "none"}


def _lora(row: Row) -> dict[str, Any]:
    """Return the adapters of a row; empty where all weights train.

    MLPerf's target_modules are "attention", of rank 16; Megatron-Bridge's and NeMo's performance recipes have adapters
    on linear_qkv alone, of rank 16. Source: mlcommons/training, llama2_70b_lora; Megatron-Bridge,
    scripts/performance/configs/llama/llama3_llm_finetune.py.
    """
    if not row.has("task", "lora"):
        return {}
    is_mlperf = row.text("group").startswith("mlperf")
    return {"lora": {"rank": 16, "targets": ["qkv", "attention_output"] if is_mlperf else ["qkv"]}}


def _sequence_parallel(row: Row) -> bool:
    return row.whole("tp", 1) > 1 and not row.text("seq_parallel").lower().startswith("no")


def _training(row: Row, framework: str) -> dict[str, Any]:
    low = recipe(row)
    graphs = row.text("cuda_graphs").lower()
    switches = _recompute(row) | _lora(row)
    training = batch(row, precision="bf16", framework=framework, fused_gradient_accumulation=True, **switches)
    if low is not None:
        training["gemm_recipe"] = low
    if graphs and not graphs.startswith(("none", "off", "not stated")):
        training["cuda_graphs"] = True
    return training


def _overlaps_linear_traffic(row: Row, default: bool) -> bool:
    stated = row.text("tp_comm_overlap").lower()
    wanted = default if not stated else stated in ("1", "true", "yes", "on")
    return wanted and row.whole("tp", 1) > 1


def _gather_precision(row: Row, low: str | None) -> dict[str, Any]:
    """Return the precision of gathered weights.

    NeMo's and Megatron-Bridge's recipes gather in fp8 with delayed and current scaling and with MXFP8 (fp8_param_gather
    of mixed_precision.py), but neither with blocks of 128 nor in NVFP4. MLPerf's submissions say it in their notes;
    those of LoRA store weights in fp8 wherever they multiply in it (fp8_params of their configuration).
    """
    is_mlperf = row.text("group").startswith("mlperf")
    if is_mlperf and row.has("task", "lora") and (low or "").startswith("fp8"):
        return {"gather_precision": "fp8"}
    if is_mlperf and low is not None:
        return {"gather_precision": "fp8"} if row.has("notes", "FP8_PARAM_GATHER=True") else {}
    return {"gather_precision": "fp8"} if low in ("fp8_delayed", "fp8_tensorwise", "mxfp8") else {}


def _chunks(row: Row) -> dict[str, Any]:
    """Return the chunks of rows that print none for a model that NeMo always interleaves.

    Its runs of Nemotron-4 340B on H100 are named "tp8_pp8_cp1_vp12".
    """
    if row.has("notes", "VP given as NA") and row.has("model", "Nemotron4-340B"):
        return {"virtual_pipeline_parallel_size": row.whole("layers") // row.whole("pp")}
    return {}


def _layers_per_stage(row: Row) -> dict[str, Any]:
    """Return a split that counts the embedding and the loss as layers, where only that fits.

    Llama 3.1's 126 layers: NeMo's and MLPerf's recipes set account_for_embedding_in_pipeline_split and
    account_for_loss_in_pipeline_split.
    """
    given = layers_of_layout(row)
    if given is not None:
        return {"layers_per_stage": given}
    layers, stages = row.whole("layers"), row.whole("pp", 1)
    slots = stages * row.whole("vpp", 1)
    if layers % slots == 0 or (layers + 2) % slots:
        return {}
    share = (layers + 2) // stages
    return {"layers_per_stage": [share - 1, *[share] * (stages - 2), share - 1]}


def _parallelism(row: Row, overlaps: bool, **switches: Any) -> dict[str, Any]:
    sharded = row.has("zero_fsdp", "Megatron-FSDP", "FSDP=")
    given: dict[str, Any] = {
        "zero_stage": 3 if sharded else 1,
        "gradient_reduction": "reduce_scatter",
        "overlap_gradient_reduction": overlaps,
        "overlap_parameter_gather": overlaps,
        "sequence_parallel": _sequence_parallel(row),
        **_layers_per_stage(row),
        **_chunks(row),
        "overlap_tensor_parallel": row.whole("tp", 1) > 1,
        "blocking_transfers": False,
        "gradient_bucket_elements": MEGATRON_LM.bucket_elements(row.whole("dp")),
        **switches,
    }
    return layout(row, **given)


def megatron_core(row: Row) -> dict[str, Any]:
    """Return the configuration of a run of NeMo, Megatron-Bridge or MLPerf."""
    _check(row)
    framework = "megatron-bridge" if row.has("framework", "Megatron-Bridge") else "nemo"
    low = recipe(row)
    return {
        **machine(row),
        "model": model_of(row),
        "parallelism": _parallelism(
            row,
            overlaps=True,
            overlap_linear_traffic=_overlaps_linear_traffic(row, default=not row.text("moe_experts")),
            **_gather_precision(row, low),
        ),
        "training": _training(row, framework),
    }


def simumax(row: Row) -> dict[str, Any]:
    """Return the configuration of a run of SimuMax's launcher for Megatron-LM.

    Its run_pretrain_llama3.sh sets --no-bias-dropout-fusion and, of these rows, --cross-entropy-loss-fusion.
    """
    _check(row)
    return {
        **machine(row),
        "model": model_of(row, fused_side_kernels=False),
        "parallelism": _parallelism(row, overlaps=False, fp32_gradients=True),
        "training": _training(row, "megatron-lm"),
    }


def vocabulary_parallel(row: Row) -> dict[str, Any]:
    """Return the configuration of a run of the fork for vocabulary parallelism, where it ran as Megatron-LM does.

    Megatron-LM's own defaults: dropout 0.1, and a loss of single operations.
    """
    schedule = row.text("schedule").lower()
    if "vocabulary parallelism" in schedule or "interlaced" in schedule:
        raise UnexpressedError("the vocabulary is split over pipeline stages, which is not modelled")
    stages, layers = row.whole("pp"), row.whole("layers")
    split: Any = "uniform"
    if "redistribution" in schedule:
        last = int(row.text("pp_layout").rpartition("=")[2])
        share, rest = divmod(layers - last, stages - 1)
        if not last:
            raise UnexpressedError("a pipeline stage holds no layer, only the vocabulary")
        split = [*(share + (stage < rest) for stage in range(stages - 1)), last]
    return {
        **machine(row),
        "model": model_of(row, attention_dropout=0.1, hidden_dropout=0.1, loss="vocabulary_parallel"),
        "parallelism": _parallelism(row, overlaps=False, layers_per_stage=split),
        "training": {**_training(row, "megatron-lm"), "precision": "fp16"},
    }
