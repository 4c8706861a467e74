"""In which types autocast runs a call.

Source: PyTorch 2.13, aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP and AT_FORALL_FP32 of the device
kinds. Every other operator runs in the types of its inputs, where two meet in the wider one.
"""

from __future__ import annotations

from collections.abc import Sequence

from microbench.traced.calls import FLOATING, OperatorCall

TORCH_NAMES = {"fp32": "float", "bf16": "c10::BFloat16", "fp16": "c10::Half"}
IN_LOWER_PRECISION = frozenset(
    f"aten::{name}"
    for name in (
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
        "_convolution", "bmm", "mm", "baddbmm", "addmm", "addbmm", "linear", "matmul", "scaled_dot_product_attention",
        "addmv", "mv", "chain_matmul", "multi_dot",
    )
)  # fmt: skip
ALWAYS_FP32 = {
    "cpu": frozenset(f"aten::{name}" for name in ("nll_loss", "nll_loss2d", "mse_loss", "prod", "cdist")),
    "cuda": frozenset(
        f"aten::{name}"
        for name in (
            "nll_loss", "nll_loss2d", "mse_loss", "prod", "cdist", "softmax", "log_softmax", "layer_norm", "group_norm",
            "exp", "log", "pow", "sum", "cumsum", "norm", "rsqrt", "reciprocal", "softplus", "native_layer_norm",
            "cosine_similarity", "binary_cross_entropy_with_logits", "rms_norm",
        )
    ),
}  # fmt: skip
# Arguments that are weights or statistics, and stay in fp32: only operators in lower precision cast their weights.
STATE = {
    "aten::batch_norm": (1, 2, 3, 4), "aten::native_batch_norm": (1, 2, 3, 4), "aten::cudnn_batch_norm": (1, 2, 3, 4),
    "aten::layer_norm": (2, 3), "aten::native_layer_norm": (2, 3), "aten::group_norm": (2, 3), "aten::embedding": (0,),
    "aten::rms_norm": (2,),
}  # fmt: skip
# Statistics among them, of which there are no gradients.
STATISTICS = dict.fromkeys(("aten::batch_norm", "aten::native_batch_norm", "aten::cudnn_batch_norm"), (3, 4))


def type_variants(call: OperatorCall, precision: str, device_kind: str) -> list[tuple[str, ...]]:
    """Return the types of a call's tensors, by argument and () otherwise, in which a precision may run it.

    The first has every floating activation in the precision; where an operator takes several and follows them, the
    others have one of them in it, as where a residual in fp32 meets a product in bf16.
    """
    target = TORCH_NAMES[precision]
    floating = [p for p, a in enumerate(call.arguments) if a.kind == "tensor" and a.dtype in FLOATING]
    state = STATE.get(call.name, ())
    if call.name in ALWAYS_FP32[device_kind]:
        return [_types(call, dict.fromkeys(floating, TORCH_NAMES["fp32"]))]
    if call.name in IN_LOWER_PRECISION:
        return [_types(call, dict.fromkeys(floating, target))]
    activations = [position for position in floating if position not in state]
    weights = dict.fromkeys((p for p in floating if p in state), TORCH_NAMES["fp32"])
    variants = [_types(call, weights | dict.fromkeys(activations, target))]
    large = [position for position in activations if call.arguments[position].shape]
    if precision != "fp32" and len(large) > 1:
        everything = weights | dict.fromkeys(activations, TORCH_NAMES["fp32"])
        variants += [_types(call, everything | {position: target}) for position in large]
    return variants


def _types(call: OperatorCall, chosen: dict[int, str]) -> tuple[str, ...]:
    return tuple(chosen.get(p, argument.dtype) for p, argument in enumerate(call.arguments))


def state_of(name: str) -> Sequence[int]:
    """Return the positions of an operator's weights and statistics where they are known; of a product, its weight."""
    if name in STATE:
        return STATE[name]
    return (1, 2) if name in ("aten::linear", "aten::conv2d", "aten::convolution") else ()
