"""What a launcher can be told of a layout, where that is less than its framework's rules allow.

Hugging Face's Trainer runs modules as they are: without a pipeline, without experts that are spread, with all layers
recomputed or none. What is planned for a launch of it, or named near one, must be what it can be told.

References
----------
Hugging Face Transformers 5.12 ``training_args.py`` (``--fsdp``; degrees come with accelerate's ``parallelism_config``),
accelerate 1.15 ``parallelism_config.py``; ms-swift ``swift/arguments/base_args`` (``deepspeed_autotp_size`` with ZeRO 0
to 2, ``sequence_parallel_size``); LLaMA-Factory ``examples/deepspeed`` (``ds_z2_autotp_config.json``; no sequence
parallelism); OpenRLHF ``openrlhf/utils/deepspeed`` (``ds_tensor_parallel_size``, ``ring_attn_size``).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from costmodels.layout import Granularity, Layout
from hardware.errors import InputError
from planner.choices import Framework

_MOST_STAGE: Final = 3
_WHOLE: Final = ("auto", "none", "full")
"""Recompute of all layers alike, in words."""


@dataclass(frozen=True, kw_only=True)
class Sayable:
    """What a launcher can be told; everything by default.

    Attributes
    ----------
    key, program : str
        Its name in files, and in words; empty for the framework itself.
    tensor, context, pipeline, experts : bool
        Degrees: tensor and context parallelism; stages; experts over ranks.
    modules : bool
        Recompute of some layers, modules or operations.
    groups : bool
        ZeRO over groups of replicas.
    of_nodes : bool
        These are the accelerators of a node each, and of no other size.
    zero : tuple of int
        Stages of sharding that it has; empty: those of the framework.
    tensor_zero : int
        Highest of them beside tensor parallelism.
    """

    key: str = ""
    program: str = ""
    tensor: bool = True
    context: bool = True
    pipeline: bool = True
    experts: bool = True
    modules: bool = True
    groups: bool = True
    of_nodes: bool = False
    zero: tuple[int, ...] = ()
    tensor_zero: int = _MOST_STAGE

    def says(self, layout: Layout) -> bool:
        """Whether the launcher can be told a layout."""
        runs = [run.strategy for stage in layout.stages for run in stage.strategies]
        kept = {run.recompute.granularity for run in runs}
        whole = len(kept) == 1 and kept <= {Granularity.NONE, Granularity.FULL}
        grids = all(self.says_grid(run.tp, run.cp, layout.pp, run.ep, run.zero) for run in runs)
        groups = self.groups or all(not run.shard_group for run in runs)
        return grids and groups and (self.modules or whole)

    def says_grid(self, tp: int, cp: int, pp: int, ep: int, zero: int) -> bool:
        """Whether the launcher can be told degrees and a stage of sharding."""
        told = ((self.tensor, tp), (self.context, cp), (self.pipeline, pp), (self.experts, ep))
        beside = tp == 1 or zero <= self.tensor_zero
        return all(can or degree == 1 for can, degree in told) and beside and (not self.zero or zero in self.zero)

    @property
    def lacks(self) -> str:
        """What it cannot be told, in words; empty where it can be told everything."""
        return ", ".join(self._lacks())

    def _lacks(self) -> Iterator[str]:
        named = {"tensor": self.tensor, "context": self.context, "pipeline": self.pipeline, "expert": self.experts}
        degrees = [name for name, can in named.items() if not can]
        if degrees:
            yield f"no {' or '.join(filter(None, (', '.join(degrees[:-1]), degrees[-1])))} parallelism"
        if self.tensor and self.tensor_zero < _MOST_STAGE:
            yield f"tensor parallelism with ZeRO up to {self.tensor_zero}"
        if not self.groups:
            yield "no shards over groups of replicas"
        if self.of_nodes:
            yield "shards over the GPUs of a node or over all of them"
        if not self.modules:
            yield "recompute of all layers or of none"

    def refuse(self, pinned: Mapping[str, int], recompute: str) -> None:
        """Refuse pins that no layout which the launcher can be told has.

        Parameters
        ----------
        pinned : mapping of str to int
            Degrees by name.
        recompute : str
            As asked for.

        Raises
        ------
        InputError
            Names the pin and what the launcher cannot be told.
        """
        rules = {"tp": self.tensor, "cp": self.context, "pp": self.pipeline, "vpp": self.pipeline, "ep": self.experts}
        wrong = [f"{name}={pinned[name]}" for name, can in rules.items() if pinned.get(name, 1) > 1 and not can]
        if self.zero and pinned.get("zero", self.zero[0]) not in self.zero:
            wrong.append(f"zero={pinned['zero']}")
        if not self.groups and pinned.get("shard_group"):
            wrong.append(f"shard_group={pinned['shard_group']}")
        if pinned.get("tp", 1) > 1 and pinned.get("zero", 0) > self.tensor_zero:
            wrong.append(f"tp={pinned['tp']} with zero={pinned['zero']}")
        asked = [f"--fix {pin}" for pin in wrong]
        asked += [] if self.modules or recompute in _WHOLE else [f"--recompute {recompute}"]
        if asked:
            stages = f"; ZeRO {', '.join(map(str, self.zero))}" if self.zero else ""
            raise InputError(
                f"{', '.join(asked)}: {self.program} cannot be told so", allowed=f"what it can: {self.lacks}{stages}"
            )


EVERYTHING: Final = Sayable()
TRAINER: Final = Sayable(
    key="trainer-deepspeed",
    program="Hugging Face's Trainer on DeepSpeed",
    pipeline=False,
    experts=False,
    modules=False,
    groups=False,
    tensor_zero=2,
)
"""Also what is built on it, such as ms-swift, TRL and Axolotl."""
LLAMAFACTORY: Final = replace(
    TRAINER, key="llamafactory-deepspeed", program="LLaMA-Factory on DeepSpeed", context=False
)
OPENRLHF: Final = replace(TRAINER, key="openrlhf", program="OpenRLHF on DeepSpeed")
_FSDP: Final = replace(TRAINER, zero=(0, 2, 3), tensor_zero=_MOST_STAGE)
"""PyTorch's own sharding of states, and replicas."""
FSDP_GRID: Final = replace(_FSDP, key="trainer-fsdp-grid", program="Hugging Face's Trainer with FSDP 2", groups=True)
"""FSDP 2 with the degrees of accelerate's settings, or of Axolotl's."""
FSDP: Final = replace(
    _FSDP, key="trainer-fsdp", program="Hugging Face's Trainer with FSDP", tensor=False, context=False
)
"""FSDP 2 by the Trainer's own options, which have no degrees; replicas."""
FSDP_1: Final = replace(
    FSDP, key="trainer-fsdp-1", program="Hugging Face's Trainer with FSDP 1", groups=True, of_nodes=True
)
"""FSDP 1, whose hybrid strategies shard over the accelerators that a node's processes see: no option has another size
(PyTorch 2.8, ``torch.distributed.fsdp._init_utils``: ``_init_intra_and_inter_node_groups``)."""
TRAINERS: Final = MappingProxyType({one.key: one for one in (TRAINER, LLAMAFACTORY, OPENRLHF, FSDP_GRID, FSDP, FSDP_1)})
"""What trainers can be told, by key."""


def trainer_named(key: str) -> Sayable:
    """Return what a trainer can be told; everything for an empty key.

    Raises
    ------
    InputError
        The key is not known.
    """
    if not key:
        return EVERYTHING
    found = TRAINERS.get(key)
    if found is None:
        raise InputError(f"trainer {key!r} is not known", allowed=", ".join(TRAINERS))
    return found


def trainer_of(framework: Framework, *, adapters: bool) -> str:
    """Key of the trainer that alone runs such a job; empty: the framework itself does.

    Adapters on DeepSpeed are those of Hugging Face's trainers (PEFT): Megatron-DeepSpeed has none.
    """
    return TRAINER.key if adapters and framework is Framework.DEEPSPEED else ""
