"""Wide-ResNet as a list of residual blocks known by their totals: a model that is not a transformer."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from costmodels.workload.model import LayerRun, ModelSpec, OpaqueLayer

_BLOCKS: Final[Mapping[int, tuple[int, int, int, int]]] = MappingProxyType({50: (3, 4, 6, 3), 101: (3, 4, 23, 3)})
_FP32_BYTES: Final = 4
_CLASSES: Final = 1024
_IMAGE: Final = 224

SIZES: Final[Mapping[str, tuple[int, int, int]]] = MappingProxyType(
    {
        "wide_resnet_250m": (50, 160, 2),
        "wide_resnet_500m": (50, 224, 2),
        "wide_resnet_1b": (50, 320, 2),
        "wide_resnet_2b": (50, 448, 2),
        "wide_resnet_4b": (50, 640, 2),
        "wide_resnet_6.8b": (50, 320, 16),
        "wide_resnet_13b": (101, 320, 16),
    }
)
"""Depth, base channels and width factor of the models of Alpa, arXiv 2201.12023, table 4."""


def wide_resnet(name: str, depth: int, channels: int, width: int) -> ModelSpec:
    """Return a bottleneck Wide-ResNet for images of 224 x 224 in fp32.

    A block has convolutions 1x1 (``f`` channels), 3x3 (``f * width``) and 1x1 (``4 f``), with a projected shortcut
    where shapes change; each stage doubles ``f`` and halves the image. Kept for backward: the input of every
    convolution and of every normalisation. Over tp each convolution's output channels divide, so that its input is
    gathered: three exchanges per block of what the convolutions read.

    Parameters
    ----------
    name : str
        Name of the model.
    depth : int
        50 or 101.
    channels : int
        Channels of the first stage.
    width : int
        Factor on the channels of the 3x3 convolutions.

    Returns
    -------
    ModelSpec
        A stem, residual blocks and a classifier as opaque layers.

    References
    ----------
    Zagoruyko and Komodakis, arXiv 1605.07146; sizes: Zheng et al. (Alpa), arXiv 2201.12023.
    """
    side = _IMAGE // 4
    runs = [LayerRun(kind=_stem(channels), count=1)]
    inputs = channels
    for stage, blocks in enumerate(_BLOCKS[depth]):
        filters = channels * 2**stage
        stride = 2 if stage else 1
        side //= stride
        first = _block(f"stage{stage}.first", inputs, filters, width, side, stride)
        inputs = 4 * filters
        rest = _block(f"stage{stage}.rest", inputs, filters, width, side, 1)
        runs += [LayerRun(kind=first, count=1), LayerRun(kind=rest, count=blocks - 1)]
    runs.append(LayerRun(kind=_classifier(inputs), count=1))
    return ModelSpec(
        name=name,
        family="wide_resnet",
        hidden=0,
        vocab=0,
        runs=tuple(runs),
        causal=False,
        sources=("Zheng et al., arXiv 2201.12023, table 4; convolution arithmetic",),
    )


def _stem(channels: int) -> OpaqueLayer:
    pixels = (_IMAGE // 2) ** 2
    weights = 7 * 7 * 3 * channels
    pooled = (_IMAGE // 4) ** 2 * channels
    return OpaqueLayer(
        name="stem",
        forward_flops_per_sample=2.0 * weights * pixels,
        parameters=weights + 2 * channels,
        activation_bytes_per_sample=float(_FP32_BYTES * (_IMAGE**2 * 3 + 2 * pixels * channels)),
        output_bytes_per_sample=float(_FP32_BYTES * pooled),
        shardable=("tp",),
    )


def _block(name: str, inputs: int, filters: int, width: int, side: int, stride: int) -> OpaqueLayer:
    outer, pixels = (side * stride) ** 2, side**2
    wide, outputs = filters * width, 4 * filters
    projected = stride != 1 or inputs != outputs
    first = inputs * filters
    rest = 9 * filters * wide + wide * outputs + (inputs * outputs if projected else 0)
    channels = filters + wide + outputs + (outputs if projected else 0)
    read = outer * (inputs + filters) + pixels * wide  # inputs of the three convolutions
    normalised = outer * filters + pixels * (wide + outputs + (outputs if projected else 0))
    return OpaqueLayer(
        name=name,
        forward_flops_per_sample=2.0 * (first * outer + rest * pixels),
        parameters=first + rest + 2 * channels,
        activation_bytes_per_sample=float(_FP32_BYTES * (read + normalised)),
        output_bytes_per_sample=float(_FP32_BYTES * pixels * outputs),
        shardable=("tp",),
        tp_exchange_bytes_per_sample=float(_FP32_BYTES * read),
    )


def _classifier(inputs: int) -> OpaqueLayer:
    return OpaqueLayer(
        name="classifier",
        forward_flops_per_sample=2.0 * inputs * _CLASSES,
        parameters=inputs * _CLASSES + _CLASSES,
        activation_bytes_per_sample=float(_FP32_BYTES * (inputs + _CLASSES)),
        output_bytes_per_sample=float(_FP32_BYTES * _CLASSES),
        shardable=("tp",),
    )
