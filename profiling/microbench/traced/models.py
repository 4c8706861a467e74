"""The four models of the traces, with random weights, and a tiny one; each returns its loss.

VGG16 is written out: Simonyan and Zisserman 2015, arXiv:1409.1556, configuration D. The others are those of
``transformers``: ResNet-50 (He et al. 2016), BERT for questions and answers as on SQuAD, RoBERTa for multiple choice as
on SWAG.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from microbench.errors import MeasureError
from microbench.traced.settings import ANSWERS, IMAGE_LABELS, TINY_LABELS, VOCABULARY, InputSpec, TraceSettings

VGG_CONVOLUTIONS = (2, 2, 3, 3, 3)
VGG_WIDTHS = (1, 2, 4, 8, 8)  # in those of the first stage
VGG_LINEAR_WIDTH = 64
VGG_SCALE = 2 ** len(VGG_CONVOLUTIONS)  # pixels of the image per one of the last stage
RESNET_DEPTHS = (3, 4, 6, 3)
RESNET_WIDTHS = (4, 8, 16, 32)
IMAGE_WIDTH, HIDDEN_SIZE, HEAD_SIZE, LAYERS = 64, 768, 64, 12
DROPOUT = 0.5


class Classifier(nn.Module):  # type: ignore[misc]
    """Layers that end in the logits of an image, and their cross entropy."""

    def __init__(self, layers: list[Any]) -> None:
        """Take the layers."""
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of images (batch, 3, height, width) with labels (batch)."""
        return self.loss(self.layers(pixel_values), labels)


def vgg16(image: int, width: int, convolutions: int) -> Classifier:
    """Return VGG16.

    Args:
        image: pixels of a side, a multiple of 32.
        width: channels of the first stage.
        convolutions: of each stage at most.
    """
    if image % VGG_SCALE:
        raise MeasureError(f"--image is {image}; VGG16 halves it five times, so give a multiple of {VGG_SCALE}")
    layers: list[Any] = []
    channels = 3
    for count, factor in zip(VGG_CONVOLUTIONS, VGG_WIDTHS, strict=True):
        for _ in range(min(count, convolutions)):
            layers += [nn.Conv2d(channels, factor * width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = factor * width
        layers.append(nn.MaxPool2d(2))
    hidden = VGG_LINEAR_WIDTH * width
    layers += [nn.Flatten(), nn.Linear(channels * (image // VGG_SCALE) ** 2, hidden), nn.ReLU(), nn.Dropout(DROPOUT)]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(hidden, IMAGE_LABELS)]
    return Classifier(layers)


def tiny(width: int) -> Classifier:
    """Return a network with one layer of each kind, for tests."""
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += [nn.Linear(width, TINY_LABELS)]
    return Classifier(layers)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MeasureError(
            "transformers is not installed; pip install 'estimate-train-time[trace]' brings it"
        ) from None
    return transformers


def resnet50(width: int, depth: int) -> Any:
    """Return ResNet-50 for images of 1000 kinds; ``depth`` is of blocks per stage, at most."""
    library = _transformers()
    config = library.ResNetConfig(
        embedding_size=width,
        hidden_sizes=[factor * width for factor in RESNET_WIDTHS],
        depths=[min(count, depth) for count in RESNET_DEPTHS],
        num_labels=IMAGE_LABELS,
        problem_type="single_label_classification",
    )
    return library.ResNetForImageClassification(config)


def language_model(settings: TraceSettings) -> Any:
    """Return BERT or RoBERTa."""
    library = _transformers()
    width = settings.width or HIDDEN_SIZE
    if width > HEAD_SIZE and width % HEAD_SIZE:
        raise MeasureError(f"--width is {width}; a hidden size is a multiple of {HEAD_SIZE}, the size of a head")
    sizes = {
        "vocab_size": VOCABULARY[settings.model],
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": max(1, width // HEAD_SIZE),
        "num_hidden_layers": settings.layers or LAYERS,
        "attn_implementation": settings.attention,
    }
    if settings.model == "bert":
        return library.BertForQuestionAnswering(library.BertConfig(max_position_embeddings=512, **sizes))
    # Positions begin behind the padding's id, 1.
    config = library.RobertaConfig(max_position_embeddings=514, type_vocab_size=1, num_labels=ANSWERS, **sizes)
    return library.RobertaForMultipleChoice(config)


def make_model(settings: TraceSettings) -> Any:
    """Return the model of a run, in training, with weights drawn from the seed.

    Raises:
        MeasureError: a size does not suit the model, or transformers is missing.
    """
    torch.manual_seed(settings.input_data.seed)
    width = settings.width or IMAGE_WIDTH
    if settings.model == "tiny":
        model = tiny(settings.width or 8)
    elif settings.model == "vgg16":
        model = vgg16(settings.image, width, settings.layers or max(VGG_CONVOLUTIONS))
    elif settings.model == "resnet50":
        model = resnet50(width, settings.layers or max(RESNET_DEPTHS))
    else:
        model = language_model(settings)
    return model.train()


def make_inputs(spec: InputSpec, rank: int, device: str) -> dict[str, Tensor]:
    """Return a rank's synthetic inputs."""
    generator = torch.Generator().manual_seed(1000 * spec.seed + rank)
    inputs = {}
    for name, tensor in spec.tensors.items():
        if tensor.limit is None:
            drawn = torch.randn(tensor.shape, generator=generator)
        else:
            drawn = torch.randint(tensor.least, tensor.limit, tensor.shape, generator=generator)
        inputs[name] = drawn.to(device)
    return inputs


def loss_of(output: Any) -> Tensor:
    """Return the loss in what a model returns."""
    return output if isinstance(output, Tensor) else output.loss
