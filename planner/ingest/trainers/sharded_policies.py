"""Launches of verl and NeMo RL whose policy PyTorch shards, in the words of a trainer with FSDP.

References
----------
verl ``verl/trainer/config/engine/fsdp.yaml``, ``verl/workers/engine/fsdp/transformer_impl.py`` (``create_device_mesh``:
``fsdp_size`` ranks shard, the others are replicas), ``verl/utils/config.py`` (``validate_config``). NeMo RL
``examples/configs/grpo_math_1B.yaml`` (``dtensor_cfg``).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from planner.ingest.launch_text import LaunchText
from planner.ingest.open_ends import refuse_gaps
from planner.ingest.options import Fault
from planner.ingest.trainers.policies import PROGRAMS, fitting, number_of, program_of, settings_told

_ACTOR: Final = "actor_rollout_ref.actor"
_GRID: Final = "policy.dtensor_cfg"
_BY_FSDP: Final = ("", "fsdp", "fsdp2", "dp")
_NOTE: Final = (
    "settings of {name} that say nothing of the training of its policy are left out; rollouts, the reference model and "
    "what moves between them are not priced"
)


def sharded_program_of(text: LaunchText) -> str:
    """Name of the program whose policy a launch trains by FSDP or DTensor; empty where it is none of these."""
    if program_of(text):
        return ""
    told = settings_told(text.arguments)
    if told.get(f"{_GRID}.enabled", "").lower() == "true":
        return "NeMo RL"
    engines = (told.get("model_engine", ""), told.get(f"{_ACTOR}.strategy", ""), told.get(f"actor@{_ACTOR}", ""))
    rollouts = any(name.startswith(f"{_ACTOR}.") for name in told)
    return "verl" if rollouts and all(engine in _BY_FSDP for engine in engines) else ""


def of_sharded_policy(text: LaunchText, world: int) -> LaunchText:
    """A launch of these programs in the options of a trainer; any other as it is.

    Parameters
    ----------
    text : LaunchText
        As the user wrote it.
    world : int
        GPUs.

    Raises
    ------
    InputError
        A setting that decides on the batch has no value in the file.
    """
    name = sharded_program_of(text)
    if not name:
        return text
    told = settings_told(text.arguments)
    tp, cp = _degrees(told, name)
    batch = PROGRAMS[name].batch(told, cp)
    refuse_gaps(text, batch.deciding)
    dp = max(1, world // (tp * cp))
    samples = -(-batch.samples // dp)
    micro = fitting(batch.micro, samples, 1) or 1
    words = {
        "--model_name_or_path": told.get(PROGRAMS[name].model, ""),
        "--per_device_train_batch_size": str(micro),
        "--gradient_accumulation_steps": str(samples // micro),
        "--max_length": str(batch.seq),
        "--bf16": "true",
        "--fsdp": "full_shard",
        **_sharding(told, name, world),
    }
    words |= {option: str(size) for option, size in _axes(tp, cp) if size > 1}
    return replace(
        text,
        arguments=tuple(f"{option}={value}" for option, value in words.items() if value),
        program="",
        environment=None,
        notes=(*text.notes, *batch.notes, _NOTE.format(name=name)),
    )


def policy_faults(text: LaunchText, world: int) -> tuple[Fault, ...]:
    """What verl and NeMo RL refuse of the batch of a policy that PyTorch shards; nothing in another launch."""
    name = sharded_program_of(text)
    if not name:
        return ()
    told = settings_told(text.arguments)
    tp, cp = _degrees(told, name)
    batch, dp = PROGRAMS[name].batch(told, cp), world // (tp * cp)
    found = []
    if dp and batch.samples % dp:
        message = f"{batch.samples} samples of an update do not divide over {dp} replicas; allowed: a multiple of {dp}"
        found.append(Fault(rule="policy-batch", argument=batch.deciding[-1], message=message))
    prompts, mini = number_of(told, "data.train_batch_size", 0), number_of(told, f"{_ACTOR}.ppo_mini_batch_size", 0)
    if name == "verl" and mini > prompts > 0:
        message = f"ppo_mini_batch_size {mini} with data.train_batch_size {prompts}; allowed: up to {prompts}"
        found.append(Fault(rule="policy-batch", argument=f"{_ACTOR}.ppo_mini_batch_size", message=message))
    return tuple(found)


def _axes(tp: int, cp: int) -> tuple[tuple[str, int], ...]:
    return ("--tensor_parallel_size", tp), ("--context_parallel_size", cp)


def _degrees(told: Mapping[str, str], name: str) -> tuple[int, int]:
    """Tensor and context parallelism."""
    if name == "verl":
        lengths = (f"{_ACTOR}.{place}ulysses_sequence_parallel_size" for place in ("", "fsdp_config."))
        return 1, max(number_of(told, key, 1) for key in lengths)
    return number_of(told, f"{_GRID}.tensor_parallel_size", 1), number_of(told, f"{_GRID}.context_parallel_size", 1)


def _sharding(told: Mapping[str, str], name: str, world: int) -> Mapping[str, str]:
    """How states are sharded, what is recomputed, what lies in the host within a step."""
    if name != "verl":
        recomputes, host = (told.get(f"{_GRID}.{key}", "false") for key in ("activation_checkpointing", "cpu_offload"))
        return {"--gradient_checkpointing": recomputes.lower(), "--fsdp_config.offload_params": host.lower()}
    section = f"{_ACTOR}.fsdp_config"
    found = {
        "--gradient_checkpointing": told.get("actor_rollout_ref.model.enable_gradient_checkpointing", "true").lower(),
        "--fsdp_config.offload_params": told.get(f"{section}.offload_policy", "false").lower(),
        "--fsdp_config.reshard_after_forward": told.get(f"{section}.reshard_after_forward", "true").lower(),
    }
    group = number_of(told, f"{section}.fsdp_size", world)
    if group < world:
        found |= {"--dp_shard_size": str(group), "--dp_replicate_size": str(world // group)}
    return found
