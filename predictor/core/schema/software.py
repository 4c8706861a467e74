"""Software of a run: the switches that a configuration does not say are those of its framework, or of the default one.

Explicit keys always win, null too. Files, options, Python, HTTP and search all pass here, so that a run has one answer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from predictor.core.schema.merging import merged
from predictor.core.schema.sections import section_of
from predictor.core.workload.frameworks import SECTIONS, defaults_of
from predictor.core.workload.run_choices import Conditions
from predictor.core.workload.software import MAY_TAKE_DEEPSPEED, Framework, framework_named
from predictor.core.workload.switches import Attention, Loss, Positions

PRECISION = "precision"
ROTARY = Positions.ROTARY.value
ORDINARY = Conditions.ORDINARY.value  # a framework that is only supposed has not been tuned
FLASH = Attention.FLASH.value
WGMMA = "wgmma"  # of Hopper, whose libraries differ in their kernels of attention
LOSS_OF_WHOLE_LOGITS = Loss.TORCH.value  # of logits that tensor-parallel ranks do not split
# Of the documented interface and of records, which come from a time when a configuration that said none meant it.
FORMER_PRECISION = "fp16"


class Taken(NamedTuple):
    """Defaults of a framework that a configuration takes.

    Attributes:
        framework: whose they are.
        is_named: the configuration names it.
        keys: dotted, with their values; those that any configuration takes are left out, precision aside.
    """

    framework: Framework
    is_named: bool
    keys: dict[str, Any]

    def note(self) -> str | None:
        """Return the line of a report; None where the configuration names its framework."""
        if self.is_named:
            return None
        precision = self.keys.get(f"training.{PRECISION}")
        form = "" if precision is None else f", in {precision}"
        label = defaults_of(self.framework).name.partition(" in ")[0]
        return (
            f"No framework is named: as {label} trains{form}, where no key says otherwise; --framework names another."
        )


def _word(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value


# Nothing fused, nothing overlapped: the defaults of the sections themselves, and all that ``pytorch`` means.
SECTION_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {key: _word(section_of(name).model_fields[key].default) for key in keys if key != PRECISION}
    for name, keys in SECTIONS.items()
}


def said_in_full(content: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration, its preset expanded, that leaves no switch to a default: all unsaid ones are off.

    Which attention runs follows from the software that it names, and from the GPU.
    """
    own = {**SECTION_DEFAULTS, "training": {**SECTION_DEFAULTS["training"], "framework": str(Framework.PYTORCH)}}
    sections = {name: merged(keys, content.get(name) or {}) for name, keys in own.items()}
    if "attention_kernel" not in (content.get("training") or {}):
        del sections["training"]["attention_kernel"]
    if "model" not in content:
        del sections["model"]
    return {**content, **sections}


def recorded_in_full(content: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a record, whose unsaid switches were off and whose precision was fp16."""
    return said_in_full(merged({"training": {PRECISION: FORMER_PRECISION}}, content))


def _framework(value: object) -> Framework | None:
    """Return a framework by its name in any case; None where it is none, which validation explains."""
    try:
        return framework_named(value.lower() if isinstance(value, str) else value)
    except ValueError:
        return None


def _switches(
    framework: Framework, sections: dict[str, dict[str, Any]], instruction: str | None
) -> dict[str, dict[str, Any]]:
    """Return the keys of a framework for the sections of a configuration, those that it cannot take left out."""
    model, layout = sections["model"], sections["parallelism"]
    stage, adapts = layout.get("zero_stage"), sections["training"].get("lora") is not None
    offloads, with_weights = (sections["training"].get(f"offload_{what}") for what in ("optimizer", "parameters"))
    if framework in MAY_TAKE_DEEPSPEED and offloads and not with_weights:  # FSDP offloads both or neither
        framework = Framework.DEEPSPEED
    defaults = defaults_of(framework, stage)
    usual = {name: defaults.section(name) for name in SECTIONS}
    has_own = instruction == WGMMA and model.get("attention", FLASH) == FLASH and not model.get("latent_attention")
    if not has_own:  # elsewhere all libraries run the kernel that a system has
        usual["training"].pop("attention_kernel", None)
    if framework is Framework.PYTORCH:
        usual = {name: dict(keys) for name, keys in SECTION_DEFAULTS.items()}
    if not model.get("rotary_fraction", 1.0) or model.get("positions", ROTARY) != ROTARY:
        usual["model"].pop("fused_rope", None)
    if sections["training"].get("recompute") == "none":
        usual["training"].pop("synchronize_each_layer", None)  # it is the checkpoints that wait
    parallelism, splits = usual["parallelism"], (layout.get("tensor_parallel_size") or 1) != 1
    if defaults.keys.get("loss") == LOSS_OF_WHOLE_LOGITS and splits:
        usual["model"].pop("loss")
    if layout.get("zero_stage") == 0 and parallelism.get("gradient_reduction") == "reduce_scatter":
        del parallelism["gradient_reduction"], parallelism["overlap_parameter_gather"]
    if framework is Framework.TRANSFORMERS and adapts:
        parallelism.pop("fp32_parameters", None)  # accelerate widens weights that train alone
    if defaults.keys.get("fp32_parameters") and (layout.get("pipeline_parallel_size") or 1) != 1:
        parallelism["reshard_after_forward"] = False
    return usual


def with_software(
    content: dict[str, Any], default: Framework, precision: str, instruction: str | None = None
) -> tuple[dict[str, Any], Taken | None]:
    """Return a configuration with the switches of its framework where it says none, and which those are.

    Args:
        content: in its full form, its files and its preset taken in.
        default: framework of a configuration that names none.
        precision: of a framework that does not decide it, or of one whose own the system does not answer in.
        instruction: matrix instruction of the system's GPU, where it is known.
    """
    given = {name: content.get(name) for name in SECTIONS}
    given |= {name: {} for name in ("parallelism", "training") if name not in content}
    sections: dict[str, dict[str, Any]] = {name: keys for name, keys in given.items() if isinstance(keys, dict)}
    named = sections.get("training", {}).get("framework")
    framework = default if named is None else _framework(named)
    if framework is None or len(sections) < len(SECTIONS):
        return content, None  # validation says why
    usual = _switches(framework, sections, instruction)
    usual["training"][PRECISION] = precision
    if named is None:
        usual["training"] |= {"framework": str(framework), "conditions": ORDINARY}
    whole = {**content, **{name: {**usual[name], **keys} for name, keys in sections.items()}}
    if framework is Framework.PYTORCH:
        whole["training"].pop("framework", None)
    keys = {
        f"{name}.{key}": value
        for name in SECTIONS
        for key, value in usual[name].items()
        if key not in sections[name] and key != "framework" and value != SECTION_DEFAULTS[name].get(key)
    }
    return whole, Taken(framework, named is not None, keys) if keys else None
