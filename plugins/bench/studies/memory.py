"""A memory beside an instruction, simulated: ``python -m studies.memory TASK``, JSON lines out.

``formula`` and ``finer`` take the folder of the benchmark's rows. In ``many`` each of 1,000 facts
helps with one question, and held-out asks for the facts that were trained. In ``hidden`` a rule
without which nothing is right shares no word with any question; ``never`` is a memory in which
nothing stands always; ``wide`` one that looks up 32 lessons within 1,600 tokens.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import dspy
import typer

from combee_bench.endpoints import simulated_endpoint
from combee_bench.options import SpeedOptions
from combee_bench.planted import INSTRUCTION, plant
from combee_bench.speed.run import service_config
from combee_bench.surroundings import load_rows, quietly
from combee_dspy import Budget, Combee, Validation
from combee_dspy.artifacts import Artifact, Instruction, Memory
from combee_dspy.lessons import Book
from combee_dspy.memory import BM25, MemoryText, read_memory
from combee_dspy.records import Reflection
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat
from combee_simulator import SimulatedQuestion, SimulatedTask, benchmark_task

app = typer.Typer(help=__doc__, no_args_is_help=True)


class Never(Memory):
    """A memory in which no lesson stands always."""

    def arranged(self, text: str, book: Book, examples: Mapping[str, Reflection]) -> str:
        """Return the text as it is."""
        return text


ARTIFACTS: Mapping[str, Callable[[], Artifact]] = {
    "instruction": Instruction,
    "memory": Memory,
    "never": Never,
    "wide": lambda: Memory(k=32, budget_tokens=1_600),
}


@dataclass(frozen=True)
class Rows:
    """A task: its program, splits, metric and what the simulated model knows."""

    program: Callable[[], dspy.Module]
    splits: Sequence[Sequence[dspy.Example]]
    metric: Callable[..., Any]
    knowledge: SimulatedTask


def compare(rows: Rows, names: Sequence[str], seeds: int, scale: float) -> None:
    """Compile with each artifact and write a line for each run."""
    options = SpeedOptions(time_scale=scale)
    for seed in range(seeds):
        with simulated_endpoint(service_config(options, seed), rows.knowledge) as endpoint:
            for name in names:
                print(json.dumps(_row(rows, name, seed, scale, endpoint)), flush=True)  # noqa: T201


def _row(rows: Rows, name: str, seed: int, scale: float, endpoint: Any) -> dict[str, Any]:
    train, validation, heldout = rows.splits
    with (
        tempfile.TemporaryDirectory() as folder,
        dspy.context(**endpoint.settings()),
        quietly(),
    ):
        optimizer = Combee(
            rows.metric,
            artifact=ARTIFACTS[name](),
            budget=Budget(epochs=1),
            reflection_lm=endpoint.reflection_lm,
            num_threads=64,
            seed=seed,
            validation=Validation(probe=False),
            tracker=(),
            log_dir=folder,
        )
        begun = time.monotonic()
        program = optimizer.compile(
            rows.program(), trainset=list(train), valset=list(validation), heldout=list(heldout)
        )
        seconds = time.monotonic() - begun
        tokens = _tokens(Path(folder) / "journal.sqlite")
    report = program.combee_report
    text = max(report.texts.values(), key=len)
    memory = read_memory(text, 0)
    return {
        "artifact": name,
        "seed": seed,
        "before": round(report.heldout.before, 3),
        "after": round(report.heldout.after, 3),
        "tokens_a_call": tokens[1],
        "untouched_tokens_a_call": tokens[0],
        "task_tokens": tokens[2],
        "lessons": len(memory.always) + len(memory.lookup),
        "always": len(memory.always),
        "k": memory.k,
        "seconds": round(seconds / scale, 1) if scale else None,
    }


def _tokens(journal: Path) -> tuple[float, float, int]:
    """Return prompt tokens of a held-out call, untouched and learned, and all of the task's."""
    sql = (
        "SELECT e.candidate, sum(u.prompt_tokens) / sum(u.calls), min(e.id) FROM effect e JOIN"
        " usage u ON u.effect = e.id WHERE e.purpose = 'heldout' AND u.role = 'task' GROUP BY 1"
    )
    every = "SELECT sum(prompt_tokens) FROM usage WHERE role = 'task'"
    with contextlib.closing(sqlite3.connect(journal)) as connection:
        first = connection.execute("SELECT candidate FROM effect WHERE kind = 'rollout'").fetchone()
        mean = {row[0]: row[1] for row in connection.execute(sql)}
        total = connection.execute(every).fetchone()[0]
    learned = [tokens for candidate, tokens in mean.items() if candidate != first[0]]
    return mean[first[0]], (learned or [mean[first[0]]])[0], total


def _benchmark(
    name: str, path: Path, train: int, validation: int, heldout: int, *, finer: bool = False
) -> Rows:
    params = {"path": str(path)}
    rows = load_rows(name, params, train=train, validation=validation, heldout=heldout)
    knowledge = benchmark_task(rows, 0, params=params, base_rate=0.0)
    splits = [list(split.examples) for split in rows.splits]
    # Lessons by mistake need answers that are numbers.
    return Rows(rows.program, splits, rows.metric, knowledge if finer else knowledge.by_mistake())


@app.command()
def formula(
    path: Path, seeds: int = 3, scale: float = 0.5, artifacts: str = "instruction,memory"
) -> None:
    """Compare on an epoch of 240 rows of Formula."""
    compare(_benchmark("formula", path, 240, 60, 136), artifacts.split(","), seeds, scale)


