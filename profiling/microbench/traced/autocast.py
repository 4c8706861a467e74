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
    "cpu": frozenset(f"aten::{name}" for name in ("nll_loss", "cross_entropy_loss", "mse_loss", "prod", "cdist")),
    "cuda": frozenset(
        f"aten::{name}"
        for name in (
            "nll_loss", "cross_entropy_loss", "mse_loss", "prod", "cdist", "softmax", "log_softmax", "layer_norm",
            "group_norm", "exp", "log", "pow", "sum", "cumsum", "norm", "rsqrt", "reciprocal", "softplus",
            "native_layer_norm", "cosine_similarity", "binary_cross_entropy_with_logits", "rms_norm",
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


def types_in(call: OperatorCall, precision: str, device_kind: str) -> tuple[str, ...]:
    """Return the types of a call's arguments in which autocast runs it; those of what is no tensor as traced.

    Where an operator follows inputs of different types, as a sum of a bf16 product and an fp32 residual does, it runs
    in the wider one, and PyTorch casts the other input before: that is a cast, and the sum one in fp32.
    """
    chosen = TORCH_NAMES["fp32" if call.name in ALWAYS_FP32[device_kind] else precision]
    kept = () if call.name in IN_LOWER_PRECISION else STATE.get(call.name, ())
    return tuple(
        argument.dtype
        if argument.kind != "tensor" or argument.dtype not in FLOATING
        else (TORCH_NAMES["fp32"] if position in kept else chosen)
        for position, argument in enumerate(call.arguments)
    )


def state_of(name: str) -> Sequence[int]:
    """Return the positions of an operator's weights and statistics where they are known; of a product, its weight."""
    if name in STATE:
        return STATE[name]
    return (1, 2) if name in ("aten::linear", "aten::conv2d", "aten::convolution") else ()
