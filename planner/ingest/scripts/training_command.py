"""Which command of a script starts the training, also in scripts that it calls, and what else it starts."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError
from hardware.text_file import is_file, read_text_file
from planner.ingest.scripts.pieces import whole_script
from planner.ingest.scripts.script import MOST_SCRIPT_BYTES, ShellCommand, ShellScript, read_script
from planner.ingest.trainers.words import started_trainer

_SILENT: Final = (
    *("echo", "printf", "cp", "mv", "cat", "ls", "cd", "source", "sed", "awk", "grep", "git", "chmod", "rm", "mkdir"),
    *("touch", "ln", "pip", "wget", "curl", "tar"),
)
_SHELLS: Final = ("bash", "sh", "sbatch")
_LAUNCHERS: Final = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic")
_STARTERS: Final = ("torchrun", "python", "python3", "deepspeed", "srun", "mpirun", "accelerate", "nemo", "exec")
_TOOLS: Final = ("pip", "venv", "ensurepip", "build", "http.server")
"""Modules of Python that install or serve."""
_WHOLE: Final = (*_STARTERS, "bash", "sh", "sbatch")
"""How a command begins that is a launch of its own."""
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*=")
_MODULE: Final = ("-m", "--module")
_CHOOSES: Final = ("--recipe", "--model_recipe_name")
SWIFT: Final = "megatron swift"
"""The program of ms-swift's ``megatron sft``."""
_SWIFT_COMMANDS: Final = ("sft", "pt", "rlhf")
NEMO: Final = "nemo llm"
_NEMO_TASKS: Final = ("pretrain", "finetune")
"""NeMo's command line for language models, and its tasks that train."""
TITAN: Final = "torchtitan.train"
_TITAN_SCRIPT: Final = "run_train.sh"
TITAN_FILE: Final = ("--job.config_file", "--job.config-file")
"""torchtitan's module, the script that starts it, and the option of 0.2 that names its TOML file."""
MOST_CALLED: Final = 3
"""Scripts that call one another."""
MOST_TOLD: Final = 4


