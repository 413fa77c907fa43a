"""Launches of verl and NeMo RL as the flags of Megatron-LM that the training of their policy has.

Both build the model by Megatron-Bridge and set its fields from a section of their own; batches and lengths stand in
other sections, in samples. Rollouts, reference models and what moves between them are not part of a training step.

References
----------
verl ``verl/trainer/config/engine/megatron.yaml``, ``verl/workers/engine/megatron/transformer_impl.py`` (expert tensor
parallelism that is not stated is tp's), ``verl/workers/config/engine.py`` (no sequence parallelism without tp),
``verl/trainer/config/sft_trainer_engine.yaml``, ``verl/utils/megatron_utils.py`` (``check_mtp_config``).
NeMo RL ``nemo_rl/models/megatron/setup.py`` and ``examples/configs/grpo_math_1B_megatron.yaml``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from costmodels.workload.model import ModelSpec
from planner.ingest.adapters import Adapters, targets_named
from planner.ingest.bridge.override_words import bridge_names
from planner.ingest.bridge.overrides import override_keys, read_overrides
from planner.ingest.launch_text import LaunchText
from planner.ingest.open_ends import refuse_gaps
from planner.ingest.options import near_key, refuse_faults, whole
from planner.ingest.trainers.filled_in import preset_of_path
from planner.request import Framework
from planner.rules.proposal import facts_of, replicas_of

_REFERENCE: Final = re.compile(r"\$\{([\w.]+)\}")
_MOST_STEPS: Final = 5
"""References behind one another."""
_NOTHING: Final = ("", "null", "none")
_SPLIT: Final = ("pipeline_model_parallel_size", "tensor_model_parallel_size", "context_parallel_size")
_DEGREES: Final = (
    *_SPLIT,
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "virtual_pipeline_model_parallel_size"),
)
_NOT_PRICED: Final = (
    "settings of {name} that say nothing of the training of its policy are left out; rollouts, the reference model and "
    "what moves between them are not priced"
)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Samples of a step and of a micro-batch, tokens of a sample; ``deciding`` names the settings they follow from."""

    seq: int
    micro: int
    samples: int
    deciding: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Program:
    """Where a program on Megatron-Bridge has what a launch of Megatron-LM states.

    Attributes
    ----------
    section : str
        Its fields of Megatron-Bridge's model.
    inner : mapping of str to str
        Sections of other fields, by Megatron-Bridge's.
    chosen : tuple of str
        ``name=value`` of which one says that Megatron trains.
    model, nodes, per_node, rank, targets : str
        Settings of the model's path, the machines, and of adapters.
    usual_gpus : int
        GPUs of a machine where nothing is said; 0: nothing is known.
    ahead : str
        The switch without which layers of multi-token prediction are not built; empty: they are.
    batch : callable
        From settings and context parallelism.
    usual : mapping of str to str
        What it sets where nothing is said.
    """

    section: str
    inner: Mapping[str, str]
    chosen: tuple[str, ...]
    model: str
    nodes: str
    per_node: str
    rank: str
    targets: str
    batch: Callable[[Mapping[str, str], int], Batch]
    usual: Mapping[str, str] = field(default_factory=dict)
    ahead: str = ""
    usual_gpus: int = 0


def number_of(told: Mapping[str, str], name: str, default: int) -> int:
    """A setting as a whole number from 1; ``default`` where it states none."""
    return whole(told.get(name, "")) or default


def _on(told: Mapping[str, str], name: str) -> bool:
    return told.get(name, "").lower() == "true"


