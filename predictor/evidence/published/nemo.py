"""Megatron-Core as NeMo, Megatron-Bridge, MLPerf's submissions, SimuMax and Megatron-LM's examples drive it.

Sources. NeMo, scripts/performance/helpers.py and nemo/lightning/pytorch/callbacks/megatron_comm_overlap.py:
tensor-parallel traffic is overlapped where tensor parallelism is used, sequence parallelism with it, gradients are
reduced and parameters gathered beside computing. NeMo, pull request 9188: Transformer Engine prefers cuDNN's attention
from Hopper on, FlashAttention 2 before. Megatron-LM, megatron/core/distributed: with a distributed optimizer
gradients are reduce-scattered. Columns say the rest. SimuMax's launcher sets none of the overlaps, and reduces in fp32.
"""

from __future__ import annotations

import re
from typing import Any

from predictor.core.costs.work import ELEMENT_BYTES
from predictor.core.rows import FP32_BYTES
from predictor.core.workload.expert_exchange import ExpertDispatcher
from predictor.core.workload.frameworks import MEGATRON_LM
from predictor.core.workload.run_choices import GraphModule, RecomputeModule
from predictor.evidence.published.architectures import model_of
from predictor.evidence.published.patterns import layers_of_layout
from predictor.evidence.published.row import Row, UnexpressedError, batch, layout
from predictor.evidence.published.systems import machine

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
    """Return the low precision of a row's linear layers; None where all is in 16 bits or more.

    Raises:
        UnexpressedError: the row does not say its precision.
    """
    precision = row.text("precision").lower()
    if not precision:
        raise UnexpressedError("precision is not stated")
    if precision.split()[0] in ("bf16", "fp16", "float16", "bfloat16", "fp32", "float32", "tf32"):
        return None
    text = f"{row.text('fp8_recipe')} {precision}".lower()
    return next((name for word, name in RECIPES if word in text), None)


DISPATCHERS = {
    "alltoall": ExpertDispatcher.ALL_TO_ALL,
    "allgather": ExpertDispatcher.ALL_GATHER,
    "deepep": ExpertDispatcher.DEEPEP,
    "hybridep": ExpertDispatcher.HYBRIDEP,
}

# Flags of one of Megatron-LM's tests.
FLAGS = re.compile(r"flags: ([\w -]+)")
# Implementations of MLPerf's Llama 3.1 405B on NeMo 25.01 are named after their container.
FP8_PARAMETERS = "ngc25.01_nemo"
# Adapters of NeMo's launcher, with which it ran releases 24.05 and 24.07: launcher_scripts/conf/peft/llama/squad.yaml.
BY_LAUNCHER, LAUNCHER_RANK = ("NeMo-Framework-Launcher", "container 24.07"), 32
# Models whose tensor-parallel traffic it does not overlap (ub_tp_comm_overlap: False); its page of long sequences is of
# container 24.03.01. Source: NeMo-Framework-Launcher, launcher_scripts/conf/training/llama/llama2_7b.yaml, and others.
LONG_SEQUENCES, WITHOUT_OVERLAP = "performance_long_sequence", ("LLAMA2-7B", "LLAMA2-70B")
# dgxc-benchmarking's README_340b.md (release v25.03) has figures of release 24.11: NeMo 1.0 with its
# nemotron4-340b-synth.yaml, whose optim.dtype is bf16. Apex's distributed_fused_adam then keeps both moments in bf16,
# and weights of its own in bf16 only where the model's are fp8 (model.fp8_params).
# Source: NeMo, nlp/models/language_modeling/megatron_base_model.py, setup_optimization.
NEMO_1, NEMOTRON = "README_340b.md", "Nemotron4-340B"
BF16_MOMENTS, BF16_WEIGHTS = 2 * ELEMENT_BYTES, ELEMENT_BYTES
# The launcher's other models keep moments in fp32, and of fp32 weights what the model's bf16 ones leave out
# (store_param_remainders): same source.
MOMENTS_AND_REMAINDERS = 2 * FP32_BYTES + ELEMENT_BYTES


