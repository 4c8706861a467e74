"""Preference learning on a Trainer: sequences of a sample, and passes without gradients beside each.

Source: huggingface/trl, trl/trainer/dpo_trainer.py, kto_trainer.py and reward_trainer.py (_compute_loss),
trl/experimental/orpo and cpo; hiyouga/LLaMA-Factory, train/dpo, train/kto and train/rm, hparams/finetuning_args.py;
axolotl, core/builders/rl.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from predictor.core.base.errors import ConfigError
from predictor.formats.trainer.arguments import Arguments


class Objective(NamedTuple):
    """What a method asks of a sample.

    Attributes:
        sequences: of a sample, which one forward pass takes together.
        passes: without gradients, beside a reference.
    """

    sequences: int
    passes: int = 0


PAIRS = Objective(2)
KTO = Objective(1, 3)
OBJECTIVES = {
    "dpo": Objective(2, 1),
    "ipo": Objective(2, 1),
    "orpo": PAIRS,
    "simpo": PAIRS,
    "cpo": PAIRS,
    "kto": KTO,
    "reward": PAIRS,
    "rm": PAIRS,
}
OTHER_NAMES = {"reward_modeling": "reward"}
REWARDS = ("reward", "rm")
WITHOUT_KL = "apo_zero_unpaired"  # loss_type of TRL's KTO whose passes are the reference's alone
WHOLE_LOGITS = "torch"  # of which each token's log-probability is taken
PRECOMPUTED = ("precompute_ref_log_probs", "precompute_ref_logps")
SECOND_MODEL = ("ref_model", "rl_adapter_ref_model", "force_use_ref_model")
# Arguments that change no cost of these methods.
OF_LOSSES = (
    *("beta", "label_smoothing", "loss_type", "loss_weights", "max_prompt_length", "max_completion_length"),
    *("truncation_mode", "desirable_weight", "undesirable_weight", "rpo_alpha", "simpo_gamma", "cpo_alpha", "ld_alpha"),
    *("f_divergence_type", "f_alpha_divergence_coef", "discopop_tau", "disable_dropout", "use_weighting"),
    *("center_rewards_coefficient", "label_pad_token_id", "padding_value", "ref_model_init_kwargs", "sync_ref_model"),
    *("ref_model_mixup_alpha", "ref_model_sync_steps", "generate_during_eval", "precompute_ref_batch_size"),
    *("rl_beta", "orpo_alpha", "kto_desirable_weight", "kto_undesirable_weight", "dpo_use_weighting"),
    *("dpo_use_logits_to_keep", "dpo_label_smoothing", "dpo_norm_loss", "dpo_padding_free", "use_logits_to_keep"),
    *("max_prompt_len", "reference_free", "remove_unused_columns", "dpo_alpha", "ref_model_adapters"),
)


def named(name: str) -> str | None:
    """Return the objective that a word stands for, such as a subcommand of TRL; None: another one.

    >>> named("reward_modeling"), named("grpo")
    ('reward', None)
    """
    known = OTHER_NAMES.get(name, name)
    return known if known in OBJECTIVES else None


def objective_keys(
    arguments: Arguments, name: str, adapts: bool, training: dict[str, Any], model: dict[str, Any]
) -> None:
    """Put an objective into the sections of a configuration.

    Args:
        arguments: of the run.
        name: of the objective.
        adapts: adapters train alone.
        training: section whose samples become sequences.
        model: section whose loss gives way to log-probabilities, or to one number.
    """
    objective = OBJECTIVES[name]
    if objective.sequences > 1:
        arguments.note(f"{name}: a sample is {objective.sequences} sequences, the chosen and the rejected answer")
    for key in ("micro_batch_size", "global_batch_size"):
        if key in training:
            training[key] *= objective.sequences
    if "training.micro_batch_size" in arguments.unsaid:
        arguments.unsaid["training.micro_batch_size"] += f"; it counts sequences, {objective.sequences} a sample"
    if name in REWARDS:
        model["loss"] = "score"
    else:
        arguments.note("log-probabilities are predicted of whole logits; TRL's newest releases make them in chunks")
    if model.get("loss") in ("fused", "fused_linear"):
        model["loss"] = WHOLE_LOGITS
    passes = 1 if arguments.value("loss_type") == WITHOUT_KL else objective.passes
    training |= _reference(arguments, name, passes, adapts)
    arguments.pass_over(OF_LOSSES)


def _reference(arguments: Arguments, name: str, passes: int, adapts: bool) -> dict[str, Any]:
    """Return the keys of ``training`` on a reference."""
    is_known = True in [arguments.switch(key) for key in PRECOMPUTED]
    has_own = True in [bool(arguments.value(key)) for key in SECOND_MODEL]
    if is_known and passes > 1:
        arguments.broken(
            next(key for key in PRECOMPUTED if arguments.has(key)),
            f"the trained model's own pass without gradients ({name}) is not modelled alone; set it to false",
        )
    if not passes or is_known or arguments.switch("reference_free"):
        return {}
    keys: dict[str, Any] = {"reference_model": "adapters_off" if adapts and not has_own else "separate"}
    return keys | ({"reference_passes": passes} if passes > 1 else {})


def other_objective(arguments: Arguments, key: str) -> ConfigError:
    """Return the error that a run's objective is none of those that are modelled."""
    return arguments.error(
        key,
        f"modelled are supervised fine-tuning, {', '.join(OBJECTIVES)}; what generates text while it trains is not",
    )
