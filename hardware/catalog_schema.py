"""What the tables of catalogue and cluster files may hold: keys, units, ranges, and how each is read and written.

This is the only place where gigabytes, gigabits, microseconds and teraflops are turned into SI units. Numbers are kept
as decimals from the text to the last multiplication, so that a value that is written and read again is the same value.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum
from typing import Final

from hardware.cluster import CoolingKind, FabricShape, LinkKind
from hardware.errors import InputError

_NEAR: Final = 0.6
"""Least likeness of a name that is told in the place of one that is not known: below, most short names are near."""
_EXACT: Final = Context(prec=80)
_GB: Final = Decimal("1e9")
_GIB: Final = Decimal(2**30)
_MIB: Final = Decimal(2**20)
_GBIT: Final = Decimal("1.25e8")
_TERA: Final = Decimal("1e12")
_MEGA: Final = Decimal("1e6")
_MICRO: Final = Decimal("1e-6")
_ONE: Final = Decimal(1)
LEAST: Final = Decimal("1e-15")
"""Of a number that is neither negative nor 0, in the unit of its key: nearer to 0 it is a slip, and times infinite."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One key of a table.

    ``attr`` is the attribute that it sets (a dot leads into a nested value); ``read(value, where)`` returns the SI
    value or raises; ``write(value)`` returns the TOML text of an SI value.
    """

    key: str
    attr: str
    read: Callable[[object, str], object]
    write: Callable[[object], str]


def canonical(name: str) -> str:
    """Return a name as it is compared: without case, and without anything but letters, digits and ``+``."""
    return "".join(letter for letter in name.casefold() if letter.isalnum() or letter == "+")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name closest to ``name`` or an empty string."""
    from difflib import get_close_matches  # noqa: PLC0415  (only needed for a message)

    by_canonical = {canonical(candidate): candidate for candidate in known}
    close = get_close_matches(canonical(name), by_canonical, n=1, cutoff=_NEAR)
    return by_canonical[close[0]] if close else ""


def describe_names(name: str, known: Iterable[str], limit: int = 12) -> str:
    """Return what to say is allowed instead of ``name``: the nearest known name, or a list."""
    names = sorted(set(known))
    close = nearest(name, names)
    if close:
        return f"did you mean '{close}'?"
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, and {len(names) - limit} more"


def read_table(table: object, fields: tuple[Field, ...], where: str, also: tuple[str, ...] = ()) -> dict[str, object]:
    """Read a table strictly.

    Parameters
    ----------
    table : object
        Parsed TOML, a mapping if the file is right.
    fields : tuple of Field
        The keys that set attributes.
    where : str
        File and table, for messages.
    also : tuple of str
        Further keys that the caller reads itself.

    Returns
    -------
    dict
        Attribute to SI value, for the keys that are present.

    Raises
    ------
    InputError
        Unknown key, wrong type, value out of range, or two keys for the same attribute.
    """
    entries = require_table(table, where)
    by_key = {entry.key: entry for entry in fields}
    values: dict[str, object] = {}
    set_by: dict[str, str] = {}
    for key, value in entries.items():
        if key in also:
            continue
        found = by_key.get(key)
        if found is None:
            raise InputError(f"unknown key '{key}'", allowed=describe_names(key, (*by_key, *also), 40), where=where)
        if found.attr in values:
            raise InputError(f"'{key}' and '{set_by[found.attr]}' state the same", allowed="one of them", where=where)
        values[found.attr] = found.read(value, f"{where}.{key}")
        set_by[found.attr] = key
    return values


def require_table(value: object, where: str) -> Mapping[str, object]:
    """Return ``value`` if it is a table, else raise InputError."""
    if not isinstance(value, Mapping):
        raise InputError(f"{_shown(value)} is not a table", allowed="a table of keys and values", where=where)
    return value


def require_tables(value: object, where: str) -> list[Mapping[str, object]]:
    """Return ``value`` if it is an array of tables, else raise InputError."""
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise InputError(f"{_shown(value)} is not an array of tables", allowed="[[...]] tables", where=where)
    return value


