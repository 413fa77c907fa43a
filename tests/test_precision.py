"""Precision recipes: names, families of frameworks, published bytes per parameter."""

import pytest

from costmodels.compute.machine import lacking_format
from costmodels.precision import names, precision, with_wide_weights
from hardware.catalog import accelerator
from hardware.cluster import PeakRates
from hardware.errors import InputError

WRITTEN = {  # as published runs name their precision
    "bf16": "bf16",
    "BF16 mixed": "bf16",
    "bf16 (fp32 grad accumulation)": "bf16",
    "amp_bf16": "bf16",
    "fp16": "fp16",
    "fp16 O2": "fp16",
    "fp32": "fp32",
    "tf32": "tf32",
    "fp8": "fp8-ds",
    "fp8-ds": "fp8-ds",
    "fp8 (TransformerEngine hybrid)": "fp8-ds",
    "fp8 (JAX)": "fp8-ds",
    "fp8-cs": "fp8-cs",
    "fp8 tensorwise": "fp8-cs",
    "fp8 (float8 linear)": "fp8-cs",
    "fp8-blockwise": "fp8-blockwise",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp4": "mxfp4",
}


@pytest.mark.parametrize(("written", "name"), WRITTEN.items())
def test_names_and_aliases(written: str, name: str) -> None:
    assert precision(written).name == name


@pytest.mark.parametrize(
    ("name", "framework", "parts"),
    [
        # Megatron-LM's table: without and with the optimizer sharded (weights and gradients; the rest)
        ("bf16", "megatron", (6.0, 12.0)),
        ("fp16", "megatron", (4.0, 16.0)),
        ("fp32", "megatron", (8.0, 8.0)),
        # ZeRO: 2 and 2, and 12 of optimizer states
        ("bf16", "deepspeed", (4.0, 12.0)),
        ("fp16", "deepspeed", (4.0, 12.0)),
        # FSDP: fp32 weights are the master
        ("bf16", "torchtitan", (8.0, 8.0)),
        ("bf16-pure", "torchtitan", (4.0, 4.0)),
        ("mxfp8", "torchtitan", (8.0, 8.0)),
    ],
)
def test_bytes_per_parameter_are_the_published_ones(name: str, framework: str, parts: tuple[float, float]) -> None:
    recipe = precision(name, framework=framework)
    replicated = recipe.weight_bytes + recipe.extra_weight_bytes + recipe.gradient_bytes
    assert (replicated, recipe.master_bytes + recipe.step_bytes + recipe.moment_bytes) == parts


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("framework", ["", "megatron", "deepspeed", "torchtitan", "jax"])
def test_every_recipe_is_sound(name: str, framework: str) -> None:
    recipe = precision(name, framework=framework)
    assert recipe.name.startswith(name)
    assert recipe.source
    assert hasattr(PeakRates(), recipe.gemm)
    assert hasattr(PeakRates(), recipe.attention)
    assert 0 < recipe.gemm_activation_bytes <= recipe.activation_bytes <= 4
    assert 0 < recipe.gather_bytes <= recipe.weight_bytes + recipe.extra_weight_bytes
    assert 0 < recipe.reduce_bytes <= 4
    assert recipe.master_bytes > 0 or recipe.weight_bytes == 4 or name == "bf16-pure"
    assert recipe.moment_bytes == (4 if name == "bf16-pure" else 8)


def test_low_precision_keeps_narrow_inputs() -> None:
    widths = [precision(name).gemm_activation_bytes for name in ("bf16", "mxfp8", "fp8-cs", "nvfp4")]
    assert widths == sorted(widths, reverse=True)


def test_wide_weights_stay_beside_what_products_read() -> None:
    wide = with_wide_weights(precision("fp8-ds"))
    assert (wide.weight_bytes, wide.extra_weight_bytes, wide.gather_bytes) == (2.0, 2.0, 2.0)
    assert with_wide_weights(wide) == wide
    assert with_wide_weights(precision("nvfp4")) == precision("nvfp4")


def test_variants_are_not_offered_but_unknown_families_fall_back() -> None:
    assert not any("-fsdp" in name or "-deepspeed" in name for name in names())
    assert precision("nvfp4", framework="torchtitan").name == "nvfp4"
    assert precision("bf16", framework="no such framework").name == "bf16"


@pytest.mark.parametrize("written", ["bf17", "", "int8", "not stated in json"])
def test_unknown_names(written: str) -> None:
    with pytest.raises(InputError, match=r"precision '.*' is not known.*allowed: bf16, fp16, fp32"):
        precision(written)
    with pytest.raises(InputError, match="nearest: 'mxfp8'"):
        precision("mxfp9")


@pytest.mark.parametrize(
    ("part", "name", "lacks"),
    [
        ("mi350x", "nvfp4", "nvfp4 (a scale per 16 elements)"),
        ("mi350x", "mxfp4", ""),
        ("b200-sxm", "nvfp4", ""),
        ("b200-sxm", "mxfp4", "mxfp4 (a scale per 32 elements)"),
        ("rtx-5090", "nvfp4", ""),
        ("rtx-5090", "mxfp8", "mxfp8 (a scale per 32 elements)"),
        ("h100-sxm-80gb", "nvfp4", "fp4"),
    ],
)
def test_parts_compute_in_the_blocks_that_they_state(part: str, name: str, lacks: str) -> None:
    assert lacking_format(accelerator(part), precision(name)) == lacks