@app.command()
def finer(path: Path, seeds: int = 1, scale: float = 0.0) -> None:
    """Compare on FiNER, which has 139 labels."""
    rows = _benchmark("finer", path, 300, 60, 99, finer=True)
    compare(rows, ["instruction", "memory", "wide"], seeds, scale)


def _exact(gold: Any, pred: Any, trace: Any = None, name: Any = None, of: Any = None) -> Any:
    right = str(pred.code).strip() == gold.code
    return dspy.Prediction(
        score=float(right), feedback="Right." if right else f"Wrong. {gold.feedback}"
    )


def _facts(count: int, rule: str = "") -> Rows:
    """Return a task of so many facts, each of which is asked for in two ways."""
    facts, questions, asked = plant(count, 0), [], []
    for fact in facts:
        ways = (fact.question, f"Somebody from {fact.port} sends {fact.goods}. Name its code.")
        questions += [
            SimulatedQuestion(way, fact.code, fact.wrong, fact.code, fact.lesson) for way in ways
        ]
        code = fact.code.lower() if rule else fact.code
        feedback = " ".join((f"Lesson: {fact.line}", f"Lesson: {rule}" if rule else ""))
        asked.append(
            [
                dspy.Example(question=way, code=code, feedback=feedback).with_inputs("question")
                for way in ways
            ]
        )
    train, others = ([ways[place] for ways in asked] for place in range(2))
    splits = (train, others[: count // 10], others[-count // 5 :])
    signature = dspy.Signature("question -> code", INSTRUCTION)
    knowledge = SimulatedTask(tuple(questions), ("code",), base_rate=0.0)
    return Rows(lambda: dspy.Predict(signature), splits, _exact, knowledge)


@app.command()
def many(count: int = 1_000, seeds: int = 1) -> None:
    """Compare on as many facts as there are rows."""
    compare(_facts(count), ["instruction", "memory"], seeds, 0.0)


@dataclass(frozen=True)
class _Scripted:
    task_lm: dspy.BaseLM
    reflection_lm: dspy.BaseLM

    def settings(self) -> dict[str, Any]:
        return {"lm": self.task_lm, "adapter": dspy.ChatAdapter()}


@app.command()
def hidden(count: int = 120, seeds: int = 3) -> None:
    """Compare, scripted, where a rule that no word of an input points to decides every row."""
    rule = "[RULE] Write small letters throughout."
    rows = _facts(count, rule)

    def answer(request: ScriptedRequest) -> str:
        for question in rows.knowledge.questions:
            if question.text in request.last:
                code = question.target if f"[{question.key}]" in request.system else "?"
                return as_chat({"code": code.lower() if "[RULE]" in request.system else code})
        return as_chat({"code": "?"})

    def read(request: ScriptedRequest) -> str:
        if "contradictory" in request.text:
            return as_chat({"same": [], "contradictory": [], "narrower": [], "empty": []})
        examples: dict[str, list[str]] = {}
        number = ""
        for match in re.finditer(r"Example\W+(\d+)|Lesson: (\[\w+\][^.]*\.)", request.text):
            number = match[1] or number
            if match[2]:
                examples.setdefault(match[2], []).append(number)
        lessons = [f"({', '.join(numbers)}) {line}" for line, numbers in examples.items()]
        return as_chat({"lessons": lessons})

    endpoint = _Scripted(ScriptedLM(answer), ScriptedLM(read))
    for seed in range(seeds):
        for name in ("instruction", "never", "memory"):
            print(json.dumps(_row(rows, name, seed, 0.0, endpoint)), flush=True)  # noqa: T201


@app.command()
def lookup(sizes: Annotated[str, typer.Option()] = "100,10000,100000") -> None:
    """Time lookups among lessons of 15 words, with inputs of 60, words by Zipf's law."""
    stream = random.Random(0)  # noqa: S311 - texts, no secrets
    words = [f"w{rank}" for rank in range(20_000)]
    weights = [1 / (rank + 1) for rank in range(20_000)]
    inputs = [" ".join(stream.choices(words, weights, k=60)) for _ in range(300)]
    for size in map(int, sizes.split(",")):
        lessons = [" ".join(stream.choices(words, weights, k=15)) for _ in range(size)]
        program: Any = Memory(k=4).build(
            dspy.Predict("question -> answer"),
            {"self": str(MemoryText("Answer.", (), dict.fromkeys(lessons, ""), (), 4))},
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun = time.perf_counter()
        nearest = BM25().index(lessons)
        built = time.perf_counter() - begun
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        row = {
            "lessons": size,
            "index_seconds": round(built, 2),
            "index_mib": (after - before) // 1024,
            "lookup_ms": _milliseconds(nearest(query, 4) for query in inputs),
        }
        lm = dspy.utils.DummyLM([{"answer": "1"}] * 2_000)
        plain = dspy.Predict("question -> answer")
        with dspy.context(lm=lm):
            program(question=inputs[0])  # builds the index
            row["call_ms"] = _milliseconds(program(question=query) for query in inputs)
            row["plain_call_ms"] = _milliseconds(plain(question=query) for query in inputs)
        print(json.dumps(row), flush=True)  # noqa: T201


def _milliseconds(steps: Iterator[object]) -> float:
    """Return the median CPU time of a step, which a busy machine changes least."""
    times = []
    while True:
        begun = time.thread_time()
        if next(steps, steps) is steps:
            return round(sorted(times)[len(times) // 2] * 1_000, 3)
        times.append(time.thread_time() - begun)


if __name__ == "__main__":
    app()
