"""Which loss a framework can be told to use, and the software that it makes."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.job import Software
from costmodels.workload.linear_loss import linear_loss
from hardware.errors import InputError
from planner.choices import Framework, Loss
from planner.nearest import choice

_KNOWN: Final = MappingProxyType(
    {
        Framework.MEGATRON: (Loss.WHOLE, Loss.FUSED, Loss.LINEAR),
        Framework.BRIDGE: (Loss.WHOLE, Loss.FUSED),
        Framework.NEMO: (Loss.WHOLE, Loss.FUSED),
        Framework.TORCHTITAN: (Loss.WHOLE, Loss.CHUNKED),
        Framework.DEEPSPEED: (Loss.WHOLE, Loss.FUSED, Loss.LIGER, Loss.CUT),
        Framework.GALVATRON: (Loss.WHOLE, Loss.FUSED),
        Framework.NONE: tuple(loss for loss in Loss if loss is not Loss.DEFAULT),
    }
)
"""``--cross-entropy-loss-fusion`` with ``--cross-entropy-fusion-impl``; ``loss.num_chunks``; the Hugging Face Trainer's
``use_liger_kernel`` and Axolotl's ``cut_cross_entropy`` under DeepSpeed."""
_TODAY: Final = MappingProxyType({Framework.TORCHTITAN: Loss.CHUNKED})
"""What plans for a framework are priced with where its preset of measured runs has another loss: every configuration of
torchtitan 0.3 chunks it."""


def loss_of(name: str, framework: Framework) -> Loss:
    """Return the loss that a user asks for.

    Raises
    ------
    InputError
        No such loss, or the framework has none of that kind.
    """
    loss, known = choice(Loss, name, "loss"), (Loss.DEFAULT, *_KNOWN[framework])
    if loss not in known:
        raise InputError(f"--loss {loss} with framework {framework}", allowed=", ".join(known))
    return loss


def with_todays_loss(tools: Software, framework: Framework) -> Software:
    """Return a framework's software with the loss of its configurations today."""
    return with_loss(tools, _TODAY.get(framework, Loss.DEFAULT))


def with_loss(tools: Software, loss: Loss, chunks: int = 0) -> Software:
    """Return software with a loss.

    Parameters
    ----------
    tools : Software
        What the job runs.
    loss : Loss
        ``default`` leaves it as it is.
    chunks : int
        Parts of a chunked loss; 0: as many as its source has.
    """
    if loss is Loss.DEFAULT:
        return tools
    if loss in (Loss.WHOLE, Loss.FUSED):
        return replace(tools, fused_loss=loss is Loss.FUSED, linear_loss=None)
    parts = linear_loss(loss.value)
    own = chunks if loss is Loss.CHUNKED and chunks else parts.chunks
    return replace(tools, fused_loss=False, linear_loss=replace(parts, chunks=own))


def said_loss(tools: Software) -> Loss:
    """Return the loss of software.

    Parameters
    ----------
    tools : Software
        What the job runs.

    Returns
    -------
    Loss
        Never ``default``.
    """
    if tools.linear_loss is not None:
        return Loss(tools.linear_loss.name)
    return Loss.FUSED if tools.fused_loss else Loss.WHOLE
