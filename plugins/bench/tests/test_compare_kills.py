"""A comparison that is killed leaves whole journals, and the next one comes to the same."""

from __future__ import annotations

import dataclasses
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from combee_bench import compare
from combee_bench.options import CompareOptions
from combee_dspy.journal import Reader
from combee_dspy.journal._integrity import check
from combee_dspy.journal._rows import open_read_only
from combee_dspy.streams import derive
from plugins.bench.tests.killing import EVERY, Processes
from plugins.bench.tests.sizes import show, size

# What two comparisons of the same data agree in.
SAME = ("method", "rollouts", "tokens", "validation", "before", "after")
METHODS = ("gepa", "combee", "combee-playbook")


@pytest.mark.slow
def test_a_comparison_that_is_killed_comes_to_the_same_the_next_time(tmp_path: Path) -> None:
    kills, stream = size("kills", 2), derive(0, "kills", "compare")
    whole, killed, died = tmp_path / "whole", tmp_path / "killed", 0
    with Processes(compare_all) as processes:
        assert processes.start({"folder": str(whole)}).wait() == 0
        for _ in range(kills):
            before = len(journals(killed))
            process = processes.start({"folder": str(killed)})
            most = before + stream.randint(1, 2)  # within the first of ours, or the second
            while process.poll() is None and len(journals(killed)) < most:
                time.sleep(EVERY)
            time.sleep(stream.uniform(0.0, 0.2))
            died += process.kill()
        assert processes.start({"folder": str(killed)}).wait() == 0
    states = [state_of(journal) for journal in journals(killed)]
    show({"run": "compare", "kills": died, "journals": states})
    assert states[-2:] == ["finished", "finished"]
    assert len(states) > 2
    assert [row["method"] for row in results(whole)] == list(METHODS)
    assert results(killed)[-len(METHODS) :] == results(whole)


def journals(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs/*/*/journal.sqlite"))


def state_of(journal: Path) -> str:
    """Return how a run ended, of a journal whose rows are all as they were written."""
    with closing(open_read_only(journal)) as connection:
        if not check(connection, journal):
            return "not begun"  # killed between the file and its tables
    with Reader(journal, checked=True) as reader:
        return "".join(row["state"] for row in reader.rows("SELECT state FROM run"))


def results(folder: Path) -> list[dict[str, Any]]:
    """Return the runs that comparisons in a folder have ended, in their order."""
    lines = (folder / "results").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def compare_all(arguments: dict[str, Any]) -> None:
    """Compare in a process of its own, and note each run as it ends."""
    folder = Path(arguments["folder"])
    folder.mkdir(exist_ok=True)
    options = CompareOptions(
        methods=METHODS,
        budget=40,
        train=12,
        validation=6,
        heldout=8,
        threads=1,
        time_scale=0.001,
        log_dir=folder / "runs",
    )
    for run in compare.run(options):
        facts = dataclasses.asdict(run)
        with (folder / "results").open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: facts[name] for name in SAME}) + "\n")