def require_text(value: object, where: str) -> str:
    """Return ``value`` if it is text of one line that is not empty, else raise InputError."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{_shown(value)} is not a name", allowed="text in quotes", where=where)
    if not value.isprintable():  # it would reach terminals, tables and files of a launch
        told = f"{_shown(value)} holds a line end or another character that cannot be printed"
        raise InputError(told, allowed="text of one line in quotes", where=where)
    return value


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, int | Decimal) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _number(key: str, attr: str, scale: Decimal, low: str, high: str) -> Field:
    lowest, highest = Decimal(low), Decimal(high)

    def read(value: object, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise InputError(f"{_shown(value)} is not a number", allowed=f"a number from {low} to {high}", where=where)
        number = Decimal(value)
        if not number.is_finite() or not lowest <= number <= highest:
            raise InputError(f"{_shown(value)} is out of range", allowed=f"{low} to {high}", where=where)
        if lowest >= 0 and 0 < number < LEAST:
            allowed = f"{low} to {high}, and {LEAST} or more where it is not 0"
            raise InputError(f"{_shown(value)} is out of range", allowed=allowed, where=where)
        return float(_EXACT.multiply(number, scale))

    def write(value: object) -> str:
        number = Decimal(repr(float(str(value)) / float(scale)))  # short, and nearly always the same value
        if float(_EXACT.multiply(number, scale)) != value:
            number = _EXACT.divide(Decimal(repr(value)), scale)
        number = number.normalize(_EXACT)
        text = f"{number:f}" if -30 < number.adjusted() < 15 else str(number)
        return text if "." in text or "E" in text else f"{text}.0"

    return Field(key=key, attr=attr, read=read, write=write)


def _whole(key: str, attr: str, low: int, high: int) -> Field:
    def read(value: object, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(
                f"{_shown(value)} is not a whole number", allowed=f"a whole number from {low} to {high}", where=where
            )
        if not low <= value <= high:
            raise InputError(f"{_shown(value)} is out of range", allowed=f"{low} to {high}", where=where)
        return value

    return Field(key=key, attr=attr, read=read, write=str)


def _text(key: str, attr: str) -> Field:
    return Field(key=key, attr=attr, read=require_text, write=lambda value: quoted(str(value)))


def _flag(key: str, attr: str) -> Field:
    def read(value: object, where: str) -> bool:
        if not isinstance(value, bool):
            raise InputError(f"{_shown(value)} is not true or false", allowed="true, false", where=where)
        return value

    return Field(key=key, attr=attr, read=read, write=lambda value: str(value).lower())


def _choice(key: str, attr: str, choices: type[StrEnum]) -> Field:
    names = {canonical(member.value): member for member in choices}

    def read(value: object, where: str) -> StrEnum:
        member = names.get(canonical(value)) if isinstance(value, str) else None
        if member is None:
            allowed = ", ".join(f"'{name.value}'" for name in choices)
            raise InputError(f"{_shown(value)} is unknown", allowed=allowed, where=where)
        return member

    return Field(key=key, attr=attr, read=read, write=lambda value: quoted(str(value)))


def _indices(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry < 2**20 for entry in value
    ):
        raise InputError(f"{_shown(value)} is not a list of indices", allowed="whole numbers from 0", where=where)
    return tuple(value)


def _groups(key: str, attr: str, length: int = 0) -> Field:
    """Lists of local GPU indices; each of ``length`` entries unless that is 0."""

    def read(value: object, where: str) -> tuple[tuple[int, ...], ...]:
        if not isinstance(value, list):
            raise InputError(f"{_shown(value)} is not a list", allowed="a list of lists, [[0, 1], [2, 3]]", where=where)
        rows = tuple(_indices(row, where) for row in value)
        if any(not row or (length and len(row) != length) for row in rows):
            raise InputError(
                f"{_shown(value)} has a list of the wrong length",
                allowed=f"lists of {length} whole numbers" if length else "lists that are not empty",
                where=where,
            )
        return rows

    return Field(key=key, attr=attr, read=read, write=lambda value: str([list(row) for row in as_rows(value)]))


def as_rows(value: object) -> tuple[tuple[int, ...], ...]:
    """Return the value of a grouping attribute with its type."""
    if not isinstance(value, tuple):  # the schema's own value, never a user's
        raise TypeError(f"a grouping must be a tuple, got {type(value).__name__}")
    return value


def _axes(key: str, attr: str) -> Field:
    return Field(key=key, attr=attr, read=_indices, write=lambda value: str(list(as_rows(value))))


def _numbers(key: str, attr: str, low: str, high: str) -> Field:
    """A list of numbers in SI units."""
    each = _number(key, attr, _ONE, low, high)

    def read(value: object, where: str) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise InputError(f"{_shown(value)} is not a list", allowed="a list of numbers, [25, 26.5]", where=where)
        return tuple(each.read(entry, where) for entry in value)

    def write(value: object) -> str:
        return "[" + ", ".join(each.write(entry) for entry in as_rows(value)) + "]"

    return Field(key=key, attr=attr, read=read, write=write)


def _sources(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise InputError(f"{_shown(value)} is not a list of texts", allowed='["datasheet", "measured"]', where=where)
    return tuple(value)


def quoted(text: str) -> str:
    """Return a text as a TOML basic string."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    escaped = (
        escapes.get(letter, letter if letter >= " " and letter != "\x7f" else f"\\u{ord(letter):04x}")
        for letter in text
    )
    return '"' + "".join(escaped) + '"'


