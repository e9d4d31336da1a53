"""The layers hold: who may import what, and who may touch private parts of DSPy and gepa."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "combee_dspy"

# From the ground up. A module imports from its own layer and those below it. The most exact name counts: the
# contract of trackers and hooks is a strategy's, what records a run somewhere is not.
LAYERS = (
    ("bounds", "exceptions", "streams", "hashing", "records", "events", "strategies", "registry"),
    (
        "aggregators",
        "artifacts",
        "benchmarks",
        "controllers",
        "costs",
        "diversity",
        "evaluation",
        "guards",
        "lms",
        "operators",
        "reflections",
        "retention",
        "rollouts",
        "sessions",
        "shuffle",
        "stopping",
        "tracking._base",
    ),
    ("baselines._records", "checks", "gepa_kwargs", "reducer", "reducer_core", "report", "testing", "tracking"),
    ("engine",),
    # The package itself shows what is below it to users, and to the programs above.
    ("combee", "many", ""),
    # Runs Combee beside other methods, so it stands on both.
    ("baselines",),
    ("bench", "cli", "demo"),
)
LAYER_OF = {f"combee_dspy.{room}".rstrip("."): number for number, rooms in enumerate(LAYERS) for room in rooms}
# Who may use a library that a layer must not depend on.
DOORS = {"mlflow": ("combee_dspy.tracking",)}

PRIVATE_DOOR = "combee_dspy.engine._private"
PRIVATE_ROOMS = ("gepa.core", "dspy.teleprompt.gepa")
HEAVY = ("aiohttp", "datasets", "litellm", "matplotlib", "mlflow", "pandas", "pyarrow", "ray", "scipy", "xllamacpp")


@dataclass(frozen=True)
class Import:
    module: str
    name: str | None
    line: int

    @property
    def target(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


def imports(tree: ast.AST) -> Iterator[Import]:
    """Every import, in functions and behind TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute in this package"
            yield from (Import(node.module, alias.name, node.lineno) for alias in node.names)


def within(target: str, prefixes) -> bool:
    return any(target == prefix or target.startswith(f"{prefix}.") for prefix in prefixes)


def layer_of(name: str) -> int | None:
    """The layer of a module, or of a name in one; none for what is not ours, or has no layer yet."""
    while name not in LAYER_OF:
        name, dot, _ = name.rpartition(".")
        if not dot or name == "combee_dspy":
            return None
    return LAYER_OF[name]


def reached(one: Import) -> int | None:
    """The layer that an import reaches."""
    found = layer_of(one.target)
    # What is no room of the package is a name that the package itself shows.
    return LAYER_OF["combee_dspy"] if found is None and one.module == "combee_dspy" else found


def upward(module: str, tree: ast.AST) -> list[str]:
    """Imports by which a module reaches a layer above its own, or a library that others may use."""
    own = layer_of(module)
    assert own is not None, f"{module} has no layer: name its room in LAYERS"
    return [
        f"{module}:{one.line} imports {one.target}"
        for one in imports(tree)
        if (reached(one) or 0) > own
        or any(within(one.target, [library]) and not within(module, doors) for library, doors in DOORS.items())
    ]


def misplaced(modules: Collection[str]) -> set[str]:
    """Modules at the top of the package without a layer, and names in a layer that are no module."""
    tops = {".".join(name.split(".")[:2]) for name in modules}
    return (tops - set(LAYER_OF)) | {name for name in LAYER_OF if not any(within(module, [name]) for module in modules)}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Private names that a module defines: functions, classes, variables, fields and attributes it sets."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)


# What Python documents of every NamedTuple: underscored so that fields may have any name.
PUBLIC_ALL_THE_SAME = frozenset({"_replace", "_asdict", "_fields", "_make"})


