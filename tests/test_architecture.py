"""The house rules that a reader relies on, held by looking at the source: who imports whom, sizes, state, words."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_trees import FILES, ROOMS, ROOT, Function, functions, imports, module_of, statements, tree_of, trees

OTHER_FILES = tuple(sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]))

# Inside planner, from the nouns up to the doors: each row may import itself and the rows above it in this table.
LAYERS = (
    (
        "traits",
        "profile",
        "nearest",
        "choices",
        "losses",
        "offloads",
        "adapters",
        "images",
        "variants",
        "sayable",
        "request",
        "plan_report",
    ),
    ("intra_op", "inter_op"),
    ("layouts",),
    ("rules",),
    ("bounds", "ingest", "evidence"),
    ("search", "calibrate"),
    ("placement", "infeasible", "export"),
    ("planning",),
    ("traffic",),
    ("devices", "advice"),
    ("question",),
    ("launches",),
    ("report", "sweeps"),
    ("commands",),
    ("cli",),
    ("__main__",),
)

OUTSIDE_LIBRARIES = {
    "distributed": ("planner.sweeps.sweep",),
    "ortools": ("planner.intra_op",),
    "typer": ("planner.cli",),
    "click": ("planner.cli",),
    "rich": ("planner.cli", "planner.report"),
    "networkx": ("hardware.topology",),
    "yaml": ("hardware.importers", "planner.ingest.settings_files"),
    "numpy": ("hardware.topology", "costmodels", "planner"),
}
BANNED_MODULES = ("utils", "util", "helpers", "helper", "common", "misc", "shared", "tools")
BANNED_CALLS = ("eval", "exec", "print", "breakpoint", "input")

MOST_LINES = 60
MOST_FILE_LINES = 500
MOST_PARAMETERS = 6
MORE_PARAMETERS = {
    "planner.cli": "a command has one parameter for each of its options",
    "planner.cli.comparing": "the same",
    "planner.cli.imports": "as above",
    "planner.cli.searching": "as above",
}
MUTABLE_MAKERS = ("list", "dict", "set", "defaultdict", "Counter", "OrderedDict", "deque", "bytearray")


def imported(tree: ast.Module) -> Iterator[str]:
    return imports(statements(tree))


def within(module: str, places: tuple[str, ...]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


def parameters(function: Function) -> int:
    each = function.args
    names = [argument.arg for argument in (*each.posonlyargs, *each.args)]
    own = 1 if names[:1] in (["self"], ["cls"]) else 0
    return len(names) + len(each.kwonlyargs) - own


def test_the_rooms_are_all_there():
    assert len(trees()) > 150
    assert {module.partition(".")[0] for module in trees()} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room):
    above = ROOMS[ROOMS.index(room) + 1 :]
    wrong = [
        f"{module} imports {name}"
        for module, tree in trees().items()
        if within(module, (room,))
        for name in imported(tree)
        if within(name, above)
    ]
    assert wrong == []


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_part_of_the_planner_has_its_layer():
    assert {part_of(module) for module in trees() if module.startswith("planner.")} == {
        name for row in LAYERS for name in row
    }


def test_inside_the_planner_imports_point_one_way():
    layer = {name: number for number, row in enumerate(LAYERS) for name in row}
    wrong = [
        f"{module} imports {name}"
        for module, tree in trees().items()
        if module.startswith("planner.")
        for name in imported(tree)
        if name.startswith("planner.") and part_of(name) in layer
        if layer[part_of(name)] > layer[part_of(module)]
    ]
    assert wrong == []


def test_solvers_know_no_cost_model():
    solvers = ("planner.intra_op", "planner.inter_op")
    for module, tree in trees().items():
        if within(module, solvers):
            ours = {name for name in imported(tree) if within(name, ROOMS)}
            assert all(within(name, solvers) for name in ours), module


def test_the_two_levels_of_solvers_do_not_know_each_other():
    for module, tree in trees().items():
        for one, other in (("planner.intra_op", "planner.inter_op"), ("planner.inter_op", "planner.intra_op")):
            if within(module, (one,)):
                assert not any(within(name, (other,)) for name in imported(tree)), module


def test_outside_libraries_live_where_they_are_meant_to():
    wrong = []
    for module, tree in trees().items():
        for name in set(imported(tree)):
            top = name.partition(".")[0]
            if top in ROOMS or top in sys.stdlib_module_names:
                continue
            if not within(module, OUTSIDE_LIBRARIES.get(top, ())):
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_the_graph_library_is_imported_only_when_a_graph_is_built():
    loaded = "import sys, hardware.topology, hardware.catalog; print('networkx' in sys.modules)"
    assert printed_by(loaded) == "False"


def test_the_command_line_starts_light():
    heavy = ("numpy", "ortools", "networkx", "rich", "costmodels", "planner.planning", "hardware.catalog")
    code = f"import sys, planner.cli; print([name for name in {heavy!r} if name in sys.modules])"
    assert printed_by(code) == "[]"


def printed_by(code: str) -> str:
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return found.stdout.strip()


def test_modules_say_what_they_hold():
    wrong = [module for module in trees() if set(module.split(".")) & set(BANNED_MODULES)]
    assert wrong == []


def test_functions_and_files_are_short():
    wrong = []
    for path in (*FILES, *OTHER_FILES):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MOST_FILE_LINES:
            wrong.append(f"{module_of(path)} has {lines} lines")
        for function in functions(tree_of(path)):
            length = int(function.end_lineno or 0) - function.lineno + 1
            if length > MOST_LINES:
                wrong.append(f"{module_of(path)}.{function.name} has {length} lines")
    assert wrong == []


def test_functions_take_few_parameters():
    wrong = [
        f"{module_of(path)}.{function.name} takes {parameters(function)}"
        for path in (*FILES, *OTHER_FILES)
        for function in functions(tree_of(path))
        if parameters(function) > MOST_PARAMETERS and module_of(path) not in MORE_PARAMETERS
    ]
    assert wrong == []


def test_no_statement_that_does_not_belong_into_a_package():
    wrong = []
    for module, tree in trees().items():
        for node in statements(tree):
            if isinstance(node, ast.Assert | ast.Global):
                wrong.append(f"{module}:{node.lineno} {type(node).__name__.lower()}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
                wrong.append(f"{module}:{node.lineno} {node.func.id}()")
            if isinstance(node, ast.ImportFrom | ast.Import) and {"pickle", "marshal", "shelve"} & set(
                imports((node,))
            ):
                wrong.append(f"{module}:{node.lineno} pickle")
    assert wrong == []


def is_mutable(value: ast.expr | None) -> bool:
    """Whether a value at module level can be changed later. Constants are tuples, frozen values, read-only mappings."""
    if isinstance(value, ast.List | ast.Set | ast.Dict | ast.ListComp | ast.SetComp | ast.DictComp):
        return True
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name | ast.Attribute | ast.Subscript):
        maker = value.func.value if isinstance(value.func, ast.Subscript) else value.func
        name = maker.attr if isinstance(maker, ast.Attribute) else getattr(maker, "id", "")
        return name in MUTABLE_MAKERS
    return False


def test_no_state_at_module_level():
    wrong = []
    for module, tree in trees().items():
        for node in tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if names != ["__all__"] and is_mutable(node.value):
                wrong.append(f"{module}:{node.lineno} {names}")
    assert wrong == []


def test_the_rule_on_state_can_fail():
    for text in ("x = []", "x: dict = {}", "x = defaultdict(int)", "x = collections.Counter()", "x = dict[str, int]()"):
        node = ast.parse(text).body[0]
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        assert is_mutable(node.value), text
    for text in ("x = ()", "x = MappingProxyType({})", "x = frozenset({1})", "x = 3"):
        node = ast.parse(text).body[0]
        assert isinstance(node, ast.Assign)
        assert not is_mutable(node.value), text


def test_values_that_cross_seams_are_frozen():
    seams = ("hardware.cluster", "costmodels.layout", "costmodels.job", "costmodels.results", "costmodels.pricing",
             "costmodels.table", "costmodels.workload.model", "costmodels.workload.op", "planner.request",
             "planner.plan_report")  # fmt: skip
    for module in seams:
        for node in trees()[module].body:
            if isinstance(node, ast.ClassDef) and not any("Enum" in ast.unparse(base) for base in node.bases):
                made = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
                assert "frozen=True" in made, f"{module}.{node.name}"
                assert "kw_only=True" in made, f"{module}.{node.name}"


@pytest.mark.parametrize("path", [*OTHER_FILES, *sorted((ROOT / ".ci").rglob("*.py"))], ids=lambda path: path.name)
def test_scripts_import_what_there_is(path: Path) -> None:
    """Scripts that no test runs ask the packages for nothing that was moved or renamed."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOMS:
            module = importlib.import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):  # a module of a package
                    importlib.import_module(f"{node.module}.{name.name}")
