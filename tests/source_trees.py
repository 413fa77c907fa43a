"""The source of the packages as syntax trees, each file parsed once and when a test first asks."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("hardware", "costmodels", "planner")  # each may import itself and those before it
FILES = tuple(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))

Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def trees() -> Mapping[str, ast.Module]:
    """Trees of all files of the packages, by module."""
    return {module_of(path): tree_of(path) for path in FILES}


@cache
def statements(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All statements and calls of a tree, however deep; names, operators and constants are left out."""
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.Call))


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of modules that statements import, and of what they import from them."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(tree: ast.Module) -> Iterator[Function]:
    yield from (node for node in statements(tree) if isinstance(node, Function))