def foreign_parts(module: str, tree: ast.AST, ours: frozenset[str]) -> list[str]:
    """Private parts of DSPy, gepa or another library that a module touches."""
    if module == PRIVATE_DOOR:
        return []
    found = [
        f"{module}:{one.line} imports {one.target}"
        for one in imports(tree)
        if one.module.split(".")[0] in ("gepa", "dspy")
        and (within(one.target, PRIVATE_ROOMS) or any(private(part) for part in one.target.split(".")))
    ]
    found += [
        f"{module}:{node.lineno} touches .{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in ours | PUBLIC_ALL_THE_SAME
    ]
    chains = (dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    found += [f"{module} reaches {chain}" for chain in chains if chain in PRIVATE_ROOMS]
    return found


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def heavy_at_import(module: str, tree: ast.Module) -> list[str]:
    """Imports of slow modules that run when the module itself is imported."""
    found: list[str] = []

    def visit(statements) -> None:
        for node in statements:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                visit(node.orelse)
                continue
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                found.extend(
                    f"{module}:{one.line} imports {one.target} at import"
                    for one in imports(node)
                    if within(one.target, HEAVY)
                )
            for block in ("body", "orelse", "finalbody", "handlers"):
                visit(getattr(node, block, []))

    visit(tree.body)
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
OURS = frozenset(name for tree in MODULES.values() for name in bound_names(tree))


def test_every_module_has_one_layer():
    named = [room for rooms in LAYERS for room in rooms]
    assert len(named) == len(set(named))
    assert not misplaced(MODULES)
    assert PRIVATE_DOOR in MODULES


def test_a_new_room_without_a_layer_and_a_room_that_is_gone_are_found():
    assert misplaced([*MODULES, "combee_dspy.new_room", "combee_dspy.new_room._part"]) == {"combee_dspy.new_room"}
    left = [name for name in MODULES if not within(name, ["combee_dspy.shuffle"])]
    assert misplaced(left) == {"combee_dspy.shuffle"}
    with pytest.raises(AssertionError, match="name its room"):
        upward("combee_dspy.new_room._part", ast.parse("import json"))


def test_no_module_imports_from_a_layer_above_it():
    assert not [line for module, tree in MODULES.items() for line in upward(module, tree)]


def test_one_module_touches_private_parts_of_dspy_and_gepa():
    assert not [line for module, tree in MODULES.items() for line in foreign_parts(module, tree, OURS)]


def test_the_door_would_be_flagged_under_another_name():
    assert len(foreign_parts("combee_dspy.engine.other", MODULES[PRIVATE_DOOR], OURS)) > 3


def test_heavy_modules_are_imported_where_they_are_used():
    assert not [line for module, tree in MODULES.items() for line in heavy_at_import(module, tree)]


PAIRS = [
    (lower, higher)
    for number, rooms in enumerate(LAYERS)
    for lower in rooms
    for above in LAYERS[number + 1 :]
    for higher in above
    if lower and higher
]
FORMS = (
    "import combee_dspy.{}",
    "import combee_dspy.{}._part as t",
    "from combee_dspy.{} import anything",
    "from combee_dspy.{}._part import Thing",
    "def late():\n    from combee_dspy.{} import run",
    "if TYPE_CHECKING:\n    from combee_dspy.{} import run",
)


def sources(room: str) -> list[str]:
    above, _, last = f"combee_dspy.{room}".rpartition(".")
    return [*(form.format(room) for form in FORMS), f"from {above} import {last}"]


def test_every_upward_import_is_flagged_and_no_downward_one():
    assert len(PAIRS) > 200
    for lower, higher in PAIRS:
        for source in sources(higher):
            assert len(upward(f"combee_dspy.{lower}._synthetic", ast.parse(source))) == 1, (lower, source)
        # The base of a room that stands higher is a part of both.
        for source in () if lower in ("tracking._base", "baselines._records") else sources(lower):
            assert not upward(f"combee_dspy.{higher}._synthetic", ast.parse(source)), (higher, source)


@pytest.mark.parametrize(
    "source",
    [
        "import mlflow",
        "import mlflow.tracking as t",
        "from mlflow import MlflowClient",
        "def late():\n    import mlflow",
        "from combee_dspy import engine",
        "from combee_dspy import Combee",
        "import combee_dspy",
        "from combee_dspy.tracking import MLflowTracker",
        "from combee_dspy.tracking._baseline import Hook",
    ],
)
def test_what_no_strategy_may_import_is_flagged_in_every_room(source):
    for room in (*LAYERS[0], *LAYERS[1]):
        module = f"combee_dspy.{room}" if room == "tracking._base" else f"combee_dspy.{room}._synthetic"
        found = upward(module, ast.parse(source))
        assert len(found) == (0 if room == "tracking._base" and "mlflow" in source else 1), module


def test_what_rooms_may_import_is_not_flagged():
    source = "from combee_dspy.tracking._base import Hook\nfrom combee_dspy.records import Lesson\nimport mlflow_like"
    assert not upward("combee_dspy.operators._synthetic", ast.parse(source))
    assert not upward("combee_dspy.tracking._mlflow", ast.parse("import mlflow"))
    assert not upward("combee_dspy.cli.synthetic", ast.parse("from combee_dspy import Combee, registry"))


@pytest.mark.parametrize(
    "source",
    [
        "import gepa.core.state",
        "from gepa.core import engine",
        "from gepa import core",
        "from dspy.teleprompt.gepa.gepa_utils import DspyAdapter",
        "from dspy.utils import _hidden",
        "from dspy._internal import thing",
        "import dspy._internal",
        "dspy.settings._reveal()",
        "state._pareto_of_somebody_else = 1",
        "class A(dspy.Module):\n    def f(self):\n        return self._hidden_of_dspy",
        "gepa.core.state.load()",
    ],
)
def test_a_private_part_is_flagged_everywhere_but_behind_the_door(source):
    tree = ast.parse(source)
    assert foreign_parts("combee_dspy.engine.synthetic", tree, frozenset())
    assert not foreign_parts(PRIVATE_DOOR, tree, frozenset())


def test_our_own_private_names_are_not_foreign():
    tree = ast.parse("class A:\n    def f(self):\n        self._mine = 1\n        return self._mine")
    assert not foreign_parts("combee_dspy.engine.synthetic", tree, frozenset(bound_names(tree)))


@pytest.mark.parametrize(
    "source",
    [
        "import scipy",
        "from scipy.optimize import curve_fit",
        "try:\n    import mlflow\nexcept ImportError:\n    mlflow = None",
        "try:\n    pass\nexcept ImportError:\n    import pandas",
        "if True:\n    import pyarrow.parquet",
        "class A:\n    import datasets",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import litellm",
    ],
)
def test_a_heavy_import_at_module_level_is_flagged(source):
    assert len(heavy_at_import("combee_dspy.synthetic", ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import scipy",
        "if TYPE_CHECKING:\n    import pandas",
        "class A:\n    def f(self):\n        import mlflow",
        "import scipyish",
    ],
)
def test_a_heavy_import_where_it_is_used_is_not_flagged(source):
    assert not heavy_at_import("combee_dspy.synthetic", ast.parse(source))