def _packed(name: str, tokens: int, seq: int) -> tuple[int, tuple[str, ...]]:
    """Samples of the longest kind that a micro-batch of so many tokens holds, and a note."""
    samples = max(1, tokens // seq)
    return samples, (f"samples are packed up to {tokens:,} tokens ({name}): {samples} of {seq:,}, the longest",)


def _of_actor(told: Mapping[str, str], cp: int) -> Batch:
    """The actor of verl: an update has the samples of a mini-batch of prompts."""
    actor, data = "actor_rollout_ref.actor", "data"
    lengths = (f"{data}.max_prompt_length", f"{data}.max_response_length")
    seq = sum(number_of(told, name, 512) for name in lengths)
    micro = number_of(told, f"{actor}.ppo_micro_batch_size_per_gpu", 1)
    notes: tuple[str, ...] = ()
    packed = f"{actor}.ppo_max_token_len_per_gpu"
    if _on(told, f"{actor}.use_dynamic_bsz"):
        micro, notes = _packed(packed, number_of(told, packed, 16_384) * cp, seq)
    prompts, answers = f"{actor}.ppo_mini_batch_size", "actor_rollout_ref.rollout.n"
    samples = number_of(told, prompts, 256) * number_of(told, answers, 1)
    return Batch(seq=seq, micro=micro, samples=samples, deciding=(*lengths, prompts, answers), notes=notes)


def _of_tuning(told: Mapping[str, str], cp: int) -> Batch:
    """The supervised fine-tuning of verl."""
    length, packed, size = "data.max_length", "data.max_token_len_per_gpu", "data.train_batch_size"
    seq = number_of(told, length, 1024)
    micro = number_of(told, "data.micro_batch_size_per_gpu", 4)
    notes: tuple[str, ...] = ()
    if told.get("data.use_dynamic_bsz", "true").lower() == "true":
        micro, notes = _packed(packed, number_of(told, packed, 8192) * cp, seq)
    return Batch(seq=seq, micro=micro, samples=number_of(told, size, 256), deciding=(length, size), notes=notes)


def _of_nemo(told: Mapping[str, str], _: int) -> Batch:
    """A policy of NeMo RL; packed sequences hold as many tokens as micro-batches of whole ones."""
    names = ("max_total_sequence_length", "train_micro_batch_size", "train_global_batch_size")
    deciding = tuple(f"policy.{name}" for name in names)
    seq, micro, samples = (number_of(told, name, usual) for name, usual in zip(deciding, (4096, 1, 512), strict=True))
    return Batch(seq=seq, micro=micro, samples=samples, deciding=deciding)


_OF_VERL: Final = MappingProxyType(
    {
        "model.sequence_parallel": "true",
        "ddp.use_distributed_optimizer": "true",
        "model.moe_token_dispatcher_type": "alltoall",
    }
)
PROGRAMS: Final = MappingProxyType(
    {
        "verl": Program(
            section="actor_rollout_ref.actor.megatron",
            inner=MappingProxyType(
                {
                    "actor_rollout_ref.actor.megatron.override_transformer_config": "model",
                    "actor_rollout_ref.actor.megatron.override_ddp_config": "ddp",
                    "actor_rollout_ref.actor.optim.override_optimizer_config": "optimizer",
                }
            ),
            chosen=("model_engine=megatron", "actor_rollout_ref.actor.strategy=megatron"),
            model="actor_rollout_ref.model.path",
            nodes="trainer.nnodes",
            per_node="trainer.n_gpus_per_node",
            rank="actor_rollout_ref.model.lora.rank",
            targets="actor_rollout_ref.model.lora.target_modules",
            batch=_of_actor,
            usual=_OF_VERL,
            ahead="actor_rollout_ref.model.mtp.enable",
            usual_gpus=8,
        ),
        "verl's fine-tuning": Program(
            section="engine",
            inner=MappingProxyType(
                {
                    "engine.override_transformer_config": "model",
                    "engine.override_ddp_config": "ddp",
                    "optim.override_optimizer_config": "optimizer",
                }
            ),
            chosen=("engine=megatron", "optim=megatron"),
            model="model.path",
            nodes="trainer.nnodes",
            per_node="trainer.n_gpus_per_node",
            rank="model.lora.rank",
            targets="model.lora.target_modules",
            batch=_of_tuning,
            usual=_OF_VERL,
            ahead="model.mtp.enable",
        ),
        "NeMo RL": Program(
            section="policy.megatron_cfg",
            inner=MappingProxyType(
                {
                    "policy.megatron_cfg.model_overrides": "model",
                    "policy.megatron_cfg.distributed_data_parallel_config": "ddp",
                    "policy.megatron_cfg.optimizer": "optimizer",
                }
            ),
            chosen=("policy.megatron_cfg.enabled=true",),
            model="policy.model_name",
            nodes="cluster.num_nodes",
            per_node="cluster.gpus_per_node",
            rank="policy.megatron_cfg.peft.dim",
            targets="policy.megatron_cfg.peft.target_modules",
            batch=_of_nemo,
            usual=MappingProxyType({"model.moe_token_dispatcher_type": "alltoall"}),
        ),
    }
)
_OF_FSDP: Final = MappingProxyType(
    {
        "ddp.use_megatron_fsdp": "true",
        "ddp.use_distributed_optimizer": "true",
        "ddp.data_parallel_sharding_strategy": "optim_grads_params",
        "ddp.overlap_grad_reduce": "true",
        "checkpoint.ckpt_format": "fsdp_dtensor",
    }
)
"""What Megatron FSDP sets with it (Megatron-Bridge ``training/utils/config_utils.py``, ``create_ddp_config``, by verl's
``utils/megatron_utils.py``); its checkpoints are verl's own (``utils/checkpoint/megatron_checkpoint_manager.py``)."""
_PEFT: Final = "policy.megatron_cfg.peft.enabled"
_RECOMPUTES: Final = "policy.megatron_cfg.activation_checkpointing"
_COLOCATED: Final = "policy.generation.colocated"


def settings_told(words: Sequence[str]) -> Mapping[str, str]:
    """Settings as Hydra and OmegaConf take them: the last of a name counts, ``${other.name}`` is another's value.

    Parameters
    ----------
    words : sequence of str
        ``name=value``, with or without ``+``, ``++`` or ``--`` before it.
    """
    told = {}
    for word in words:
        name, sign, value = word.lstrip("+-").partition("=")
        if sign:
            told[name] = value.strip().strip("'\"")
    return MappingProxyType({name: _value(told, value) for name, value in told.items()})


def _value(told: Mapping[str, str], value: str) -> str:
    for _ in range(_MOST_STEPS):
        found = _REFERENCE.fullmatch(value)
        if found is None or found[1] not in told:
            break
        value = told[found[1]]
    return value


def program_of(text: LaunchText) -> str:
    """Name of the program whose policy a launch trains by Megatron; empty where it is none of these."""
    told = settings_told(text.arguments)
    for name, program in PROGRAMS.items():
        pairs = (chosen.partition("=") for chosen in program.chosen)
        if any(told.get(key, "").lower() == value for key, _, value in pairs):
            return name
        degrees = (f"{program.section}.{degree}" for degree in _SPLIT)
        if name == "verl" and any(degree in told for degree in degrees):
            return name
    return ""


def _stated(told: Mapping[str, str], name: str, usual: int) -> int:
    """A setting as a whole number, ``usual`` where it is not told; 0 where its value is not in the file."""
    return number_of(told, name, 0) if name in told else usual


def gpus_of_policy(text: LaunchText, name: str) -> int:
    """GPUs that train by the settings of a program of these; 0 for none (an empty name), or where they do not say."""
    if not name:
        return 0
    program, told = PROGRAMS[name], settings_told(text.arguments)
    nodes, per_node = _stated(told, program.nodes, 1), _stated(told, program.per_node, program.usual_gpus)
    if told.get(f"{_COLOCATED}.enabled", "true").lower() != "false":
        return nodes * per_node
    taken = (number_of(told, f"{_COLOCATED}.resources.{name}", 0) for name in ("num_nodes", "gpus_per_node"))
    others, gpus = taken  # of generation, which has machines of its own, or a part of the only one
    return (nodes - others) * per_node if others and nodes > 1 else nodes * (per_node - gpus)


def of_policy(text: LaunchText, model: ModelSpec | None, world: int) -> tuple[LaunchText, ModelSpec | None]:
    """A launch in Megatron-LM's flags, and the model that it names.

    Parameters
    ----------
    text : LaunchText
        Of one of these programs.
    model : ModelSpec or None
        As the user names it; None: as the launch does.
    world : int
        GPUs.

    Raises
    ------
    InputError
        A setting that decides on the layout has no value in the file, or is none that Megatron-Bridge takes.
    """
    name = program_of(text)
    program, told = PROGRAMS[name], settings_told(text.arguments)
    batch = program.batch(told, number_of(told, f"{program.section}.{_SPLIT[2]}", 1))
    refuse_gaps(text, {*batch.deciding, *(f"{program.section}.{degree}" for degree in _DEGREES)})
    found = model or preset_of_path(told.get(program.model, ""))
    notes = [*batch.notes]
    if model is None and found is not None:
        notes.append(f"the model is taken as {found.name}, by its path")
    if found is not None and program.ahead and not _on(told, program.ahead):
        found = replace(found, mtp_layers=0, mtp_kind=None)
    settings = _as_bridge(program, told)
    notes += _unread(program, told)
    read = read_overrides([f"{key}={value}" for key, value in settings.items()], Framework.BRIDGE)
    refuse_faults(read.faults, f"settings of {name}")
    grid = [number_of(settings, f"model.{degree}", 1) for degree in _SPLIT]
    micro = fitting(batch.micro, batch.samples, replicas_of(world, grid[1], grid[2], grid[0])) if batch.notes else 0
    words = [*read.flags, "--seq-length", str(batch.seq), "--max-position-embeddings", str(batch.seq)]
    words += ["--micro-batch-size", str(micro or batch.micro), "--global-batch-size", str(batch.samples)]
    words += [] if "--fp16" in words or "--bf16" in words else ["--bf16"]
    words += ["--moe-grouped-gemm"] if found and facts_of(found).experts and "--moe-grouped-gemm" not in words else []
    notes.append(_NOT_PRICED.format(name=name))
    plain = replace(text, arguments=tuple(words), program="", environment=None, notes=(*text.notes, *notes))
    return plain, found


def adapters_of_policy(text: LaunchText) -> Adapters | None:
    """What a launch of these programs adapts; None where it trains its model."""
    name = program_of(text)
    if not name:
        return None
    program, told = PROGRAMS[name], settings_told(text.arguments)
    rank = number_of(told, program.rank, 0) if _on(told, _PEFT) or name != "NeMo RL" else 0
    names = told.get(program.targets, "").strip("[]").replace("'", "").replace('"', "").split(",")
    return Adapters(rank=rank, targets=targets_named(names)) if rank else None


def _as_bridge(program: Program, told: Mapping[str, str]) -> Mapping[str, str]:
    """Settings as overrides of Megatron-Bridge that decide on a layout or its price."""
    known = _fields()
    settings = dict(program.usual)
    for name, key in _keys(program, told):
        if told[name].lower() not in _NOTHING:
            settings |= {key: told[name]} if key in known else _of_another_name(key, told[name])
    if _on(told, _RECOMPUTES):
        whole_layers = {"model.recompute_method": "uniform", "model.recompute_num_layers": "1"}
        kind = settings.get("model.recompute_granularity", "full")
        settings |= {"model.recompute_granularity": kind, **(whole_layers if kind == "full" else {})}
    elif _RECOMPUTES in told:
        settings = {name: value for name, value in settings.items() if not name.startswith("model.recompute_")}
    if settings.get("model.tensor_model_parallel_size", "1") == "1":
        settings["model.sequence_parallel"] = "false"
    return settings


def _fields() -> frozenset[str]:
    """Fields of Megatron-Bridge's configuration that are read."""
    return frozenset(name for key in override_keys(Framework.BRIDGE) for name in key.keys)


def _keys(program: Program, told: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Settings of the sections of a program, with the field of Megatron-Bridge that each sets; the innermost last."""
    for prefix, section in sorted({**program.inner, program.section: "model"}.items(), key=lambda pair: len(pair[0])):
        for name in told:
            if name.startswith(f"{prefix}."):
                yield name, f"{section}.{name.removeprefix(f'{prefix}.')}"


def _unread(program: Program, told: Mapping[str, str]) -> Sequence[str]:
    """Name the settings of its section of the model that none is known for, with the name that they are near to."""
    known = _fields()
    of_model = {key.partition(".")[2] for key in known if key.startswith("model.")}
    names = []
    for name, key in _keys(program, told):
        section, _, field_name = key.partition(".")
        of_the_model = section == "model" and "." not in field_name and told[name].lower() not in _NOTHING
        if of_the_model and key not in known and not _of_another_name(key, "true"):
            names.append(f"{field_name}{near_key(field_name, of_model)}")
    return [f"of {program.section} not read: {', '.join(names)}"] if names else []


def _of_another_name(key: str, value: str) -> Mapping[str, str]:
    """A setting that Megatron-Bridge has in another section."""
    if key == "model.use_megatron_fsdp" and value.lower() == "true":
        return _OF_FSDP
    if key in ("model.use_distributed_optimizer", "model.use_megatron_fsdp"):
        return {f"ddp.{key.partition('.')[2]}": value}
    if key == "model.moe_enable_deepep" and value.lower() == "true":
        return {"model.moe_flex_dispatcher_backend": "deepep"}
    return {}


def names_of_policy(text: LaunchText) -> Mapping[str, str]:
    """Settings that say what flags of Megatron-LM say, by flag: the one that the launch has, or where it belongs.

    Parameters
    ----------
    text : LaunchText
        Of one of these programs.
    """
    program = PROGRAMS[program_of(text)]
    told = {key: name for name, key in _keys(program, settings_told(text.arguments))}
    inner = {section: prefix for prefix, section in program.inner.items()}
    found: dict[str, str] = {}
    for flag, keys in bridge_names().items():
        stated = [told[key] for key in keys if key in told]
        section, _, name = keys[0].partition(".")
        own = program.section if name in (*_DEGREES, "sequence_parallel") else inner.get(section, "")
        if stated or own:
            found[flag] = stated[0] if stated else f"{own}.{name}"
    return found


def fitting(most: int, samples: int, dp: int) -> int:
    """The largest micro-batch up to ``most`` that divides the samples of a replica; 0 where replicas do not divide."""
    if dp < 1 or samples % dp:
        return 0
    return next(size for size in range(min(most, samples // dp), 0, -1) if samples // dp % size == 0)
