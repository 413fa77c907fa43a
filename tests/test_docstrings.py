"""Docstrings say what a reader needs: every parameter in its place, units of numbers, facts with their source."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache

import pytest
from source_trees import FILES, ROOT, module_of, tree_of

SECTION = re.compile(r"^(Parameters|Returns|Yields|Raises|Attributes|Notes|References|Examples)\n-{3,}$", re.MULTILINE)
QUANTITY = re.compile(r"_(s|bytes|bytes_per_s|flops|flops_per_s|w|c|hz|j)$")
UNIT = re.compile(r"\[[^\]]+\]|seconds|bytes|watt|celsius|hertz|flop|joule", re.IGNORECASE)
CONSTANTS = tuple(sorted((ROOT / "costmodels").rglob("*.toml")))

SHORT_FORM = 41
"""Public functions of three and more parameters without a section of their own: those whose parameters are explained
by the module or by the function before them. May fall, not rise."""


def documented() -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """Public functions of the packages and methods of public classes, with their docstrings."""
    for path in FILES:
        for node in tree_of(path).body:
            public_class = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            for found in node.body if public_class else [node]:
                if isinstance(found, ast.FunctionDef) and not found.name.startswith("_") and not overload(found):
                    yield module_of(path), found, ast.get_docstring(found) or ""


def overload(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list)


@cache
def public() -> tuple[tuple[str, ast.FunctionDef, str], ...]:
    return tuple(documented())


def parameters(function: ast.FunctionDef) -> list[str]:
    each = function.args
    names = [argument.arg for argument in (*each.posonlyargs, *each.args, *each.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def section(docstring: str, name: str) -> str | None:
    parts = SECTION.split(docstring)
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(name)


def entries(text: str) -> dict[str, str]:
    """Names and all that is said about them; entries may name several."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        if line and not line[0].isspace():
            names = [name.strip().lstrip("*") for name in line.partition(" : ")[0].split(",")]
        for name in names:
            found[name] = found.get(name, "") + line + "\n"
    return found


def test_there_is_something_to_look_at():
    assert len(public()) > 500
    assert sum(section(text, "Parameters") is not None for *_, text in public()) > 100


def test_everything_public_is_documented():
    assert [f"{module}.{function.name}" for module, function, text in public() if not text] == []


def test_parameters_are_those_of_the_signature_in_order():
    wrong = []
    for module, function, text in public():
        stated = section(text, "Parameters")
        if stated is not None and list(entries(stated)) != parameters(function):
            wrong.append(f"{module}.{function.name}: {list(entries(stated))} for {parameters(function)}")
    assert wrong == []


def test_every_parameter_says_something():
    wrong = []
    for module, function, text in public():
        for name, said in entries(section(text, "Parameters") or "").items():
            if len(said.strip().splitlines()) < 2 and " : " not in said and "As in" not in said:
                wrong.append(f"{module}.{function.name}: {name}")
    assert wrong == []


def test_quantities_of_cost_functions_state_their_unit():
    wrong, right = [], 0
    for module, function, text in public():
        for name, said in entries(section(text, "Parameters") or "").items():
            if module.startswith("costmodels") and QUANTITY.search(name):
                right += bool(UNIT.search(said))
                wrong += [] if UNIT.search(said) else [f"{module}.{function.name}: {name}"]
    assert wrong == []
    assert right > 20


def test_functions_without_a_section_become_fewer():
    short = [
        f"{module}.{function.name}"
        for module, function, text in public()
        if len(parameters(function)) >= 3
        and section(text, "Parameters") is None
        and module.startswith(("hardware", "costmodels"))
    ]
    assert len(short) <= SHORT_FORM, short


@pytest.mark.parametrize("path", CONSTANTS, ids=lambda path: str(path.relative_to(ROOT / "costmodels")))
def test_every_constant_has_a_source(path):
    """A table with a value has a source beside it; a pair names a key of the file's own ``[sources]``."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    sources = table.get("sources", {})
    assert sourceless(table, sources, "") == []


def sourceless(table: dict[str, object], sources: dict[str, str], where: str) -> list[str]:
    missing = []
    for key, value in table.items():
        here = f"{where}.{key}" if where else key
        if isinstance(value, dict):
            if "value" in value and not value.get("source"):
                missing.append(here)
            missing += sourceless(value, sources, here)
        elif isinstance(value, list) and len(value) == 2 and isinstance(value[0], float) and isinstance(value[1], str):
            missing += [] if value[1] in sources else [f"{here}: {value[1]}"]
    return missing


def test_the_rule_on_sources_can_fail():
    assert sourceless({"a": {"value": 1.0}}, {}, "") == ["a"]
    assert sourceless({"a": {"b": [1.0, "key"]}}, {}, "") == ["a.b: key"]
    assert sourceless({"a": {"value": 1.0, "source": "x"}, "b": [1.0, "k"]}, {"k": "why"}, "") == []