def _texts(key: str, attr: str) -> Field:
    def write(value: object) -> str:
        return "[" + ", ".join(quoted(str(text)) for text in as_rows(value)) + "]"

    return Field(key=key, attr=attr, read=_sources, write=write)


_SOURCES: Final = _texts("sources", "sources")
PEAK_TYPES: Final = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "vector")

ACCELERATOR: Final = (
    _text("name", "name"),
    _text("vendor", "vendor"),
    *(_number(f"peak_{kind}_tflops", f"peak.{kind}", _TERA, "0", "1e6") for kind in PEAK_TYPES),
    _axes("fp8_blocks", "fp8_blocks"),
    _axes("fp4_blocks", "fp4_blocks"),
    _number("memory_gib", "memory_bytes", _GIB, "0.5", "65536"),
    _number("memory_mib", "memory_bytes", _MIB, "512", "67108864"),
    _number("memory_gb", "memory_bytes", _GB, "0.5", "70000"),
    _number("allocatable_gib", "allocatable_bytes", _GIB, "0", "65536"),
    _number("memory_gb_per_s", "memory_bytes_per_s", _GB, "1", "1e6"),
    _number("l2_mib", "l2_bytes", _MIB, "0", "65536"),
    _whole("multiprocessors", "multiprocessors", 0, 100_000),
    _number("base_clock_mhz", "base_clock_hz", _MEGA, "0", "20000"),
    _number("peak_clock_mhz", "peak_clock_hz", _MEGA, "0", "20000"),
    _number("max_clock_mhz", "max_clock_hz", _MEGA, "0", "20000"),
    _number("tdp_w", "tdp_w", _ONE, "0", "100000"),
    _number("idle_w", "idle_w", _ONE, "0", "100000"),
    _number("min_power_limit_w", "min_power_limit_w", _ONE, "0", "100000"),
    _number("max_power_limit_w", "max_power_limit_w", _ONE, "0", "100000"),
    _number("max_operating_c", "max_operating_c", _ONE, "0", "200"),
    _number("slowdown_c", "slowdown_c", _ONE, "0", "200"),
    _number("shutdown_c", "shutdown_c", _ONE, "0", "200"),
    _SOURCES,
)
SCALE_UP: Final = (
    _choice("kind", "kind", LinkKind),
    _choice("shape", "shape", FabricShape),
    _whole("domain_gpus", "domain_gpus", 1, 1_000_000),
    _number("gb_per_s", "bytes_per_s", _GB, "0.001", "1e6"),
    _number("gbit_per_s", "bytes_per_s", _GBIT, "0.008", "8e6"),
    _number("pair_gb_per_s", "pair_bytes_per_s", _GB, "0.001", "1e6"),
    _number("latency_us", "latency_s", _MICRO, "0", "1e6"),
    _flag("in_network_reduction", "in_network_reduction"),
    _groups("links", "links", 3),
    _axes("axes", "axes"),
)
NICS: Final = (
    _choice("kind", "kind", LinkKind),
    _whole("count", "count", 0, 1024),
    _number("gbit_per_s", "bytes_per_s", _GBIT, "0", "1e6"),
    _number("gb_per_s", "bytes_per_s", _GB, "0", "1e5"),
    _number("latency_us", "latency_s", _MICRO, "0", "1e6"),
    _flag("gpudirect", "gpudirect"),
    _flag("in_network_reduction", "in_network_reduction"),
    _number("gpu_gb_per_s", "gpu_bytes_per_s", _GB, "0", "1e5"),
)
HOST: Final = (
    _number("memory_gib", "memory_bytes", _GIB, "0", "1e7"),
    _number("memory_gb", "memory_bytes", _GB, "0", "1e7"),
    _number("pcie_gb_per_s_per_gpu", "pcie_bytes_per_s_per_gpu", _GB, "0", "1e5"),
    _groups("numa", "numa"),
    _groups("pcie_switches", "pcie_switches"),
    _groups("nearest_nics", "nearest_nics"),
    _number("idle_w", "idle_w", _ONE, "0", "1e6"),
    _number("cpu_w", "cpu_w", _ONE, "0", "1e6"),
)
COOLING: Final = (
    _choice("kind", "kind", CoolingKind),
    _groups("rows", "rows"),
    _number("inlet_c", "inlet_c", _ONE, "-40", "100"),
    _number("resistance_c_per_w", "resistance_c_per_w", _ONE, "0", "10"),
    _number("coupling_c_per_w", "coupling_c_per_w", _ONE, "0", "10"),
    _number("quadratic_c_per_w2", "quadratic_c_per_w2", _ONE, "0", "1"),
    _whole("rack_nodes", "rack_nodes", 0, 1_000_000),
    _number("rack_rise_c", "rack_rise_c", _ONE, "0", "100"),
)
NODE: Final = (
    _text("name", "name"),
    _whole("gpus", "gpus", 1, 1024),
    _number("power_cap_w", "power_cap_w", _ONE, "0", "1e6"),
    _number("gpu_power_cap_w", "gpu_power_cap_w", _ONE, "0", "100000"),
    _number("price_per_hour", "price_per_hour", _ONE, "0", "1e9"),
    _SOURCES,
)
FABRIC_TIER: Final = (
    _text("name", "name"),
    _whole("nodes", "nodes", 0, 1_000_000),
    _number("oversubscription", "oversubscription", _ONE, "1", "1000"),
    _number("latency_us", "latency_s", _MICRO, "0", "1e6"),
    _axes("groups", "groups"),
    _whole("rails", "rails", 1, 1024),
)
DEVICE: Final = (
    _whole("node", "node", 0, 1_000_000),
    _whole("gpu", "gpu", 0, 1024),
    _number("clock_mhz", "clock_hz", _MEGA, "0", "20000"),
    _number("temperature_c", "temperature_c", _ONE, "0", "200"),
    _number("power_w", "power_w", _ONE, "0", "100000"),
    _number("speed", "speed", _ONE, "0.001", "1"),
)
ISLAND: Final = (
    _whole("nodes", "nodes", 1, 1_000_000),
    _numbers("inlets_c", "inlets_c", "-40", "100"),
    _number("rack_power_cap_w", "rack_power_cap_w", _ONE, "0", "1e9"),
    _texts("hosts", "hosts"),
    _axes("domains", "domains"),
)
CLUSTER: Final = (
    _text("name", "name"),
    _number("inter_island_gbit_per_s", "inter_island_bytes_per_s", _GBIT, "0", "1e6"),
    _number("inter_island_gb_per_s", "inter_island_bytes_per_s", _GB, "0", "1e6"),
    _number("inter_island_latency_us", "inter_island_latency_s", _MICRO, "0", "1e7"),
    _number("storage_gb_per_s", "storage_bytes_per_s", _GB, "0", "1e6"),
    _number("power_cap_w", "power_cap_w", _ONE, "0", "1e12"),
    _number("electricity_per_kwh", "electricity_per_kwh", _ONE, "0", "1e6"),
    _number("pue", "pue", _ONE, "1", "10"),
    _text("currency", "currency"),
    _SOURCES,
)
