"""The linear layers of a transformer layer, by how tensor parallelism splits them, and their backward pass."""

from __future__ import annotations

# Experts' products, so named as tasks, are those of an FFN. Of the others:
# their input comes from a norm and is whole on every rank; their output is split. The others the other way round.
EXPERT_UP, EXPERT_DOWN = "expert_up", "expert_down"
# Projections of tokens before they travel to their experts, and of the sums back.
LATENT_DOWN, LATENT_UP = "latent_down_projection", "latent_up_projection"
COLUMN_PARALLEL = (
    "qkv_projection",
    "q_up_projection",
    "kv_up_projection",
    "in_projection",
    "gate_projection",
    "ffn_up",
    EXPERT_UP,
)
ROW_PARALLEL = ("attention_output", "out_projection", "ffn_down", EXPERT_DOWN)
# Every rank has the whole matrix, and multiplies its own share of the tokens.
WHOLE_ON_RANK = ("q_down_projection", "kv_down_projection", LATENT_DOWN, LATENT_UP)
# Half of a linear layer's backward pass makes the gradient of its weights, the other half that of its input.
HALF_OF_BACKWARD = 0.5
