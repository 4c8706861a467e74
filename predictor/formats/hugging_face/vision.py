"""Vision towers of a config.json: of models whose configuration holds one, and a language model's beside it.

A file says no number of images in a sample, and of towers that take images of any size no size either; both are the
training's. Source: huggingface/transformers, src/transformers/models/<model>/modeling_<model>.py, release 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from predictor.core.base.errors import ConfigError
from predictor.formats.fields import Fields
from predictor.formats.hugging_face.config import may_be_a_size

Section = dict[str, Any]


class Files(NamedTuple):
    """What a tower is read from: its configuration, the one around it, and the language model's hidden_size."""

    tower: Fields
    around: Fields
    hidden_size: int

    def only(self, key: str, *allowed: object) -> None:
        """Refuse another value of a key of the tower.

        Raises:
            ConfigError: it has one.
        """
        if self.tower.get(key) not in (None, *allowed):
            raise self.tower.error(key, f"only {' and '.join(map(str, allowed))} is modelled")


def _sizes(tower: Fields, **names: str) -> Section:
    """Return the sizes that every tower has, under their usual names unless others are given."""
    named = {
        "num_layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "ffn_hidden_size": "intermediate_size",
        "num_attention_heads": "num_attention_heads",
        "patch_size": "patch_size",
    } | names
    return {key: tower.whole(name) for key, name in named.items()}


