"""The layers hold: who may import what, who may touch private parts of DSPy and gepa, and files
that can be read.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "combee_dspy"

# From the ground up. A module imports from its own layer and those below it.
LAYERS = (
    (
        "_private",
        "edits",
        "events",
        "exceptions",
        "files",
        "verdicts",
        "hashing",
        "json_texts",
        "lessons",
        "records",
        "reflections",
        "registry",
        "strategies",
        "streams",
        "texts",
        "ngrams",
        "yaml_files",
    ),
    (
        "aggregators",
        "artifacts",
        "benchmarks",
        "controllers",
        "costs",
        "diversity",
        "evaluation",
        "guards",
        "journal",
        "lms",
        "memory",
        "operators",
        "rollouts",
        "shuffle",
        "skills",
        "stopping",
        "weighers",
    ),
    ("options", "report", "tracking", "traces"),
    ("gepa_arguments", "settings", "arguments"),
    ("search",),
    # The package itself shows what is below it to users, and to the programs above.
    ("combee", "learning", "loading", "many", "presets", "reducer", ""),
    ("__main__", "cli", "recorded", "testing"),
)
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
STRATEGY_ROOMS = frozenset(LAYERS[1])
# What a strategy gets is a context: it knows neither who calls it nor who reads along.
BEYOND_A_STRATEGY = ("combee_dspy.search", "combee_dspy.tracking", "mlflow", "sqlite3")
# Distributions that the core neither imports nor names: it finds what they bring by entry points.
PLUGIN = re.compile(r"\bcombee[-_](agents|bench|simulator|strategist)\b")
MOVED_ROOMS = tuple(f"combee_dspy.{room}" for room in ("canary", "diagnosis", "planning"))
PRIVATE_DOOR = "combee_dspy._private"
PRIVATE_ROOMS = ("dspy.teleprompt.gepa", "gepa.core.engine", "gepa.core.state")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return the tree of each module by its dotted name, read when a test asks for the first."""
    return {
        module_name(path): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imported(tree: ast.AST) -> Iterator[str]:
    """Every import, in functions and behind TYPE_CHECKING too, as the dotted name of what is
    imported.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute in this package"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def room_of(name: str) -> str:
    """The room of a module of ours, or of a name in one; the package itself is the room without a
    name.
    """
    part = name.partition(".")[2].partition(".")[0]
    return part if part in LAYER_OF else ""


def upward(module: str, tree: ast.AST) -> list[str]:
    own = LAYER_OF[room_of(module)]
    ours = [name for name in imported(tree) if within(name, ("combee_dspy",))]
    return [f"{module} imports {name}" for name in ours if LAYER_OF[room_of(name)] > own]


def beyond(module: str, tree: ast.AST) -> list[str]:
    if room_of(module) not in STRATEGY_ROOMS - {"journal"}:
        return []
    return [
        f"{module} imports {name}" for name in imported(tree) if within(name, BEYOND_A_STRATEGY)
    ]


def private(module: str, tree: ast.AST) -> list[str]:
    """Imports of parts of DSPy and gepa that they do not show, and of anybody's underscored
    names.
    """
    if module == PRIVATE_DOOR:
        return []
    foreign = [name for name in imported(tree) if name.split(".")[0] in ("dspy", "gepa")]
    hidden = [name for name in foreign if any(part.startswith("_") for part in name.split("."))]
    return [
        f"{module} imports {name}"
        for name in foreign
        if within(name, PRIVATE_ROOMS) or name in hidden
    ]


def foreign(module: str, tree: ast.AST) -> list[str]:
    """Imports of other distributions of this project, and of rooms that are theirs now."""
    ours = [name for name in imported(tree) if name.startswith("combee_")]
    return [
        f"{module} imports {name}"
        for name in ours
        if not within(name, ("combee_dspy",)) or within(name, MOVED_ROOMS)
    ]


def test_every_room_has_one_layer() -> None:
    rooms = {name.split(".")[1] for name in modules() if "." in name}
    assert rooms == set(LAYER_OF) - {""}
    assert sum(map(len, LAYERS)) == len(LAYER_OF)


def test_no_module_imports_from_a_layer_above_it() -> None:
    assert not [line for module, tree in modules().items() for line in upward(module, tree)]


def test_a_strategy_knows_neither_the_search_nor_who_reads_along() -> None:
    assert not [line for module, tree in modules().items() for line in beyond(module, tree)]


def test_one_module_touches_private_parts_of_dspy_and_gepa() -> None:
    assert not [line for module, tree in modules().items() for line in private(module, tree)]


def test_the_core_imports_no_plugin_and_no_room_that_moved_to_one() -> None:
    assert not [line for module, tree in modules().items() for line in foreign(module, tree)]
    named = {
        str(path): PLUGIN.findall(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }
    assert not {path: names for path, names in named.items() if names}


@pytest.mark.parametrize(
    "source",
    ["from combee_bench import speed", "def late():\n    from combee_dspy.canary import publish"],
)
def test_what_imports_a_plugin_would_be_found(source: str) -> None:
    assert foreign("combee_dspy.many", ast.parse(source))


@pytest.mark.parametrize(
    "source", ["import combee_dspy.search", "def late():\n    from combee_dspy.search import run"]
)
def test_what_reaches_up_would_be_found(source: str) -> None:
    tree = ast.parse(source)
    assert upward("combee_dspy.operators._x", tree)
    assert beyond("combee_dspy.operators._x", tree)
    assert not upward("combee_dspy.many", tree)


def test_the_door_would_be_found_under_another_name() -> None:
    assert len(private("combee_dspy.search._x", modules()[PRIVATE_DOOR])) > 3
