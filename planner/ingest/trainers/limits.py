"""What trainers refuse of settings that frameworks take: options that exclude each other, two places that differ.

References
----------
Hugging Face Transformers 5.12 ``integrations/deepspeed.py`` (``HfTrainerDeepSpeedConfig.trainer_config_finalize``: a
value of DeepSpeed's configuration that is not ``auto`` has to be the Trainer's). LLaMA-Factory
``model/model_utils/quantization.py`` (under ZeRO-3 and FSDP weights of 4 bits alone). Axolotl ``utils/distributed.py``
with accelerate ``parallelism_config.py`` (tensors and context beside replicas without shards),
``integrations/liger/args.py``, ``utils/schemas/validation.py``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from hardware.errors import InputError
from planner.ingest.deepspeed.sections import MOST_STAGE, section_of, stage_of, switched
from planner.ingest.deepspeed.text import read_config
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import Fault, whole
from planner.ingest.trainers.filled_in import trainer_of
from planner.ingest.trainers.words import switched_on, told_options, trains

_BITS: Final = "--quantization-bit"
_FOUR: Final = "4"
_MICRO: Final = "train_micro_batch_size_per_gpu"
_STEPS: Final = "gradient_accumulation_steps"
_BATCH: Final = "train_batch_size"
_USUAL_MICRO: Final = "8"
"""Of Hugging Face's ``TrainingArguments``, as one step of accumulation is."""
_AXOLOTL: Final = "--base-model"
_LIGER: Final = ("--liger-rms-norm", "--liger-fused-linear-cross-entropy")
_EIGHT_BITS: Final = ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit")


def trainer_limits(text: LaunchText, *, world: int, sharded: bool) -> tuple[Fault, ...]:
    """What the trainer of a launch refuses before its framework is asked; nothing in one of another program.

    Parameters
    ----------
    text : LaunchText
        With DeepSpeed's configuration and what the trainer fills in.
    world : int
        Number of ranks.
    sharded : bool
        PyTorch shards the weights.
    """
    told = told_options(text.arguments)
    try:
        config = read_config(text.config) if text.config else {}
    except InputError:  # told by the reader of the configuration
        config = {}
    found: list[Fault] = []
    if trainer_of(text, told) == "llamafactory":
        found += _bits(told, sharded=sharded or stage_of(config) == MOST_STAGE)
    if _AXOLOTL in told:
        found += _of_axolotl(told)
    if "--deepspeed" in told and text.accelerate is None and trains(text.program, told):
        found += _unlike(told, config, world)
    return tuple(found)


def _fault(rule: str, argument: str, message: str) -> Fault:
    return Fault(rule=rule, argument=argument, message=message)


def _bits(told: Mapping[str, str], *, sharded: bool) -> Iterator[Fault]:
    bits = told.get(_BITS, _FOUR)
    if sharded and bits.isdecimal() and bits != _FOUR:
        message = f"quantization_bit {bits} with sharded weights (ZeRO-3 or FSDP); allowed: 4, or ZeRO 0 to 2"
        yield _fault("llamafactory-bits", "quantization_bit", message)


def _of_axolotl(told: Mapping[str, str]) -> Iterator[Fault]:
    degrees = {
        name: whole(told.get(f"--{name.replace('_', '-')}", "")) or 1
        for name in ("tensor_parallel_size", "context_parallel_size", "dp_replicate_size", "dp_shard_size")
    }
    tp, cp, replicas, shards = degrees.values()
    if max(tp, cp) > 1 and replicas > 1 and shards == 1:
        stated = ", ".join(f"{name} {size}" for name, size in degrees.items() if size > 1)
        message = f"{stated} without shards; allowed: dp_shard_size above 1 with fsdp_config, or dp_replicate_size 1"
        yield _fault("accelerate-grid", "dp_replicate_size", message)
    for name in _LIGER:
        if tp > 1 and switched_on(told, name):
            plain = name.lstrip("-").replace("-", "_")
            message = f"{plain} with tensor_parallel_size {tp}; allowed: tensor_parallel_size 1, or without it"
            yield _fault("axolotl-liger-tp", plain, message)
    if tp > 1 and (optimizer := told.get("--optimizer", "")) in _EIGHT_BITS:
        message = f"optimizer {optimizer} with tensor_parallel_size {tp}; allowed: tensor_parallel_size 1, or 32 bits"
        yield _fault("axolotl-8bit-tp", "optimizer", message)


def _unlike(told: Mapping[str, str], config: Mapping[str, Any], world: int) -> Iterator[Fault]:
    """Values of DeepSpeed's configuration that are not the Trainer's."""
    micro = whole(told.get("--per-device-train-batch-size", _USUAL_MICRO)) or 0
    steps = whole(told.get("--gradient-accumulation-steps", "1")) or 0
    for key, own in ((_MICRO, micro), (_STEPS, steps), (_BATCH, micro * steps * world)):
        value = config.get(key)
        if own and isinstance(value, int) and value != own:
            yield _mismatch(key, str(value), str(own))
    for half in ("fp16", "bf16"):
        section = section_of(config, half)
        own_half = switched_on(told, f"--{half}") or switched_on(told, f"--{half}-full-eval")
        if "enabled" in section and switched(section, "enabled") != own_half:
            yield _mismatch(f"{half}.enabled", str(section["enabled"]).lower(), str(own_half).lower())


def _mismatch(key: str, value: str, own: str) -> Fault:
    message = f"{key} {value} in DeepSpeed's configuration, {own} by the Trainer's options; allowed: auto, or one value"
    return _fault("trainer-mismatch", key, message)
