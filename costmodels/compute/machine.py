"""An accelerator as the kernels see it: rates in a number format at a clock, and the constants of its generation."""

from dataclasses import dataclass
from types import MappingProxyType

from costmodels.efficiency import Efficiency, Generation, SharedEfficiency
from costmodels.job import Precision
from costmodels.precision import names, precision
from costmodels.table import Floats
from hardware.cluster import Accelerator
from hardware.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Accelerator, efficiencies and clock together.

    ``in_step`` says that kernels run inside a training step; ``block_scaled`` that low-precision operands have a scale
    per block; ``early_release`` that the software is of the part's first year. ``clock`` is the sustained clock over
    the accelerator's highest clock (scalar, or shape (S,)); ``multiprocessors`` falls back to the generation's where
    the catalogue states none.
    """

    accelerator: Accelerator
    generation: Generation
    shared: SharedEfficiency
    clock: Floats | float
    multiprocessors: int
    in_step: bool = False
    block_scaled: bool = False
    early_release: bool = False

    def rate_flops_per_s(self, number_format: str) -> Floats | float:
        """Return the quoted dense peak in a number format at the clock [FLOP/s].

        Raises
        ------
        InputError
            When the accelerator has no such format.
        """
        peak = float(getattr(self.accelerator.peak, number_format, 0.0))
        if peak <= 0.0:
            raise lacks(self.accelerator, number_format)
        return peak * self.clock

    def gemm_math(self, number_format: str) -> float:
        """Share of the quoted peak that large products reach; formats without a constant of their own use bf16's.

        Inside a training step (``in_step``) products run below their isolated rate: operands come from memory, not from
        a cache that the last repetition warmed, and other kernels' traffic and power go on beside them.
        """
        math, training = self.generation.gemm.math, self.generation.training
        share = training.get(number_format, training["bf16"]) if self.in_step else 1.0
        early = self.in_step and self.early_release and number_format in LOW_PRECISION
        share = share * (self.generation.early_math if early else 1.0)
        scaled = self.shared.block_scaled_math if self.block_scaled and number_format == "fp8" else 1.0
        return scaled * share * math.get(number_format, math["bf16"])


def lacking_format(accelerator: Accelerator, recipe: Precision) -> str:
    """Return the format of a recipe's products that an accelerator does not compute in; empty when it has it.

    Products with a scale per block of elements are taken from the blocks that the part states (``fp8_blocks``,
    ``fp4_blocks``).
    """
    if getattr(accelerator.peak, recipe.gemm, 0.0) <= 0.0:
        return recipe.gemm
    stated = accelerator.fp4_blocks if recipe.gemm == "fp4" else accelerator.fp8_blocks
    if not recipe.scale_block or recipe.scale_block in stated:
        return ""
    name = _OF_BLOCKS.get((recipe.gemm, recipe.scale_block), recipe.gemm)
    return f"{name} (a scale per {recipe.scale_block} elements)"


def recipes_on(accelerator: Accelerator) -> tuple[str, ...]:
    """Return the names of the recipes whose products an accelerator computes in."""
    return tuple(name for name in names() if not lacking_format(accelerator, precision(name)))


def refuse_format(accelerator: Accelerator, recipe: Precision) -> None:
    """Raise InputError where an accelerator does not compute in the format of a recipe's products."""
    lacking = lacking_format(accelerator, recipe)
    if lacking:
        raise lacks(accelerator, lacking)


def lacks(accelerator: Accelerator, number_format: str) -> InputError:
    """Return the error of an accelerator without a format."""
    return InputError(
        f"{accelerator.name} does not compute in {number_format}",
        allowed=", ".join(recipes_on(accelerator)) or "an accelerator with a peak rate",
        where="precision",
    )


_OF_BLOCKS = MappingProxyType(
    {("fp8", 32): "mxfp8", ("fp8", 128): "fp8-blockwise", ("fp4", 16): "nvfp4", ("fp4", 32): "mxfp4"}
)
LOW_PRECISION = ("fp8", "fp4")
ELEMENT_BYTES = MappingProxyType({"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5})


def machine_of(
    accelerator: Accelerator, efficiency: Efficiency, *, clock: Floats | float = 1.0, in_step: bool = False
) -> Machine:
    """Join an accelerator with the constants of its generation.

    Parameters
    ----------
    accelerator : Accelerator
        The accelerator.
    efficiency : Efficiency
        Constants of all generations.
    clock : array or float
        Sustained clock over the highest clock [1].
    in_step : bool
        Whether kernels run inside a training step rather than alone, again and again.

    Returns
    -------
    Machine
        What the kernels need.
    """
    generation = efficiency.generation(accelerator)
    return Machine(
        accelerator=accelerator,
        generation=generation,
        shared=efficiency.shared,
        clock=clock,
        multiprocessors=accelerator.multiprocessors or generation.multiprocessors,
        in_step=in_step,
    )
