"""What a calibration knows of one machine, as a value and as a TOML file that is written whole and read strictly."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from costmodels.pricing import Constants
from costmodels.profile import UNCHANGED, Profile, profiled
from costmodels.workload.fields import Fields
from hardware.errors import InputError
from hardware.nouns import count
from hardware.text_file import read_toml_file
from planner.traits import RunTraits, family_of

FORMAT: Final = 1
MOST_BYTES: Final = 16 * 2**20
LEAST_FACTOR: Final = 0.01
MOST_FACTOR: Final = 100.0
MOST_OFFSET_BYTES: Final = 1e12
LEAST_SIZE: Final = 1e-9
"""Of a run: one parameter, in billions."""
MOST_LOG_RATIO: Final = 30.0
"""Of predicted over measured step time."""
_RATES: Final = ("scale_up_bytes_per_s", "network_bytes_per_s")
_NUMBERS: Final = ("gpus", "parameters", "seq", "micro_batch", "tp", "pp", "cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRun:
    """One run that a profile was fitted on, with logarithms of predicted over measured step time.

    ``before`` is under the published constants, ``after`` under the profile, ``left_out`` under the profile fitted
    without this run. ``distrusted`` runs were taken for bad measurements and left out. ``scale_up_bytes_per_s`` and
    ``network_bytes_per_s`` are the rates of its machine, of :func:`hardware.tiers.link_rates`; 0.0: not known, none.
    """

    id: str
    traits: RunTraits
    before: float
    after: float
    left_out: float
    distrusted: bool = False
    scale_up_bytes_per_s: float = 0.0
    network_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file that a profile was fitted on: its name, what it was read as, its digest, and how much of it counted."""

    name: str
    kind: str
    sha256: str
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryErrors:
    """Median absolute errors of the peak memory over runs that state one [1]; zeros without such runs."""

    runs: int = 0
    before: float = 0.0
    after: float = 0.0
    left_out: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """The profile of a machine, and what it rests on.

    Attributes
    ----------
    accelerator : str
        Name in the catalogue; the profile holds for no other one.
    frameworks : tuple of str
        Families of the runs; what belongs to the framework holds for these alone.
    factors : Profile
        What the cost models are multiplied by.
    learned : tuple of str
        Factors that the measurements tell; the others stay at no change.
    runs : tuple of FittedRun
        Empty for a profile of kernels and collectives alone.
    memory : MemoryErrors
        Of runs that state their peak.
    files : tuple of InputFile
        What was read.
    name : str
        File that it was read from.
    """

    accelerator: str
    frameworks: tuple[str, ...]
    factors: Profile
    learned: tuple[str, ...]
    runs: tuple[FittedRun, ...]
    files: tuple[InputFile, ...]
    memory: MemoryErrors = MemoryErrors()
    name: str = ""

    @property
    def trusted(self) -> tuple[FittedRun, ...]:
        """Return the runs that counted."""
        return tuple(run for run in self.runs if not run.distrusted)

    def factors_for(self, accelerator: str, framework: str) -> Profile:
        """Return the factors that hold for an accelerator under a framework.

        Parameters
        ----------
        accelerator : str
            Name in the catalogue.
        framework : str
            Such as ``megatron``.

        Returns
        -------
        Profile
            No change for another accelerator; for a framework of another family what belongs to the machine alone.
        """
        if accelerator != self.accelerator:
            return UNCHANGED
        return self.factors if family_of(framework) in self.frameworks else self.factors.of_machine()

    def over(self, constants: Constants, accelerator: str, framework: str) -> Constants:
        """Return constants under the factors that hold for an accelerator under a framework."""
        return profiled(constants, self.factors_for(accelerator, framework))


def profile_text(profile: MachineProfile) -> str:
    """Return a profile as the text of a TOML file.

    Raises
    ------
    InputError
        :func:`read_profile` would refuse the file: a factor is no number, or out of its range.
    """
    lines = [
        "# The profile of one machine, written by plan calibrate: factors on the published constants (1: as they",
        "# ship), what they were fitted on, and logarithms of predicted over measured step time before and after.",
        f"format = {FORMAT}",
        f"accelerator = {_text(profile.accelerator)}",
        f"frameworks = {_texts(profile.frameworks)}",
        f"learned = {_texts(profile.learned)}",
        *_range_lines(profile.trusted),
        "",
        "[factors]",
        *(f"{name} = {value!r}" for name, value in profile.factors.factors().items()),
        "",
        "[memory_errors]",
        *(f"{field.name} = {getattr(profile.memory, field.name)!r}" for field in fields(MemoryErrors)),
    ]
    for file in profile.files:
        lines += ["", "[[file]]", *(_line(field.name, getattr(file, field.name)) for field in fields(InputFile))]
    for run in profile.runs:
        lines += ["", "[[run]]", _line("id", run.id)]
        lines += [_line(name, getattr(run, name)) for name in ("before", "after", "left_out", "distrusted", *_RATES)]
        lines += [_line(field.name, getattr(run.traits, field.name)) for field in fields(RunTraits)]
    text = "\n".join(lines) + "\n"
    _parsed(tomllib.loads(text), "the profile that was fitted", profile.name)
    return text


