"""Efficiencies of accelerators as named, sourced constants: how much of a peak a kernel reaches.

Values, sources and ranges stand in ``efficiency.toml``; ``docs/compute.md`` gives the equations and the errors.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from hardware.cluster import Accelerator
from hardware.errors import InputError


@dataclass(frozen=True, kw_only=True)
class GemmEfficiency:
    """Constants of dense matrix products on one generation.

    Attributes
    ----------
    math : mapping of str to float
        Share of the quoted peak that a large product reaches at full clock, by number format [1].
    bandwidth : float
        Share of the memory bandwidth that operands stream at [1].
    launch_s : float
        Start and end of a kernel [s].
    k_overhead : float
        Prologue and epilogue of a tile, in steps of the reduction dimension.
    wave : float
        Weight of whole waves of tiles against their mean: 0 for persistent kernels, 1 for plain ones [1].
    split_s : float
        Cost of splitting the reduction dimension over multiprocessors [s].
    """

    math: Mapping[str, float]
    bandwidth: float
    launch_s: float
    k_overhead: float
    wave: float
    split_s: float


@dataclass(frozen=True, kw_only=True)
class AttentionEfficiency:
    """Constants of fused attention on one generation.

    ``math`` is the share of the 16-bit peak for long sequences and 128-wide heads at full clock; ``length_half`` the
    attended keys, and ``width_half`` the head width, at which half of the asymptote is reached;
    ``backward_ratio`` the backward kernel's share of the forward kernel's rate; ``fa2``, ``fa1``, ``triton`` the rate
    of those kernels over the generation's best, ``triton_half`` the attended keys at which the last has half of it. All
    [1] or counts.
    """

    math: float
    length_half: float
    width_half: float
    backward_ratio: float
    fa2: float
    fa1: float
    triton: float
    triton_half: float


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One generation of accelerators; ``match`` are the words that name its members."""

    name: str
    match: tuple[str, ...]
    multiprocessors: int
    gemm: GemmEfficiency
    attention: AttentionEfficiency
    training: Mapping[str, float]  # rate of products inside a training step over their isolated rate, by number format
    memory: float  # share of the memory bandwidth that memory-bound kernels reach
    scan: float  # share of the 16-bit peak that chunked scans reach
    host: float  # time of the hosts that such accelerators are sold with over that of Hopper's
    early_math: float  # rate of low-precision products with software of the part's first year over later software's


