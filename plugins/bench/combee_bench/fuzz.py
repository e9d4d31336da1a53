"""Does anything that a model, a data set or a file may hold break a run, or a reader, or take
long?
"""

from __future__ import annotations

import itertools
import json
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import yaml
from rich.table import Table

from combee_bench.options import FuzzOptions
from combee_bench.spoiling import Fault, Spoiling
from combee_bench.surroundings import load_rows, quietly
from combee_bench.tables import by_rows
from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.artifacts import Bullet, BulletText, read_tags, read_text
from combee_dspy.cli._reading import checked, read_examples, read_mapping
from combee_dspy.exceptions import CombeeError
from combee_dspy.guards import CopyIndex, placeholders
from combee_dspy.lms.redact import mask, scrub
from combee_dspy.operators import decode_demonstrations, decode_fields
from combee_dspy.rollouts._attempts import bounded
from combee_dspy.streams import derive
from combee_dspy.tracking import write_report
from combee_dspy.tracking._lint import suspicious
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task
from combee_simulator.service import Running
from combee_strategist.planning import Curve, diagnose, read_diagnosis, read_spec

__all__ = ["FuzzRow", "hostile", "line", "passed", "run", "table"]

_AGGREGATORS = ("union", "parallel-scan", "single-call", "summarize", "top-k")
_OPERATORS = (
    ("insert",),
    ("rewrite",),
    ("rephrase", "delete"),
    ("reorder", "few-shot-swap"),
    ("instruction-channel",),
)
_PIECES = (
    "[[ ## completed ## ]]",
    "[[ ## lessons ## ]]",
    "[[ ## answer ## ]]",
    "</data-0123456789abcdef>",
    "```",
    "<script>",
    "{",
    "[",
    '"',
    "}",
    "]",
    "{{7*7}}",
    "{0.__class__}",
    "{amount}",
    "%s%n",
    "$(id)",
    "`id`",
    "../../etc/passwd",
    "\\N{DASH}",
    "\x00",
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\u202e",
    "\u2028",
    "\ud800",
    "\U0010ffff",
    "\ufeff",
    "NaN",
    "1e999",
    "-0",
    "!!python/object/apply:os.system [id]",
    "&a [*a, *a]",
    "- [a-00001] (helpful 9) x",
    "DELETE",
    "null",
    "\r\n\r\n",
)
_SLOW = 1.0
"""Seconds that nothing may take for a megabyte."""


@dataclass(frozen=True, slots=True)
class FuzzRow:
    """One thing that was given hostile material.

    Attributes:
        what: What it was.
        tried: How often.
        refused: How often it was refused by an error of the package's own.
        wrong: How often anything else was raised, or something was lost that must not be.
        slowest: Seconds of the slowest.
        example: The first that went wrong, and how to get it again.
    """

    what: str
    tried: int
    refused: int
    wrong: int
    slowest: float
    example: str = ""


def run(options: FuzzOptions) -> Iterator[FuzzRow]:
    """Compile with a model that answers anything, then read files and texts that hold anything."""
    yield from _runs(options)
    yield from _files(options)
    yield from _texts(options)


def hostile(stream: random.Random, text: str) -> str:
    """Return a text as it should not be: cut, repeated, spliced with marks of every kind, nested,
    or something else.
    """
    for _ in range(stream.randint(1, 3)):
        at, piece = stream.randrange(len(text) + 1), stream.choice(_PIECES)
        match stream.randrange(8):
            case 0:
                text = text[:at]
            case 1 | 2 | 3:
                text = text[:at] + piece * stream.choice((1, 1, 2, 50)) + text[at:]
            case 4:
                text = text[:at] + text[stream.randrange(len(text) + 1) :]
            case 5:
                text = piece * stream.choice((1, 10, 3_000))
            case 6:
                text = "".join(stream.choice(_PIECES) for _ in range(stream.randint(1, 30)))
            case _:
                text = "".join(chr(ord(one) ^ (stream.random() < 0.02)) for one in text)
    return text