def _optimizer(row: Row, low: str | None) -> dict[str, Any]:
    """Return the bytes of optimizer state of rows whose optimizer does not keep it in fp32."""
    if row.has("source", *BY_LAUNCHER, LONG_SEQUENCES):
        return {"optimizer_state_bytes": float(MOMENTS_AND_REMAINDERS)}
    if not (row.has("source", NEMO_1) and row.has("model", NEMOTRON)):
        return {}
    return {"optimizer_state_bytes": float(BF16_MOMENTS + (BF16_WEIGHTS if low else 0))}


def _check(row: Row) -> None:
    if row.has("framework", "JAX", "MaxText", "Paxml"):
        raise UnexpressedError("XLA schedules the step (JAX), which is not modelled")
    if row.has("notes", "known cuDNN regression"):
        # NVIDIA/cudnn-frontend, pull request 322: a fused kernel took 1,363 µs instead of 156 in this container.
        raise UnexpressedError("its table says that a kernel of its container was broken (known regression)")


def _recompute(row: Row) -> dict[str, Any]:
    text = row.text("recompute").lower()
    if text.startswith("not stated") and row.has("model", "DeepSeekV3"):  # Megatron-Bridge's recipes all recompute
        raise UnexpressedError("what of DeepSeek-V3 is recomputed is not stated")
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

    MLPerf's target_modules are "attention", of rank 16, with LORA_A2A=1; Megatron-Bridge's and NeMo's performance
    recipes have adapters on linear_qkv alone, of rank 16. Source: mlcommons/training, llama2_70b_lora, and
    config_common.sh of NVIDIA's submissions; Megatron-Bridge, scripts/performance/configs/llama/llama3_llm_finetune.py.
    """
    if not row.has("task", "lora"):
        return {}
    is_mlperf = row.text("group").startswith("mlperf")
    if row.has("precision", "nvfp4"):
        raise UnexpressedError("how frozen weights are stored in nvfp4 is not stated")
    if is_mlperf:
        return {"lora": {"rank": 16, "targets": ["qkv", "attention_output"], "all_to_all": True}}
    return {"lora": {"rank": LAUNCHER_RANK if row.has("source", *BY_LAUNCHER) else 16, "targets": ["qkv"]}}


def _sequence_parallel(row: Row) -> bool:
    return row.whole("tp", 1) > 1 and not row.text("seq_parallel").lower().startswith("no")


def _graphs(row: Row) -> dict[str, Any]:
    """Return what CUDA graphs launch: everything, or modules of a layer ("transformer_engine:moe_router+attn").

    Megatron-Bridge r0.1.0 sets ``cuda_graphs: true`` for Qwen3 on GB200 in every precision
    (scripts/performance/configs/qwen3/*_llm_pretrain.yaml); their column is empty where a table has another layout.
    """
    text = row.text("cuda_graphs").lower()
    if not text and row.has("framework", "r0.1.0") and row.has("model", "Qwen3") and row.has("gpu", "GB200"):
        return {"cuda_graphs": True}
    if not text or text.startswith(("none", "off", "not stated")):
        return {}
    modules = [module.value for module in GraphModule if module in text.partition(":")[2].split("+")]
    return {"cuda_graphs": modules or True}


def _fuses_experts(row: Row, low: str | None) -> bool:
    """Return whether experts run as Transformer Engine's fused grouped MLP.

    Megatron-Bridge's recipes set it (use_transformer_engine_op_fuser) in MXFP8 with graphs of full iterations; release
    notes of v0.5.1: "CuTeDSL fused grouped GEMM, and full iteration CUDA graphs".
    """
    return bool(row.text("moe_experts")) and low == "mxfp8" and row.has("cuda_graphs", "full_iteration")


def _exchange(row: Row) -> dict[str, Any]:
    """Return how tokens travel to their experts, and how experts are split where only that fits and no column says it.

    Experts on more ranks than see other tokens are on some of those that split all else: recipes with such a layout
    leave an expert whole (expert_tensor_parallel_size 1).
    """
    given: dict[str, Any] = {}
    if not row.text("etp") and row.whole("ep", 1) > row.whole("dp", 1) * row.whole("cp", 1):
        given["expert_tensor_parallel_size"] = 1
    if row.text("dispatcher").lower() in DISPATCHERS:
        given["expert_dispatcher"] = DISPATCHERS[row.text("dispatcher").lower()].value
    if row.has("a2a_overlap", "yes"):
        given["overlap_expert_parallel"] = True
    return given


def _has_fp8_attention(row: Row, low: str | None) -> bool:
    """Return whether attention ran in 8 bits: MLPerf's submissions set it by FP8_DPA, beside products in fp8."""
    stated = row.has("notes", "FP8_DPA=1", "FP8_DPA=True") and not row.has("notes", "NVTE_DPA_FP8_RECIPE=F16")
    return stated and (low or "").startswith("fp8")


def _training(row: Row, framework: str) -> dict[str, Any]:
    """Return the training section; products of fp32 matrices run in TF32.

    Source: Transformer Engine, common/gemm/cublaslt_gemm.cu, "Use TF32 only for pure FP32 GEMM".
    """
    low = recipe(row)
    switches = _recompute(row) | _lora(row)
    precision = "fp16" if row.text("precision").lower().startswith(("fp16", "float16")) else "bf16"
    training = batch(row, precision=precision, framework=framework, fused_gradient_accumulation=True, **switches)
    if training["precision"] == "fp32":
        training["tf32"] = True
    if low is not None:
        training["gemm_recipe"] = low
    if row.text("cpu_offload_layers"):
        training["offload_activation_layers"] = row.whole("cpu_offload_layers")
    if _fuses_experts(row, low):
        training["fused_experts"] = True
    if _has_fp8_attention(row, low):
        training["fp8_attention"] = True
    if row.has("notes", "Muon optimizer"):
        training["optimizer"] = "muon"
    return {**training, **_optimizer(row, low), **_graphs(row)}


def _overlaps_linear_traffic(row: Row, default: bool) -> bool:
    """Return whether tensor-parallel traffic is overlapped, which needs sequence parallelism.

    Source: Megatron-LM, training/arguments.py, asserts it; NeMo's MegatronCommOverlapCallback turns the overlap off.
    """
    stated = row.text("tp_comm_overlap").lower()
    by_launcher = row.has("source", *BY_LAUNCHER, LONG_SEQUENCES) and row.has("model", *WITHOUT_OVERLAP)
    wanted = default and not by_launcher if not stated else stated in ("1", "true", "yes", "on")
    return wanted and _sequence_parallel(row)


def _gather_precision(row: Row, low: str | None) -> dict[str, Any]:
    """Return the precision of gathered weights.

    NeMo's and Megatron-Bridge's recipes gather in fp8 with delayed and current scaling and with MXFP8 (fp8_param_gather
    of mixed_precision.py), but neither with blocks of 128 nor in NVFP4. MLPerf's submissions say it in their notes; on
    NeMo 25.01 it is FP8_PARAMS, which the config_common.sh of those of Llama 3.1 405B sets. Those of LoRA store weights
    in fp8 wherever they multiply in it (fp8_params of their configuration).
    """
    is_mlperf = row.text("group").startswith("mlperf")
    if is_mlperf and row.has("task", "lora") and (low or "").startswith("fp8"):
        return {"gather_precision": "fp8"}
    if is_mlperf and low is not None:
        said = row.has("notes", "FP8_PARAM_GATHER=True") or row.has("recipe_ref", FP8_PARAMETERS)
        return {"gather_precision": "fp8"} if said else {}
    return {"gather_precision": "fp8"} if low in ("fp8_delayed", "fp8_tensorwise", "mxfp8") else {}


def _chunks(row: Row) -> dict[str, Any]:
    """Return the chunks of rows that print none for a model that NeMo always interleaves.

    Its runs of Nemotron-4 340B on H100 are named "tp8_pp8_cp1_vp12".
    """
    if row.has("notes", "VP given as NA") and row.has("model", "Nemotron4-340B"):
        return {"virtual_pipeline_parallel_size": row.whole("layers") // row.whole("pp")}
    return {}


def _layers_per_stage(row: Row) -> dict[str, Any]:
    """Return the split that a row prints, or one that counts the embedding and the loss as layers where only that fits.

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


def _is_fully_sharded(row: Row) -> bool:
    """Return whether weights are sharded: the cell names Megatron-FSDP, or the ranks that share, "FSDP=8"; 0: none."""
    ranks = re.search(r"fsdp ?= ?(\w+)", row.text("zero_fsdp").lower())
    if ranks is not None:
        return ranks[1] not in ("0", "no", "false", "off", "none")
    return row.has("zero_fsdp", "Megatron-FSDP")


def _parallelism(row: Row, overlaps: bool, **switches: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "zero_stage": 3 if _is_fully_sharded(row) else 1,
        "gradient_reduction": "reduce_scatter",
        "overlap_gradient_reduction": overlaps,
        "overlap_parameter_gather": overlaps,
        "sequence_parallel": _sequence_parallel(row),
        **_layers_per_stage(row),
        **_chunks(row),
        "overlap_tensor_parallel": row.whole("tp", 1) > 1,
        "blocking_transfers": False,
        "gradient_bucket_elements": MEGATRON_LM.bucket_elements(row.whole("dp")),
        **_exchange(row),
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


def functional_test(row: Row) -> dict[str, Any]:
    """Return the configuration of one of Megatron-LM's tests whose table has flags in its notes, not all arguments."""
    _check(row)
    found = FLAGS.search(row.text("notes"))
    flags = frozenset(found[1].split() if found else ())
    loss = "fused_native" if "cross-entropy-loss-fusion" in flags else "vocabulary_parallel"
    unfused = {"attention": "fused_softmax"} if row.has("attention", "unfused") else {}
    shards = "use-distributed-optimizer" in flags
    training = _training(row, "megatron-lm")
    return {
        **machine(row),
        "model": model_of(row, loss=loss, **unfused),
        "parallelism": _parallelism(
            row,
            overlaps=False,
            zero_stage=int(shards),
            gradient_reduction="reduce_scatter" if shards else "all_reduce",
            overlap_gradient_reduction="overlap-grad-reduce" in flags,
            overlap_parameter_gather="overlap-param-gather" in flags,
            overlap_linear_traffic="tp-comm-overlap" in flags and _sequence_parallel(row),
            fp32_gradients=True,
        ),
        "training": {
            **training,
            "fused_gradient_accumulation": "no-gradient-accumulation-fusion" not in flags,
        },
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

    Its pretrain_gpt.sh has no dropout, an output projection of its own, and fp16; the loss is Megatron-LM's own. Layers
    that leave the last stage go to those before it: the artifact's README has the same peak memory with and without
    redistribution up to a vocabulary of 128,000, so the first stage, which has it, keeps its layers.
    """
    schedule = row.text("schedule").lower()
    if "vocabulary parallelism" in schedule or "interlaced" in schedule:
        raise UnexpressedError("the vocabulary is split over pipeline stages, which is not modelled")
    stages, layers = row.whole("pp"), row.whole("layers")
    split: Any = "uniform"
    if "redistribution" in schedule:
        last = int(row.text("pp_layout").rpartition("=")[2])
        share, rest = divmod(layers - last, stages - 1)
        layers_of = [*(share + (stage >= stages - 1 - rest) for stage in range(stages - 1)), last]
        split = layers_of if last else [[count] for count in layers_of]  # the last stage has the vocabulary alone
    return {
        **machine(row),
        "model": model_of(row, tied_embeddings=False, loss="vocabulary_parallel"),
        "parallelism": _parallelism(row, overlaps=False, layers_per_stage=split),
        "training": {**_training(row, "megatron-lm"), "precision": "fp16"},
    }