@dataclass(frozen=True, kw_only=True)
class TrainingCommand:
    """The command that starts the training.

    Attributes
    ----------
    command : ShellCommand
        As the script has it.
    program : str
        Its Python program or module.
    arguments : tuple of str
        Behind the program.
    """

    command: ShellCommand
    program: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its program without folders."""
        return self.program.rpartition("/")[2]

    def rivals(self, other: "TrainingCommand") -> bool:
        """Whether another command starts the same program, or one that trains too, on other arguments."""
        trains = all("train" in name for name in (self.name, other.name))
        return (trains or self.name == other.name) and self.arguments != other.arguments


def one_command(words: Sequence[str]) -> str:
    """Return words that are a whole command as a line of a script; empty for arguments alone.

    Parameters
    ----------
    words : sequence of str
        Variables, a launcher and a program may stand before the arguments.
    """
    start = next((index for index, word in enumerate(words) if not _VARIABLE.match(word)), len(words))
    first = words[start].rpartition("/")[2] if start < len(words) else ""
    if first not in _WHOLE and not first.endswith(".py"):
        return ""
    starter = ("python",) if first.endswith(".py") else ()
    return shlex.join((*words[:start], *starter, *words[start:]))


def training_command(script: ShellScript, path: Path) -> tuple[TrainingCommand, list[str]]:
    """Find the command with most arguments behind a Python program or module, and tell of others that train.

    Parameters
    ----------
    script : ShellScript
        As read.
    path : Path
        Its file; scripts beside it that it calls are read too.

    Returns
    -------
    tuple
        The command, and notes: what else is started and not judged.

    Raises
    ------
    InputError
        The script starts no Python program.
    """
    found: list[TrainingCommand] = []
    for command in script.commands:
        for inner in _nested(command, path, 0):
            behind = _behind_program(inner)
            if behind is not None:
                found.append(TrainingCommand(command=inner, program=behind[0], arguments=behind[1]))
    if not found:
        raise InputError(
            "no training command is found",
            allowed="a script with one of torchrun, python, deepspeed, srun before a .py file, python -m MODULE, "
            "llamafactory-cli train, swift sft, megatron sft, axolotl train, or a file of arguments alone",
            where=str(path),
        )
    chosen = max(found, key=lambda one: len(one.arguments))
    rivals = [one for one in found if one is chosen or chosen.rivals(one)]
    return chosen, _rivals_told(chosen, rivals)


def _rivals_told(chosen: TrainingCommand, rivals: Sequence[TrainingCommand]) -> list[str]:
    if len(rivals) < 2:
        return []
    own = _options(chosen.arguments)
    told = []
    for number, one in enumerate(rivals, start=1):
        other = [option for option in _options(one.arguments) if option not in own][:MOST_TOLD]
        if one is not chosen and number <= MOST_TOLD:
            told.append(f"number {number} has {', '.join(other) or 'fewer arguments'}")
    judged = f"number {rivals.index(chosen) + 1}, which has most arguments, and not: {'; '.join(told) or 'the others'}"
    return [f"the script starts {len(rivals)} training commands; judged is {judged}"]


def _options(words: Sequence[str]) -> list[str]:
    """Options with their values, each as one text."""
    found: list[str] = []
    for word in words:
        if word.startswith("--") or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found


def _nested(command: ShellCommand, path: Path, calls: int) -> Iterator[ShellCommand]:
    """The command itself, or those inside ``bash -c "..."``, behind ``sbatch <<`` or in a script that it calls."""
    for index, word in enumerate(command.words):
        if word.rpartition("/")[2] in ("bash", "sh"):
            options = list(takewhile(lambda option: option.startswith("-"), command.words[index + 1 :]))
            last = index + len(options) + 1
            if options and options[-1].endswith("c") and last < len(command.words):
                yield from _inside(command.words[last], command, path, calls)
                return
    if command.words[0] == "eval":
        yield from _inside(" ".join(command.words[1:]), command, path, calls)
    elif command.document and command.program in _SHELLS:
        yield from _inside(command.document, command, path, calls)
    elif (called := _called(command, path)) is not None and calls < MOST_CALLED:
        index, file = called
        text = read_text_file(file, allowed="a shell script", most_bytes=MOST_SCRIPT_BYTES).replace("\r\n", "\n")
        yield from _inside(whole_script(text, file), command, file, calls + 1, command.words[index + 1 :])
    else:
        yield command


def _called(command: ShellCommand, path: Path) -> tuple[int, Path] | None:
    """The script beside this one that a command calls, and the place of its word."""
    if command.program in _SILENT or _behind_program(command, later=False) is not None:
        return None
    for index, word in enumerate(command.words):
        for file in (path.parent / word, path.parent / Path(word).name) if word.endswith(".sh") else ():
            if is_file(file) and file.resolve() != path.resolve():
                return index, file
    return None


def _inside(
    text: str, command: ShellCommand, path: Path, calls: int, arguments: Sequence[str] | None = None
) -> Iterator[ShellCommand]:
    """Training commands of a script in a script, which knows what the outer one exports."""
    for inner in read_script(text, str(path), command.environment, arguments).commands:
        environment = MappingProxyType({**command.environment, **inner.environment})
        unresolved = (*command.unresolved, *inner.unresolved)
        yield from _nested(replace(inner, environment=environment, unresolved=unresolved), path, calls)


def titan_script(words: Sequence[str]) -> int:
    """Where a command names the script that starts torchtitan: itself, or behind its shell; -1 where it does not."""
    return next((index for index, word in enumerate(words[:2]) if word.rpartition("/")[2] == _TITAN_SCRIPT), -1)


def _of_torchtitan(command: ShellCommand) -> tuple[str, tuple[str, ...]] | None:
    """The script of torchtitan that is not beside the launch: it takes its configuration from the environment.

    References
    ----------
    torchtitan ``run_train.sh``: 0.2 has ``CONFIG_FILE``, 0.3 ``MODULE`` and ``CONFIG``.
    """
    words, own = command.words, command.environment
    at = titan_script(words)
    if at < 0:
        return None
    told = [
        word
        for name, option in (("CONFIG_FILE", TITAN_FILE[0]), ("MODULE", "--module"), ("CONFIG", "--config"))
        if name in own
        for word in (option, own[name])
    ]
    return TITAN, (*told, *words[at + 1 :])


def _of_nemo(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """A task of NeMo's command line, ``nemo llm pretrain`` or ``nemo llm finetune``, and its arguments."""
    for index, (first, task) in enumerate(pairwise(words)):
        if first == "llm" and task in _NEMO_TASKS:
            return f"{NEMO} {task}", tuple("--factory" if word == "-f" else word for word in words[index + 2 :])
    return None


def _recipe_script(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """A script that starts a recipe, such as Megatron-Bridge's ``train.sh``, which is not beside the launch."""
    index = next((number for number, word in enumerate(words[:2]) if word.endswith(".sh")), -1)
    chooses = index >= 0 and any(word.partition("=")[0] in _CHOOSES for word in words)
    return (words[index], tuple(words[index + 1 :])) if chooses else None


def _behind_program(command: ShellCommand, *, later: bool = True) -> tuple[str, tuple[str, ...]] | None:
    """The training program and its arguments; what a script prints or copies starts nothing.

    With ``later``, a program that a variable without a value names is one too.
    """
    words = command.words
    if command.program in _SILENT or any(pair[0] in _MODULE and pair[1] in _TOOLS for pair in pairwise(words)):
        return None
    if command.program == "megatron" and len(words) > 1 and words[1] in _SWIFT_COMMANDS:
        return SWIFT, tuple(words[2:])
    if (named := started_trainer(words) or _recipe_script(words) or _of_torchtitan(command)) is not None:
        return named
    if (nemo := _of_nemo(words)) is not None:
        return nemo
    for index, word in enumerate(words):
        module = word in _MODULE and index + 1 < len(words) and not words[index + 1].startswith(_LAUNCHERS)
        started = index and command.program in _STARTERS and not words[index - 1].startswith("-")
        named_later = later and word.startswith("$") and bool(started) and not word.endswith("]")
        named_later = named_later and not (index + 1 < len(words) and words[index + 1].endswith(".py"))
        if word.endswith(".py") or module or named_later:
            return words[index + module], tuple(words[index + 1 + module :])
    return None
