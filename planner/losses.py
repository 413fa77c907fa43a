"""Which loss a framework can be told to use, and the software that it makes."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.job import Software
from costmodels.software import software
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
SOFTWARE: Final = MappingProxyType(
    {
        Framework.MEGATRON: "megatron",
        Framework.BRIDGE: "megatron-bridge",
        Framework.NEMO: "nemo-2",
        Framework.TORCHTITAN: "torchtitan",
        Framework.DEEPSPEED: "deepspeed-flash",
        Framework.GALVATRON: "galvatron",
        Framework.NONE: "megatron",
    }
)
"""What a plan made today is priced with; older eras are for measured runs."""
NO_FUSED_LOSS_SINCE: Final = "0.18"
"""Core whose parser refuses Transformer Engine's loss: 0.18.2 and 0.19 (``training/arguments.py``), not 0.18.0."""
_NEMO_16_BIT: Final = "nemo-2-bf16"
_TODAY: Final = MappingProxyType({Framework.TORCHTITAN: Loss.CHUNKED})
"""What plans for a framework are priced with where its preset of measured runs has another loss: every configuration of
torchtitan 0.3 chunks it."""
_OWN_KERNELS: Final = frozenset({Loss.LIGER})
"""Losses that come with kernels for norms, rotary embedding and gated activations: the Trainer's ``use_liger_kernel``
patches all of them (linkedin/Liger-Kernel transformers/monkey_patch.py, ``apply_liger_kernel_to_llama`` and its likes:
``rope``, ``rms_norm``, ``swiglu`` and ``fused_linear_cross_entropy`` are on by default)."""


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


def usual_software(framework: Framework, gemm: str) -> Software:
    """Return what plans for a framework are priced with, with the loss of its configurations today.

    Parameters
    ----------
    framework : Framework
        Who runs it.
    gemm : str
        Format that products run in, such as ``bf16``.
    """
    nemo_16_bit = framework is Framework.NEMO and gemm in ("bf16", "fp16")
    tools = software(_NEMO_16_BIT if nemo_16_bit else SOFTWARE[framework])
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
    if loss in _OWN_KERNELS:
        tools = replace(tools, fused_norms=True, fused_kernels=True)
    return replace(tools, fused_loss=False, linear_loss=replace(parts, chunks=own))


def loss_words(tools: Software) -> str:
    """Say how software computes the loss, such as ``cut, part by part with the output matrix``."""
    said, parts = said_loss(tools), tools.linear_loss
    if parts is None:
        return f"{said}, on all logits of a micro-batch" + (", by one kernel" if said is Loss.FUSED else "")
    cut = f", in {parts.chunks} chunks of the sequence" if parts.chunks else ""
    return f"{said}, part by part with the output matrix{cut}"


def refused_loss(tools: Software, framework: Framework) -> str:
    """Say that no launch of today's framework takes the loss of software, and what does; empty where one takes it."""
    if framework is not Framework.MEGATRON:
        return ""
    if tools.fused_loss:
        taken = f"--loss whole, an export with --framework-version 0.17, or --framework {Framework.BRIDGE}"
        return f"the parser of Megatron-LM core {NO_FUSED_LOSS_SINCE}.2 and later refuses the fused loss: take {taken}"
    if tools.linear_loss is not None:
        return f"no release of Megatron-LM has the loss {tools.linear_loss.name}: take --loss whole"
    return ""


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