def _patches(tower: Fields, sizes: Section) -> int:
    """Return the patches of an image of the size that the file gives."""
    sizes["image_size"] = tower.whole("image_size")
    return int((sizes["image_size"] // sizes["patch_size"]) ** 2)


def _clip(files: Files) -> Section:
    """Return CLIP's encoder of LLaVA: a class token, a norm before the layers, two matrices to the text."""
    sizes, around = _sizes(files.tower), files.around
    files.tower.used |= {"projection_dim", "vocab_size"}
    if around.get("vision_feature_select_strategy") not in (None, "default"):
        raise around.error("vision_feature_select_strategy", "only default is modelled, without the class token")
    if isinstance(around.get("vision_feature_layer"), list):
        raise around.error("vision_feature_layer", "features of one layer are modelled")
    width, hidden = sizes["hidden_size"], files.hidden_size
    biases = 2 * hidden if around.switch("multimodal_projector_bias", default=True) else 0
    return sizes | {
        "num_position_embeddings": _patches(files.tower, sizes) + 1,
        "patches_per_token": 1,
        "projection_widths": [hidden],
        "other_parameters": 2 * width + biases,  # norm before the layers; the class token for a patch's absent bias
    }


def _siglip(files: Files) -> Section:
    """Return SigLIP's encoder of Gemma 3, whose patches are averaged and normalised before one matrix."""
    sizes = _sizes(files.tower)
    files.only("vision_use_head", False)
    patches, tokens = _patches(files.tower, sizes), files.around.whole("mm_tokens_per_image", 256)
    if patches % tokens:
        raise files.around.error("mm_tokens_per_image", f"it must divide an image's {patches} patches")
    return sizes | {
        "patches_per_token": patches // tokens,
        "pooled": True,
        "other_parameters": sizes["hidden_size"],
    }


def _llama4(files: Files) -> Section:
    """Return Llama 4's encoder: a class token, a norm before the layers, patches joined by pixel_shuffle_ratio."""
    tower = files.tower
    sizes = _sizes(tower)
    ratio = tower.real("pixel_shuffle_ratio", 0.5)
    inner, outer = tower.whole("projector_input_dim"), tower.whole("projector_output_dim")
    if tower.whole("vision_output_dim") != outer:
        raise tower.error("vision_output_dim", f"it must be projector_output_dim, {outer}")
    width = sizes["hidden_size"]
    return sizes | {
        "num_position_embeddings": _patches(tower, sizes) + 1,
        "patches_per_token": round(1.0 / ratio**2),
        "projection_widths": [inner, outer],
        "other_parameters": 2 * width,
    }


def _qwen2(files: Files) -> Section:
    """Return Qwen2-VL's encoder: rotated patches of two frames, four neighbours joined through two matrices."""
    tower, hidden = files.tower, files.hidden_size
    if tower.whole("hidden_size", hidden) != hidden:  # of what it writes
        raise tower.error("hidden_size", f"it must be that of the language model, {hidden}")
    width = tower.whole("embed_dim")
    return {
        "num_layers": tower.whole("depth"),
        "hidden_size": width,
        "ffn_hidden_size": int(width * tower.real("mlp_ratio", 4.0)),
        "num_attention_heads": tower.whole("num_heads"),
        "patch_size": tower.whole("patch_size"),
        **_merged(files, width, patches_have_bias=False),
    }


def _qwen2_5(files: Files) -> Section:
    """Return Qwen2.5-VL's encoder: Qwen2-VL's with RMSNorm and a gate; most of its layers see windows only."""
    sizes = _sizes(files.tower, num_layers="depth", num_attention_heads="num_heads")
    files.tower.used |= {"window_size", "fullatt_block_indexes", "tokens_per_second"}
    files.only("out_hidden_size", files.hidden_size)
    norms = {"normalization": "rms_norm", "gated": True}
    return sizes | norms | _merged(files, sizes["hidden_size"], patches_have_bias=False)


def _merged(files: Files, width: int, patches_have_bias: bool) -> Section:
    """Return the ends of Qwen's towers: patches of two frames, neighbours joined through two matrices with biases."""
    tower = files.tower
    merge = tower.whole("spatial_merge_size", 2) ** 2
    return {
        "num_position_embeddings": 0,
        "temporal_patch_size": tower.whole("temporal_patch_size", 2),
        "patches_per_token": merge,
        "projection_widths": [merge * width],
        "other_parameters": merge * width + files.hidden_size - (0 if patches_have_bias else width),
    }


def _qwen3(files: Files) -> Section:
    """Return Qwen3-VL's encoder: learned positions, and outputs of several layers that go to layers of the text."""
    tower = files.tower
    sizes = _sizes(tower, num_layers="depth", num_attention_heads="num_heads")
    files.only("out_hidden_size", files.hidden_size)
    deep, width = tower.get("deepstack_visual_indexes"), sizes["hidden_size"]
    if not isinstance(deep, list | None):
        raise tower.error("deepstack_visual_indexes", "expected a list of layers")
    ends = _merged(files, width, patches_have_bias=True)
    count, joined = len(deep or ()), ends["patches_per_token"] * width
    biases = (count + 1) * ends["other_parameters"]
    return (
        sizes
        | ends
        | {
            "num_position_embeddings": tower.whole("num_position_embeddings", 2304),
            "projections": count + 1,
            "other_parameters": biases + count * 2 * joined,  # and the norm of each further projection's inputs
        }
    )


class Composite(NamedTuple):
    """A model of a vision tower and a language model.

    Attributes:
        tower: reads the tower.
        text: ``model_type`` of the language model where its part of the file has none.
        tied: whether embeddings are tied where the file does not say.
        notes: what a prediction leaves out.
    """

    tower: Callable[[Files], Section]
    text: str
    tied: bool = False
    notes: tuple[str, ...] = ()


# Keys of towers that change no cost, though their names might.
OF_NO_SIZE = ("num_channels", "in_channels", "in_chans")
IMAGES_SEE_ALL = "tokens of an image attend to later ones of it, too, which is not modelled"
WINDOWS = "window_size: attention of the vision tower is predicted over all patches of an image"
COMPOSITES = {
    "llava": Composite(_clip, "llama"),
    "gemma3": Composite(_siglip, "gemma3_text", tied=True, notes=(IMAGES_SEE_ALL,)),
    "llama4": Composite(_llama4, "llama4_text"),
    "qwen2_vl": Composite(_qwen2, "qwen2_vl_text"),
    "qwen2_5_vl": Composite(_qwen2_5, "qwen2_5_vl_text", notes=(WINDOWS,)),
    "qwen3_vl": Composite(_qwen3, "qwen3_vl_text"),
    "qwen3_vl_moe": Composite(_qwen3, "qwen3_vl_moe_text"),
    "qwen3_5": Composite(_qwen3, "qwen3_5_text"),
    "qwen3_5_moe": Composite(_qwen3, "qwen3_5_moe_text"),
}


def language_model(content: Section, where: str) -> Section:
    """Return the configuration of a composite model's language model; older files have its keys around the tower's.

    Raises:
        ConfigError: the two parts disagree on whether embeddings are tied.
    """
    composite, inner, key = COMPOSITES[content["model_type"]], content.get("text_config"), "tie_word_embeddings"
    kind = {"model_type": composite.text}
    if not isinstance(inner, dict):
        return {key: value for key, value in content.items() if key not in ("vision_config", "architectures")} | kind
    said = [part[key] for part in (content, inner) if part.get(key) is not None]
    if len(said) > 1 and said[0] != said[1]:
        raise Fields(content, where).error(key, "and text_config has another; leave one of them out")
    return kind | inner | {key: said[0] if said else composite.tied}


def vision(content: Section, where: str, hidden_size: int) -> tuple[Section, tuple[str, ...], dict[str, str]]:
    """Return the section ``vision`` of a composite model, notes on it, and what its file leaves open.

    Args:
        content: of the whole file.
        where: what messages call it.
        hidden_size: of the language model.

    Raises:
        ConfigError: a size is missing, or a variant is not modelled.
    """
    composite = COMPOSITES[content["model_type"]]
    around = Fields(content, where)
    try:
        section = _tower(composite, Files(around.section("vision_config"), around, hidden_size))
    except ConfigError as error:
        if "text_config" not in content:
            raise
        raise ConfigError(f"{error}; {where}#text_config is the language model alone") from None
    unsaid = {"model.vision.images_per_sample": f"{where} says no number of images in a sample; one, unless it is said"}
    if "image_size" not in section:
        unsaid["model.vision.image_size"] = f"{where} says no size of an image"
    return section, composite.notes, unsaid


def _tower(composite: Composite, files: Files) -> Section:
    if files.around.get("audio_config"):
        raise files.around.error("audio_config", "audio towers are not modelled")
    section = composite.tower(files)
    for key in files.tower.unused():
        if key not in OF_NO_SIZE and may_be_a_size(key, files.tower.values[key]):
            raise files.tower.error(key, "it is unknown and may be a size; remove it to predict the tower without")
    return section


def check_head(content: Section, where: str) -> None:
    """Refuse a composite model with another head than a language model's.

    Raises:
        ConfigError: it has one.
    """
    names = content.get("architectures")
    if isinstance(names, list) and names and not str(names[0]).endswith(("ForConditionalGeneration", "ForCausalLM")):
        raise ConfigError(
            f"{where}: architectures is {names!r}; only language models (…ForConditionalGeneration) are predicted; "
            "remove it to predict one"
        )
