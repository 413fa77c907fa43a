"""Launches that are read as those of a framework that they are not for."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError
from planner.ingest.judged import LaunchInput
from planner.ingest.options import Fault
from planner.ingest.trainer_words import trainer_table
from planner.request import Framework

_SIGNS: Final = MappingProxyType(
    {
        Framework.TORCHTITAN: ("--parallelism.", "--training.", "--activation_checkpoint.", "--job."),
        Framework.NEMO: ("trainer.strategy.", "trainer.num_nodes=", "trainer.devices="),
        Framework.BRIDGE: ("model.", "train.", "optimizer.", "ddp.", "dataset."),
        Framework.DEEPSPEED: ("--deepspeed",),
        Framework.MEGATRON: ("--tensor-model-parallel-size", "--num-layers", "--hidden-size", "--micro-batch-size"),
    }
)
"""How words begin that one framework alone takes."""
_SHARED: Final = MappingProxyType(
    {
        Framework.BRIDGE: (Framework.NEMO, Framework.DEEPSPEED, Framework.GALVATRON),
        Framework.DEEPSPEED: (Framework.GALVATRON, Framework.BRIDGE, Framework.NEMO),
        Framework.MEGATRON: (Framework.DEEPSPEED, Framework.GALVATRON, Framework.BRIDGE, Framework.NEMO),
        Framework.NEMO: (Framework.DEEPSPEED, Framework.GALVATRON),
        Framework.TORCHTITAN: (),
    }
)
"""Who takes such words too, or passes them by."""
_SIZES: Final = 5
"""Missing options among the six that every launch of Megatron-LM has."""


def refuse_other_framework(given: LaunchInput) -> None:
    """Refuse a launch in the words of another framework than it is to be judged by.

    Raises
    ------
    InputError
        Names the framework whose words they are.
    """
    program = given.text.program
    if program in trainer_table() and given.framework is not Framework.DEEPSPEED and given.text.accelerate is None:
        raise InputError(
            f"this is a launch of {program}, which trains on DeepSpeed", allowed=f"--framework {Framework.DEEPSPEED}"
        )
    for framework, signs in _SIGNS.items():
        if given.framework is framework or given.framework in _SHARED[framework]:
            continue
        found = [word.partition("=")[0] for word in given.text.arguments if word.startswith(signs)]
        found = [word for word in found if word.startswith("--") is signs[0].startswith("--")]
        if found:
            raise InputError(
                f"this looks like a launch of {framework}, as it has {found[0]}", allowed=f"--framework {framework}"
            )


def refuse_foreign(program: str, foreign: Sequence[str], faults: Sequence[Fault]) -> None:
    """Refuse arguments of which none is Megatron-LM's, for a program that is not its own either.

    Raises
    ------
    InputError
        Names the program.
    """
    missing = [fault for fault in faults if fault.rule == "megatron-option-missing"]
    if foreign and len(missing) >= _SIZES:
        name = program.rpartition("/")[2]
        raise InputError(
            f"the arguments of {name} are not Megatron-LM's ({', '.join(foreign[:3])})",
            allowed="a launch of Megatron-LM, or --framework with the framework that it is for",
        )