def _range_lines(runs: Iterable[FittedRun]) -> list[str]:
    """Say in a comment over which sizes the runs reach."""
    gpus = [run.traits.gpus for run in runs]
    if not gpus:
        return ["# fitted on no runs: kernels and collectives alone"]
    return [f"# fitted on {count(len(gpus), 'run')} on {min(gpus):g} to {max(gpus):g} accelerators"]


def _line(name: str, value: object) -> str:
    if isinstance(value, str):
        return f"{name} = {_text(value)}"
    return f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}"


def _texts(values: Iterable[str]) -> str:
    return "[" + ", ".join(_text(value) for value in values) + "]"


def _text(value: str) -> str:
    """Quote a text for TOML: control codes and what a basic string may not hold are escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def read_profile(path: Path) -> MachineProfile:
    """Read the file of a profile.

    Parameters
    ----------
    path : Path
        Written by ``plan calibrate``.

    Returns
    -------
    MachineProfile

    Raises
    ------
    InputError
        The file is missing, too large, no TOML, or a field is missing, unknown, or out of its range.
    """
    table = read_toml_file(path, allowed="a profile that plan calibrate wrote", most_bytes=MOST_BYTES)
    return _parsed(table, str(path), path.name)


def _parsed(table: Mapping[str, Any], where: str, name: str) -> MachineProfile:
    read = Fields(table, where)
    read.only(("format", "accelerator", "frameworks", "learned", "factors", "memory_errors", "file", "run"))
    if read.whole("format") != FORMAT:
        raise read.wrong("format", table["format"], f"{FORMAT}; calibrate again with this planner")
    return MachineProfile(
        accelerator=read.text("accelerator"),
        frameworks=read.texts("frameworks"),
        learned=read.texts("learned"),
        factors=_factors(read.table("factors")),
        memory=_memory_errors(read.table("memory_errors")),
        files=tuple(_file(row) for row in _rows(table, "file", where)),
        runs=tuple(_run(row) for row in _rows(table, "run", where)),
        name=name,
    )


def _factors(read: Fields) -> Profile:
    names = [field.name for field in fields(Profile)]
    read.only(names)
    values = {name: read.number(name) for name in names}
    for name, value in values.items():
        if name == "memory_offset_bytes":
            if value > MOST_OFFSET_BYTES:
                raise read.wrong(name, value, f"bytes from 0 to {MOST_OFFSET_BYTES:g}")
        elif not LEAST_FACTOR <= value <= MOST_FACTOR:
            raise read.wrong(name, value, f"a factor from {LEAST_FACTOR} to {MOST_FACTOR:g}")
    return Profile(**values)


def _memory_errors(read: Fields) -> MemoryErrors:
    read.only(field.name for field in fields(MemoryErrors))
    return MemoryErrors(
        runs=read.whole("runs"),
        before=read.number("before"),
        after=read.number("after"),
        left_out=read.number("left_out"),
    )


def _rows(table: Mapping[str, object], name: str, where: str) -> list[Fields]:
    rows = table.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(f"{name} is no list of tables", allowed=f"[[{name}]]", where=where)
    return [Fields(row, f"{where}: {name} {number}") for number, row in enumerate(rows, start=1)]


def _file(read: Fields) -> InputFile:
    read.only(field.name for field in fields(InputFile))
    return InputFile(
        name=read.text("name"), kind=read.text("kind"), sha256=read.text("sha256"), used=read.whole("used")
    )


def _run(read: Fields) -> FittedRun:
    traits = [field.name for field in fields(RunTraits)]
    read.only(("id", "before", "after", "left_out", "distrusted", *_RATES, *traits))
    sizes = {name: read.number(name) for name in _NUMBERS}
    for name, size in sizes.items():
        if size < LEAST_SIZE:
            raise read.wrong(name, size, f"a number from {LEAST_SIZE:g}")
    return FittedRun(
        id=read.text("id"),
        before=read.signed("before", most=MOST_LOG_RATIO),
        after=read.signed("after", most=MOST_LOG_RATIO),
        left_out=read.signed("left_out", most=MOST_LOG_RATIO),
        distrusted=read.flag("distrusted"),
        scale_up_bytes_per_s=read.number("scale_up_bytes_per_s", default=0.0),
        network_bytes_per_s=read.number("network_bytes_per_s", default=0.0),
        traits=RunTraits(
            generation=read.text("generation"),
            hardware=read.text("hardware"),
            framework=read.text("framework"),
            gemm=read.text("gemm"),
            moe=read.text("moe"),
            recompute=read.text("recompute"),
            **sizes,
        ),
    )