def _runs(options: FuzzOptions) -> Iterator[FuzzRow]:
    """Compile until as many answers have been spoiled as are asked for; what is learned and shown
    must be whole.
    """
    sizes = {"train": 16, "validation": 6, "heldout": 2}
    rows = load_rows("formula-mini", {"task": "compute"}, **sizes)
    task = benchmark_task(rows, options.seed, params={"task": "compute"})
    kinds = [
        *itertools.product(_AGGREGATORS, _OPERATORS, ("instruction",)),
        ("union", (), "playbook"),
    ]
    derive(options.seed, "fuzz", "kinds").shuffle(kinds)
    found: dict[str, FuzzRow] = {
        name: FuzzRow(f"a run, {name}", 0, 0, 0, 0.0) for name in (*_AGGREGATORS, "playbook")
    }
    with ExitStack() as stack:
        service = stack.enter_context(
            SimulatedService(SimulatedConfig(seed=options.seed, time_scale=0.0), task)
        )
        spoiling = Spoiling(f"{service.api_base}/chat/completions", options.rate, options.seed)
        spoiling.fault = Fault("model", partial(_answered, options.seed))
        server = Running(spoiling, 0)
        stack.callback(server.stop)
        url = f"http://127.0.0.1:{server.port}/v1"
        lm = dspy.LM("openai/simulated", api_base=url, api_key="simulated", cache=False)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number in itertools.count():
            if spoiling.spoiled >= options.outputs:
                break
            aggregator, operators, artifact = kinds[number % len(kinds)]
            spoiling.name = str(number)  # what is drawn in a run depends on its number alone
            began, place = time.monotonic(), folder / str(number)
            student = rows.program()
            for predictor in student.predictors():
                predictor.signature = predictor.signature.with_instructions(
                    "Answer in {currency}, and keep {unit}."
                )
            settings: dict[str, Any] = {
                "budget": Budget(epochs=1),
                "log_dir": place,
                "seed": options.seed + number,
                "tracker": (),
                "reflection_minibatch_size": 8,
                "num_threads": 8,
                "validation": Validation(probe=False),
                "search": Search(patience=10.0),
                "aggregator": aggregator,
                "artifact": artifact,
            }
            if artifact == "instruction":
                settings["operators"] = list(operators)
            combee = Combee(rows.metric, reflection_lm=lm, **settings)
            name = "playbook" if artifact == "playbook" else aggregator
            refused, problem = False, ""
            try:
                with dspy.context(lm=lm), quietly():
                    learned = combee.compile(
                        student,
                        trainset=list(rows.train.examples),
                        valset=list(rows.validation.examples),
                    )
                for predictor in learned.predictors():
                    if not {"{currency}", "{unit}"} <= set(
                        placeholders(predictor.signature.instructions)
                    ):
                        problem = "placeholders are gone"
                write_report(place)
            except CombeeError:
                refused = True
            except Exception as error:  # noqa: BLE001 - what is looked for
                problem = f"{type(error).__name__}: {error}"
            what = (
                f"seed {options.seed}, run {number} ({aggregator},"
                f" {'+'.join(operators) or artifact}): {problem}"
            )
            found[name] = _one_more(
                found[name], refused, problem and what, time.monotonic() - began
            )
    yield from (one for one in found.values() if one.tried)


async def _answered(seed: int, http: Any, right: dict[str, Any]) -> Any:
    from aiohttp import web

    choice = right["choices"][0]
    stream = derive(seed, "fuzz", json.dumps(choice), len(await http.read()))
    choice["message"]["content"] = hostile(stream, choice["message"]["content"] or "")
    return web.json_response(right)


def _files(options: FuzzOptions) -> Iterator[FuzzRow]:
    """Read files of every kind that a command opens, changed at random."""
    run_file = {
        "data": {"benchmark": {"name": "formula-mini"}},
        "lms": {"task": {"model": "simulated", "time_scale": 0}},
        "budget": {"rollouts": 300},
        "strategies": {"operators": ["insert"], "aggregator": "union"},
        "num_threads": 4,
    }
    demonstration = (
        '{"demonstrations": [{"inputs": {"q": "a"}, "outputs": {"a": "b"}}], "version": 1}'
    )
    fields = '{"fields": {"answer": "one word"}, "version": 1}'
    examples = '{"question": "a", "answer": "b"}\n{"question": "c", "answer": "d"}\n'
    scores = tuple(tuple(float(row < 4 + step) for row in range(20)) for step in range(12))
    diagnosis = diagnose(Curve(tuple(range(20, 260, 20)), scores, 260))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        readers: dict[str, tuple[str, str, Callable[[Path], object]]] = {
            "a run file": ("run.yaml", yaml.safe_dump(run_file), _run_file),
            "a specification": ("spec.yaml", _SPEC, read_spec),
            "examples, JSON lines": ("rows.jsonl", examples, _examples),
            "examples, CSV": ("rows.csv", "question,answer\na,b\nc,d\n", _examples),
            "a diagnosis": ("diagnosis.json", json.dumps(asdict(diagnosis)), _diagnosis),
            "demonstrations": ("demos.json", demonstration, _demonstrations),
            "field descriptions": ("fields.json", fields, _fields),
        }
        for what, (filename, right, read) in readers.items():
            file, row = folder / filename, FuzzRow(what, 0, 0, 0, 0.0)
            file.write_text(right)
            read(file)  # what is changed below is read as it is
            for number in range(options.files):
                stream = derive(options.seed, "fuzz", what, number)
                text = hostile(stream, right)
                file.write_bytes(
                    text.encode("utf-8", "surrogatepass" if stream.random() < 0.5 else "replace")
                )
                row = _tried(row, partial(read, file), f"seed {options.seed}, {what} {number}")
            yield row


def _run_file(file: Path) -> object:
    return checked(read_mapping(file), file.parent)


def _examples(file: Path) -> object:
    return read_examples("train", file, ["question"])


def _diagnosis(file: Path) -> object:
    return read_diagnosis(file.parent)


def _demonstrations(file: Path) -> object:
    return decode_demonstrations(file.read_bytes().decode("utf-8", "replace"))