@dataclass(frozen=True, kw_only=True)
class SharedEfficiency:
    """Constants that do not vary between generations; each is described in ``efficiency.toml``."""

    roofline_power: float
    tile_edge: float
    grouped_math: float
    block_scaled_math: float
    unaligned_attention_math: float
    listed_backward: float
    word_aligned_math: float
    unaligned_math: float
    opaque_math: float
    memory_launch_s: float
    dispatch_s: float
    graph_dispatch_s: float
    compiled_dispatch_s: float
    script_dispatch_s: float
    host_jitter: float
    blocked_host: float
    blocked_jitter: float
    overlapped_host: float
    collective_kernels: float
    expert_kernels: float
    module_gather_s: float
    ranked_tokens_per_s: float
    backward_traffic: float
    compiled_traffic: float
    quantise_fp8_bytes: float
    quantise_fp4_bytes: float


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Every constant of the compute cost model. The reference clock is each accelerator's highest clock.

    ``generations`` are searched in order; the last one is for accelerators that no other one names.
    """

    shared: SharedEfficiency
    generations: tuple[Generation, ...]

    def generation(self, accelerator: Accelerator) -> Generation:
        """Return the generation whose words occur in the accelerator's name, or in that of the part that it is like.

        The generic one when none does.
        """
        return self.generations[_generation_of(self._matches, accelerator.known_as)]

    @cached_property
    def _matches(self) -> tuple[tuple[str, ...], ...]:
        return tuple(each.match for each in self.generations)


@lru_cache(maxsize=1)
def default_efficiency() -> Efficiency:
    """Return the constants of ``efficiency.toml``."""
    text = resources.files("costmodels").joinpath("efficiency.toml").read_text(encoding="utf-8")
    return read_efficiency(text, where="efficiency.toml")


def read_efficiency(text: str, *, where: str) -> Efficiency:
    """Parse a table of constants.

    Parameters
    ----------
    text : str
        TOML in the form of ``efficiency.toml``: every constant is ``[value, "source key"]``.
    where : str
        File name for messages.

    Returns
    -------
    Efficiency
        The constants.

    Raises
    ------
    InputError
        When a constant is missing or names no source.
    """
    table = tomllib.loads(text)
    sources: Mapping[str, str] = table["sources"]
    rows: dict[str, Mapping[str, Any]] = {}
    for row in table["generation"]:
        rows[row["name"]] = _merged(rows[row["like"]], row) if "like" in row else row
    shared = _Constants(table["shared"], sources, f"{where}: shared")
    return Efficiency(
        shared=SharedEfficiency(**{item.name: shared.value(item.name) for item in fields(SharedEfficiency)}),
        generations=tuple(_generation(row, sources, f"{where}: generation {name}") for name, row in rows.items()),
    )


class _Constants:
    """Reads ``[value, "source key"]`` pairs of one TOML table."""

    def __init__(self, table: Mapping[str, Any], sources: Mapping[str, str], where: str) -> None:
        self._table = table
        self._sources = sources
        self._where = where

    def value(self, name: str) -> float:
        """Return the value of a constant after checking its source."""
        entry = self._table.get(name)
        if not isinstance(entry, list) or len(entry) != 2:
            raise InputError(
                f"constant {name} is {entry!r}", allowed='[value, "source key"]', where=f"{self._where}.{name}"
            )
        value, source = entry
        if source not in self._sources:
            raise InputError(
                f"unknown source {source!r}", allowed=", ".join(sorted(self._sources)), where=f"{self._where}.{name}"
            )
        return float(value)


def _merged(base: Mapping[str, Any], row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``row`` over ``base``, table by table."""
    merged = dict(base)
    for name, value in row.items():
        merged[name] = {**base.get(name, {}), **value} if isinstance(value, dict) else value
    return merged


def _generation(row: Mapping[str, Any], sources: Mapping[str, str], where: str) -> Generation:
    top = _Constants(row, sources, where)
    gemm = _Constants(row["gemm"], sources, f"{where}.gemm")
    attention = _Constants(row["attention"], sources, f"{where}.attention")
    math = _Constants(row["math"], sources, f"{where}.math")
    training = _Constants(row["training"], sources, f"{where}.training")
    names = [item.name for item in fields(GemmEfficiency) if item.name != "math"]
    return Generation(
        name=row["name"],
        match=tuple(row["match"]),
        multiprocessors=int(row["multiprocessors"]),
        gemm=GemmEfficiency(
            math=MappingProxyType({name: math.value(name) for name in row["math"]}),
            **{name: gemm.value(name) for name in names},
        ),
        attention=AttentionEfficiency(
            **{item.name: attention.value(item.name) for item in fields(AttentionEfficiency)}
        ),
        training=MappingProxyType({name: training.value(name) for name in row["training"]}),
        memory=top.value("memory"),
        scan=top.value("scan"),
        host=top.value("host"),
        early_math=top.value("early_math") if "early_math" in row else 1.0,
    )


@lru_cache(maxsize=64)
def _pattern(word: str) -> re.Pattern[str]:
    """Match a word in a name, alone: ``b200`` is not part of ``gb200``, ``h20`` not of ``h200``."""
    return re.compile(rf"(?<![a-z0-9]){re.escape(word)}(?![0-9])")


def names_part(words: tuple[str, ...], name: str) -> bool:
    """Whether one of ``words`` occurs in an accelerator's name.

    Parameters
    ----------
    words : tuple of str
        Lower-case words, such as ``h100``.
    name : str
        Name of an accelerator in any case, such as ``H100-SXM5-80GB``.

    Returns
    -------
    bool
        True when a word stands alone in the name: ``b200`` does not name a GB200.
    """
    lowered = name.lower()
    return any(_pattern(word).search(lowered) for word in words)


@lru_cache(maxsize=256)
def _generation_of(matches: tuple[tuple[str, ...], ...], name: str) -> int:
    """Which generation a part is of, by the words of each; the last one where none names it."""
    return next((number for number, words in enumerate(matches) if names_part(words, name)), len(matches) - 1)
