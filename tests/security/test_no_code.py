"""Nothing that is read becomes code: no pickle, no eval, no YAML object, in our source and while a
run goes on.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    ROOT / "combee_dspy",
    *(
        ROOT / "plugins" / name
        for name in ("agents", "bench/combee_bench", "simulator", "strategist")
    ),
]
CODE_READERS = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
CALLS = {"eval", "exec", "compile", "__import__", "unsafe_load", "full_load"}


def dangerous_names(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {item.name.split(".")[0] for item in node.names} & CODE_READERS
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.module or "").split(".")[0]} & CODE_READERS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names |= {node.func.id} & CALLS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_yaml = isinstance(node.func.value, ast.Name) and node.func.value.id == "yaml"
            names |= {node.func.attr} & ({"load", *CALLS} if is_yaml else set())
            names |= {
                item.arg
                for item in node.keywords
                if item.arg == "shell" and getattr(item.value, "value", 0) is True
            }
    return names


def test_no_source_of_ours_makes_code_of_data() -> None:
    files = [
        file for folder in SOURCES for file in folder.rglob("*.py") if "tests" not in file.parts
    ]
    assert len(files) > 200
    assert {
        str(file): names
        for file in files
        if (names := dangerous_names(ast.parse(file.read_text())))
    } == {}


RUN = """
import sys
seen = []
def note(event, arguments):
    if event == "pickle.find_class":
        seen.append((event, arguments[:2]))
sys.addaudithook(note)
from pathlib import Path
import dspy
from combee_dspy.tracking import candidates, rollouts, runs, show, write_report
from tests.worlds import World
folder = Path(sys.argv[1])
settings = {"log_dir": folder / "log", "cache": str(folder / "cache.sqlite")}
settings["tracker"] = ["progress", "mlflow"]
for _ in range(2):
    program = World.made().compile(heldout=12, max_metric_calls=90, **settings)
for read in (candidates, rollouts, runs):
    list(read(folder / "log"))
show(folder / "log", "best")
write_report(folder / "log")
program.save(str(folder / "program.json"))
program.load(str(folder / "program.json"))
print("pickled:", seen)
"""


@pytest.mark.slow
def test_a_run_its_resume_its_cache_mlflow_and_its_readers_unpickle_nothing(tmp_path: Path) -> None:
    environment = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "DSPY_CACHEDIR": str(tmp_path / "dspy"),
    }
    process = subprocess.run(  # noqa: S603 - the code above
        [sys.executable, "-c", RUN, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=os.environ | environment,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.splitlines()[-1] == "pickled: []"
