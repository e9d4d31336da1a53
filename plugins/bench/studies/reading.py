"""How long it takes to read a large journal: seconds and peak memory of each command.

``python -m studies.reading FOLDER --rollouts 200000`` writes a journal of made-up rollouts (no
language model, no run) where none is, then runs the commands on it in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from combee_dspy.journal._integrity import SCHEMA, SUMMED, VERSION, row_sum

ROWS, VALIDATION, ROLES = 1_000, 100, ("task", "proposer")
COMMANDS = (
    ("runs", "{}"),
    ("show", "{}"),
    ("show", "{}", "best"),
    ("candidates", "{}"),
    ("rollouts", "{}", "--where", "score < 0.5", "--limit", "50", "--table"),
    ("report", "{}"),
)
BEGAN = 1_700_000_000.0
DESCRIPTION = {
    "program": "Sort",
    "specs": {"aggregator": {"kind": "aggregator", "name": "union", "params": {}}},
    "models": dict.fromkeys(ROLES, "openai/simulated"),
    "evaluator": "studies.metric #0123456789ab",
    "digests": {"train": "a" * 64},
    "sizes": {"train": ROWS, "validation": VALIDATION, "heldout": 0},
    "versions": {"dspy": "3.4.1"},
    "simulated": True,
    "limits": {"rollouts": None},
    "budget": "Budget(epochs=1)",
}


def write_journal(folder: Path, rollouts: int) -> Path:
    """Write a journal with about so many rollouts, ten of eleven of them for learning."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "journal.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.create_function("row_sum", -1, row_sum)
        connection.executescript(f"PRAGMA synchronous=OFF; {SCHEMA} PRAGMA user_version={VERSION};")
        run = (1, "main", "finished", BEGAN, BEGAN + rollouts, 7, "{}", json.dumps(DESCRIPTION))
        _insert(connection, "run", [(*run, json.dumps({"best_score": 0.9, "reason": "done"}))])
        _insert(connection, "effect", _effects(rollouts))
        sql = f"""INSERT INTO usage SELECT id, 'task', 'openai/simulated', 1, 0, 0, 900, 80, 0.001,
            NULL, 0.5, row_sum(run, key, 'task', 'openai/simulated', 1, 0, 0, 900, 80, 0.001, NULL,
            0.5) FROM effect"""  # noqa: F541
        connection.execute(sql)
        _insert(connection, "event", _events(rollouts))
        connection.commit()
    return path


def _insert(connection: sqlite3.Connection, table: str, rows: Any) -> None:
    places = ", ".join(f"?{number}" for number in range(1, SUMMED[table].count(",") + 2))
    sql = f"INSERT INTO {table}({SUMMED[table]}, crc) VALUES ({places}, row_sum({places}))"  # noqa: S608
    connection.executemany(sql, rows)


def _effects(rollouts: int) -> Iterator[tuple[Any, ...]]:
    for number in range(rollouts):
        step, place = divmod(number, ROWS + VALIDATION)
        learning = place < ROWS
        purpose = "train" if learning else "validation"
        candidate = f"{step if learning else step + 1:016x}"
        row = place if learning else place - ROWS
        example, score = f"{row:064x}", float((number * 7919) % 10 > 3)
        value = {
            "example_id": example,
            "score": score,
            "prediction": {"answer": f"{number % 977}"},
            "calls": [
                {
                    "predictor": "predict",
                    "inputs": {"question": f"What is the net margin of company {row}? " * 8},
                    "outputs": {"reasoning": "Margin is income by revenue. " * 12, "answer": "7"},
                }
            ],
            "usage": [["task", "openai/simulated", 1, 0, 0, 900, 80, 0.001, None, 0.5]],
            "seconds": 0.5,
            "queue_seconds": 0.0,
            "prompt_hash": "0" * 16,
            "feedback": f"The expected answer is {row % 977}, as a percentage of revenue. " * 3,
            "inputs": json.dumps({"question": f"What is the net margin of company {row}? " * 8}),
        }
        key = f"rollout/{candidate}/{purpose}/{example[-16:]}/0/{purpose}/{step}"
        began = BEGAN + number * 0.1
        yield (
            *(1, key, "rollout", "task", purpose, step, "", candidate, example, purpose, 0, score),
            *(None, None, began, began + 0.5, 0.0, json.dumps(value)),
        )


def _events(rollouts: int) -> Iterator[tuple[Any, ...]]:
    at = BEGAN
    audit = {"user": "ada", "host": "h", "version": "0.3", "commit": None, "texts": "all"}
    audit |= {"process": 1, "python": "3.12", "dspy": "3.4.1", "program": "0" * 64}
    yield (1, "audit/-1//", -1, "", "audit", at, json.dumps({**audit, "metric": "0", "at": at}))
    seed = {"candidate": f"{0:016x}", "texts": {"predict": "Answer."}, "parents": []}
    seed |= {"operator": "seed", "components": []}
    yield (1, "candidate/-1//", -1, "", "candidate", at, json.dumps(seed))
    for step in range(rollouts // (ROWS + VALIDATION)):
        at = BEGAN + (step + 1) * (ROWS + VALIDATION) * 0.1
        child = f"{step + 1:016x}"
        lines = "\n".join(f"- Lesson {number} of many." for number in range(step + 1))
        batch = {"size": ROWS, "reason": "as many as fit", "fit": None, "clamps": []}
        born = {"candidate": child, "texts": {"predict": f"Answer.\n{lines}"}}
        born |= {"parents": [f"{step:016x}"], "operator": "insert", "components": ["predict"]}
        score = {"candidate": child, "index": step + 1, "score": 0.5 + step / 1e4, "rows": 100}
        ended = {"parent": f"{step:016x}", "components": ["predict"], "rows": ROWS}
        ended |= {"started": at - 100, "seconds": 100.0, "skipped": ""}
        for kind, data in {
            "batch": batch,
            "candidate": born,
            "validated": {**score, "best": True},
            "update": ended,
        }.items():
            yield (1, f"{kind}/{step}//", step, "", kind, at, json.dumps(data))


def measure(folder: Path) -> None:
    """Print seconds, CPU seconds and peak memory of each command, in a process of its own."""
    for command in COMMANDS:
        words = [word.format(folder) for word in command]
        with tempfile.TemporaryFile("w+") as errors:
            begun = time.perf_counter()
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "combee_dspy", *words],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - begun
            errors.seek(0)
            failed = f"  failed: {errors.read()[-300:]}" if status else ""
        name = " ".join(word for word in command if word != "{}")
        busy, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
        print(f"{name:60} {seconds:6.1f} s, CPU {busy:5.1f} s, {peak:5.0f} MB{failed}")  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rollouts", type=int, default=200_000)
    arguments = parser.parse_args()
    if not (arguments.folder / "journal.sqlite").exists():
        write_journal(arguments.folder, arguments.rollouts)
    measure(arguments.folder)