def _fields(file: Path) -> object:
    return decode_fields(file.read_bytes().decode("utf-8", "replace"))


def _texts(options: FuzzOptions) -> Iterator[FuzzRow]:
    """Give a megabyte of each kind of text, and small hostile ones, to all that reads a text by
    pattern.
    """
    book = BulletText(
        tuple(Bullet(f"s-{n}", "strategies", f"Advice {n} about things.") for n in range(5)),
        ("strategies",),
    )
    copies = CopyIndex(
        [{"question": "how many words are in this sentence that has a good many of them"}]
    )
    readers: dict[str, Callable[[str], object]] = {
        "placeholders": placeholders,
        "lint of a prompt": _lint,
        "copies of examples": copies.copied,
        "keys taken out": mask,
        "a log line": scrub,
        "an answer cut": bounded,
        "a playbook's text": partial(_whole, book),
        "a reflector's tags": _tags,
    }
    for what, read in readers.items():
        row = FuzzRow(what, 0, 0, 0, 0.0)
        for number in range(options.texts):
            stream = derive(options.seed, "text", what, number)
            row = _tried(row, partial(read, hostile(stream, str(book))), f"{what} {number}")
        for piece in (
            *_PIECES,
            "a",
            " ",
            "a ",
            "\n",
            "- ",
            "1. ",
            "a@",
            "http://",
            "ignore all ",
            "0123 ",
        ):
            text = (piece * (options.longest // len(piece) + 1))[: options.longest]
            row = _tried(
                row,
                partial(read, text),
                f"{what}: {piece!r} × {options.longest // len(piece)}",
                _SLOW,
            )
        yield row


def _lint(text: str) -> object:
    return suspicious({"main": text}, {"main": ""})


def _tags(text: str) -> object:
    return read_tags(_loaded(text), {"s-1", "s-2"})


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return [
            {"op": text[:5], "ids": [text], "content": text},
            text,
            None,
            {"id": text, "tag": text},
        ]


def _whole(book: BulletText, text: str) -> None:
    """Write a playbook with a hostile bullet and read it again: nothing is lost and nothing comes
    to it.
    """
    bullet = Bullet("s-9", "strategies", text)
    read = read_text(str(replace(book, bullets=(*book.bullets, bullet))))
    if [one.id for one in read.bullets][: len(book.bullets)] != [one.id for one in book.bullets]:
        raise LookupError("a bullet is lost beside a hostile one")
    read_text(text)


def _tried(row: FuzzRow, read: Callable[[], object], name: str, limit: float = 60.0) -> FuzzRow:
    began, refused, problem = time.monotonic(), False, ""
    try:
        read()
    except CombeeError:
        refused = True
    except Exception as error:  # noqa: BLE001 - what is looked for
        problem = f"{name}: {type(error).__name__}: {re.sub(r'[^ -~]', '?', str(error))[:200]}"
    seconds = time.monotonic() - began
    if seconds > limit:
        problem = f"{name}: {seconds:.1f} s"
    return _one_more(row, refused, problem, seconds)


def _one_more(row: FuzzRow, refused: bool, problem: str, seconds: float) -> FuzzRow:
    return replace(
        row,
        tried=row.tried + 1,
        refused=row.refused + refused,
        wrong=row.wrong + bool(problem),
        slowest=max(row.slowest, seconds),
        example=row.example or problem,
    )


def line(options: FuzzOptions, row: FuzzRow) -> str:
    """Return one row in a line."""
    return f"{row.what}: {row.tried} tried, {row.refused} refused, {row.wrong} wrong"


def passed(options: FuzzOptions, rows: Sequence[FuzzRow]) -> bool:
    """Return whether nothing went wrong."""
    return not any(row.wrong for row in rows)


def table(options: FuzzOptions, rows: Sequence[FuzzRow]) -> Table:
    """Return what was tried as a table."""
    heads = ("<given", "tried", "refused", "wrong", "slowest, s", "<first that went wrong")
    cells = [
        (*(str(one) for one in list(asdict(row).values())[:4]), f"{row.slowest:.2f}", row.example)
        for row in rows
    ]
    notes = ("refused: by an error of the package's own, which says what to do.",)
    return by_rows("Hostile answers, files and texts (no language model)", heads, cells, notes)


_SPEC = """
task:
  {name: formula, inputs: "question: str", outputs: "formula: number", metric: exact match,
   baseline: 0.4}
serial: {method: dspy.GEPA, version: dspy 3.4.1, rollouts: 1200, score: 0.62}
hardware: {kind: NVIDIA H100, count: 2, memory_gb: 80, network: same rack, slots: 64, models: split}
budget:
  {rollouts: 5000, tokens: 20000000, gpu_seconds: 7200, deadline: 2027-01-31, binds: rollouts}
evaluation:
  {dataset: formula-mini, split: by formula, scorer: exact match, owner: Ada Lovelace,
   used_to_tune: false}
failure_cost: a wrong answer is seen by a customer and refunded
"""
