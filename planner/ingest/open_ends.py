"""What a launch leaves open: values that its script does not hold, and options that its program may add.

References
----------
Megatron-LM ``megatron/training/arguments.py``, ``parse_args``: a program may add options of its own to the parser.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from hardware.errors import InputError
from planner.ingest.bridge.overrides import OverrideKey
from planner.ingest.judged import LaunchInput
from planner.ingest.launch_text import LaunchText, unresolved_options
from planner.ingest.options import Fault, close_name, megatron_options, without_unknown
from planner.ingest.scripts.values import BLANK

_DECIDING: Final = frozenset(
    f"--{name}"
    for name in (
        *("num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size", "global-batch-size"),
        *("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"),
        *("expert-model-parallel-size", "expert-tensor-parallel-size", "num-experts", "moe-expert-parallel-size"),
        *("ds-sequence-parallel-size", "num-layers-per-virtual-pipeline-stage"),
        *("num-virtual-stages-per-pipeline-rank", "decoder-first-pipeline-num-layers"),
        *("decoder-last-pipeline-num-layers", "max-position-embeddings", "ffn-hidden-size", "num-query-groups"),
    )
)
"""Options without whose values nothing can be said of a launch."""
DECIDING_IN_TITAN: Final = frozenset(
    (
        *(
            f"--parallelism.{name}_degree"
            for name in (
                *("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel"),
                *("context_parallel", "expert_parallel", "expert_tensor_parallel"),
            )
        ),
        *(f"--training.{name}" for name in ("local_batch_size", "global_batch_size", "seq_len")),
    )
)
"""The same of torchtitan."""
_PROGRAMS: Final = frozenset(
    f"{name}.py"
    for name in (
        *("pretrain_gpt", "pretrain_mamba", "pretrain_hybrid", "pretrain_bert", "pretrain_t5", "pretrain_ict"),
        *("pretrain_retro", "pretrain_vision_classify", "train_rl"),
    )
)
"""Programs of Megatron-LM that take the options of its parser alone."""


def refuse_gaps(text: LaunchText, deciding: Collection[str] = _DECIDING) -> None:
    """Refuse a script that does not hold what its layout depends on: nothing it builds could be told.

    Parameters
    ----------
    text : LaunchText
        As read.
    deciding : collection of str
        Options, or keys of overrides, without whose values nothing can be said.

    Raises
    ------
    InputError
        Names the options and what their values wait for.
    """
    gaps = {**unresolved_options(text, deciding), **_unresolved_keys(text, deciding)}
    if gaps:
        told = ", ".join(f"{name} {value}" for name, value in gaps.items())
        first = next(iter(gaps))
        raise InputError(
            f"values are not in the file: {told}",
            allowed=f"them behind the file, such as -- {first}{' ' if first.startswith('--') else '='}VALUE",
        )


def deciding_keys(keys: Iterable[OverrideKey]) -> frozenset[str]:
    """Keys of overrides that stand for options without whose values nothing can be said."""
    return frozenset(name for key in keys if key.flag in _DECIDING for name in key.keys)


def _unresolved_keys(text: LaunchText, keys: Collection[str]) -> Mapping[str, str]:
    """Overrides ``key=value`` whose values the file does not hold, unless a later word gives one."""
    found: dict[str, str] = {}
    for word in text.arguments:
        name, sign, value = word.lstrip("+").partition("=")
        if sign and name in keys and not name.startswith("--"):
            found.pop(name, None)
            found |= {name: value.replace(BLANK, " ")} if any(gap in value for gap in text.unresolved) else {}
    return found


def refuse_missing(text: LaunchText, faults: Sequence[Fault]) -> None:
    """Refuse a launch whose missing options may stand in words that the file does not hold, such as ``"$@"``.

    Raises
    ------
    InputError
        Names the options and the words.
    """
    missing = [fault.argument for fault in faults if fault.rule.endswith("-option-missing")]
    previous = ("", *text.arguments)
    words = [
        word
        for word, before in zip(text.arguments, previous, strict=False)
        if any(word.strip("{}").startswith(gap) for gap in text.unresolved) and not before.startswith("--")
    ]
    whole = [word for word in text.arguments if word in ("$@", "$*") or re.match(r"\$\{?[@*]", word)]
    open_words = list(dict.fromkeys([*words, *whole]))
    if missing and open_words:
        told = ", ".join(open_words).replace(BLANK, " ")
        raise InputError(
            f"options are missing that may stand in what the file does not hold ({told}): {', '.join(missing)}",
            allowed=f"them behind the file, such as -- {missing[0]} VALUE",
        )


def own_options(words: Sequence[str], given: LaunchInput) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Arguments without options that another program than Megatron-LM's may add to the parser, and their names."""
    name = given.text.program.rpartition("/")[2]
    if not name.endswith(".py") or name in _PROGRAMS:
        return tuple(words), ()
    return without_unknown(words, megatron_options(given.version))


def foreign_notes(foreign: Sequence[str], given: LaunchInput) -> list[str]:
    """Name the options that a program must add for its launch to start; nothing where there are none."""
    if not foreign:
        return []
    options = megatron_options(given.version)
    near = {name: close_name(name, options) for name in foreign}
    told = ", ".join(f"{name}: did you mean {known}?" if known else name for name, known in near.items())
    program = given.text.program.rpartition("/")[2]
    return [f"{program} is not Megatron-LM's own program: it must add these options, which core does not know: {told}"]
