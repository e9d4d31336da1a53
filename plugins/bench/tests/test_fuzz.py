"""Nothing that a model, a data set or a file may hold breaks a run or a reader, or takes long."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest
import yaml
from aiohttp import web

from combee_bench.surroundings import load_rows, quietly
from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.artifacts import Bullet, BulletText, read_tags, read_text
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.cli._reading import checked, read_examples, read_mapping
from combee_dspy.exceptions import CombeeError
from combee_dspy.guards import CopyIndex, placeholders
from combee_dspy.lms.redact import mask, scrub
from combee_dspy.operators import decode_demonstrations, decode_fields
from combee_dspy.rollouts._replies import bounded
from combee_dspy.streams import derive
from combee_dspy.tracking import write_report
from combee_dspy.tracking._lint import suspicious
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task
from combee_simulator.service import Running
from combee_strategist.planning import Curve, diagnose, read_diagnosis, read_spec
from plugins.bench.tests.sizes import show, size
from plugins.bench.tests.spoiling import Fault, Spoiling

pytestmark = pytest.mark.slow
SEED = size("seed", 0)
AGGREGATORS = ("union", "parallel-scan", "single-call")
OPERATORS = (
    ("insert",),
    ("rewrite",),
    ("rephrase",),
    ("reorder", "few-shot-swap"),
    ("instruction-channel",),
)
PIECES = (
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
# Characters of a long text, and the seconds of CPU that nothing may take for it: a busy machine
# takes no longer by this clock.
LONGEST, SLOW = size("longest", 100_000), 1.0


@dataclass(frozen=True, slots=True)
class Trials:
    """What became of hostile material.

    Attributes:
        what: What it was.
        tried: How often.
        refused: How often an error of the package's own refused it.
        wrong: How often anything else happened, or something was lost.
        slowest: Seconds of CPU of the slowest.
        example: The first that went wrong, and how to get it again.
    """

    what: str
    tried: int = 0
    refused: int = 0
    wrong: int = 0
    slowest: float = 0.0
    example: str = ""

    def add(self, refused: bool, problem: str, seconds: float) -> Trials:
        return replace(
            self,
            tried=self.tried + 1,
            refused=self.refused + refused,
            wrong=self.wrong + bool(problem),
            slowest=max(self.slowest, seconds),
            example=self.example or problem,
        )

    def attempt(self, read: Callable[[], object], name: str, limit: float = 60.0) -> Trials:
        began, refused, problem = time.process_time(), False, ""
        try:
            read()
        except CombeeError:
            refused = True
        except Exception as error:  # noqa: BLE001 - what is looked for
            problem = f"{name}: {type(error).__name__}: {re.sub(r'[^ -~]', '?', str(error))[:200]}"
        seconds = time.process_time() - began
        if seconds > limit:
            problem = f"{name}: {seconds:.1f} s"
        return self.add(refused, problem, seconds)


def hostile(stream: random.Random, text: str) -> str:
    """Return a text as it should not be: cut, repeated, spliced with marks of every kind, nested,
    or something else.
    """
    for _ in range(stream.randint(1, 3)):
        at, piece = stream.randrange(len(text) + 1), stream.choice(PIECES)
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
                text = "".join(stream.choice(PIECES) for _ in range(stream.randint(1, 30)))
            case _:
                text = "".join(chr(ord(letter) ^ (stream.random() < 0.02)) for letter in text)
    return text


def test_hostile_answers_break_no_run(tmp_path: Path) -> None:
    rows = load_rows("formula-mini", {"task": "compute"}, train=16, validation=6, heldout=2)
    task = benchmark_task(rows, SEED, params={"task": "compute"})
    kinds = [
        *itertools.product(AGGREGATORS, OPERATORS, ("instruction",)),
        ("union", (), "playbook"),
    ]
    derive(SEED, "fuzz", "kinds").shuffle(kinds)
    trials = {name: Trials(name) for name in (*AGGREGATORS, "playbook")}
    with ExitStack() as stack:
        config = SimulatedConfig(seed=SEED, time_scale=0.0)
        service = stack.enter_context(SimulatedService(config, task))
        spoiling = Spoiling(f"{service.api_base}/chat/completions", 0.5, SEED)
        spoiling.fault = Fault("model", spoil)
        server = Running(spoiling, 0)
        stack.callback(server.stop)
        url = f"http://127.0.0.1:{server.port}/v1"
        lm = dspy.LM("openai/simulated", api_base=url, api_key="simulated", cache=False)
        for number in itertools.count():
            if spoiling.spoiled >= size("outputs", 2_000):
                break
            aggregator, operators, artifact = kinds[number % len(kinds)]
            spoiling.name = str(number)  # what is drawn in a run depends on its number alone
            settings: dict[str, Any] = {"aggregator": aggregator, "artifact": artifact}
            if operators:
                settings["operators"] = list(operators)
            combee = Combee(
                rows.metric,
                reflection_lm=lm,
                budget=Budget(epochs=1),
                log_dir=tmp_path / str(number),
                seed=SEED + number,
                tracker=(),
                reflection_minibatch_size=8,
                num_threads=8,
                validation=Validation(probe=False),
                search=Search(patience=10.0),
                **settings,
            )
            name = "playbook" if artifact == "playbook" else aggregator
            what = f"seed {SEED}, run {number} ({settings})"
            trials[name] = trials[name].attempt(partial(learn, combee, rows, lm), what)
    for trial in trials.values():
        show(trial)
    assert not [trial for trial in trials.values() if trial.wrong]
    assert sum(trial.tried for trial in trials.values())


def learn(combee: Combee, rows: LoadedBenchmark, lm: dspy.LM) -> None:
    """Compile, and write the report; the placeholders of the prompt stay."""
    student = rows.program()
    for predictor in student.predictors():
        text = "Answer in {currency}, and keep {unit}."
        predictor.signature = predictor.signature.with_instructions(text)
    train, validation = list(rows.train.examples), list(rows.validation.examples)
    with dspy.context(lm=lm), quietly():
        learned = combee.compile(student, trainset=train, valset=validation)
    for predictor in learned.predictors():
        assert {"{currency}", "{unit}"} <= set(placeholders(predictor.signature.instructions))
    write_report(combee.settings.log_dir)


async def spoil(http: Any, right: dict[str, Any]) -> Any:
    choice = right["choices"][0]
    stream = derive(SEED, "fuzz", json.dumps(choice), len(await http.read()))
    choice["message"]["content"] = hostile(stream, choice["message"]["content"] or "")
    return web.json_response(right)


SPEC = """
task:
  {name: formula, inputs: "question: str", outputs: "formula: number", metric: exact match,
   baseline: 0.4}
serial: {method: dspy.GEPA, version: dspy 3.4.1, rollouts: 1200, score: 0.62}
models: {task: openai/gpt-4o-mini, proposer: openai/gpt-4o, evaluator: code}
hardware: {kind: NVIDIA H100, count: 2, memory_gb: 80, network: same rack, slots: 64, models: split}
budget:
  {rollouts: 5000, tokens: 20000000, gpu_seconds: 7200, deadline: 2027-01-31, binds: rollouts}
evaluation:
  {dataset: formula-mini, split: by formula, scorer: exact match, owner: Ada Lovelace,
   used_to_tune: false}
failure_cost: a wrong answer is seen by a customer and refunded
failure: costs
"""


def read_run_file(file: Path) -> object:
    return checked(read_mapping(file))


def read_rows(file: Path) -> object:
    return read_examples("train", file, ["question"])


def read_loosely(file: Path) -> str:
    return file.read_bytes().decode("utf-8", "replace")


def right_files() -> dict[str, tuple[str, str, Callable[[Path], object]]]:
    """Return a file of every kind that a command opens, and its reader."""
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
    return {
        "a run file": ("run.yaml", yaml.safe_dump(run_file), read_run_file),
        "a specification": ("spec.yaml", SPEC, read_spec),
        "examples, JSON lines": ("rows.jsonl", examples, read_rows),
        "examples, CSV": ("rows.csv", "question,answer\na,b\nc,d\n", read_rows),
        "a diagnosis": (
            "diagnosis.json",
            json.dumps(asdict(diagnosis)),
            lambda file: read_diagnosis(file.parent),
        ),
        "demonstrations": (
            "demos.json",
            demonstration,
            lambda file: decode_demonstrations(read_loosely(file)),
        ),
        "field descriptions": (
            "fields.json",
            fields,
            lambda file: decode_fields(read_loosely(file)),
        ),
    }


FILES = right_files()


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_holds_anything_is_read_or_refused(what: str, tmp_path: Path) -> None:
    filename, right, read = FILES[what]
    file, trials = tmp_path / filename, Trials(what)
    file.write_text(right)
    read(file)  # what is changed below is read as it is
    for number in range(size("files", 100)):
        stream = derive(SEED, "fuzz", what, number)
        text = hostile(stream, right)
        errors = "surrogatepass" if stream.random() < 0.5 else "replace"
        file.write_bytes(text.encode("utf-8", errors))
        trials = trials.attempt(partial(read, file), f"seed {SEED}, {what} {number}")
    show(trials)
    assert not trials.wrong, trials
    if what in ("a run file", "examples, JSON lines"):
        assert 0 < trials.refused < trials.tried


BOOK = BulletText(
    tuple(Bullet(f"s-{n}", "strategies", f"Advice {n} about things.") for n in range(5)),
    ("strategies",),
)
COPIES = CopyIndex(
    [{"question": "how many words are in this sentence that has a good many of them"}]
)
READERS: dict[str, Callable[[str], object]] = {
    "placeholders": placeholders,
    "lint of a prompt": lambda text: suspicious({"main": text}, {"main": ""}),
    "copies of examples": COPIES.copied,
    "keys taken out": mask,
    "a log line": scrub,
    "an answer cut": bounded,
    "a playbook's text": lambda text: check_whole(text),
    "a reflector's tags": lambda text: read_tags(parse(text), {"s-1", "s-2"}),
}
REPEATED = (*PIECES, "a", " ", "a ", "\n", "- ", "1. ", "a@", "http://", "ignore all ", "0123 ")


@pytest.mark.parametrize("what", READERS)
def test_a_text_that_holds_anything_is_read_at_once(what: str) -> None:
    read, trials = READERS[what], Trials(what)
    for number in range(size("texts", 100)):
        stream = derive(SEED, "text", what, number)
        trials = trials.attempt(partial(read, hostile(stream, str(BOOK))), f"{what} {number}")
    for piece in REPEATED:
        times = LONGEST // len(piece)
        text = (piece * (times + 1))[:LONGEST]
        trials = trials.attempt(partial(read, text), f"{what}: {piece!r} × {times}", SLOW)
    show(trials)
    assert not trials.wrong, trials


def parse(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return [
            {"op": text[:5], "ids": [text], "content": text},
            text,
            None,
            {"id": text, "tag": text},
        ]


def check_whole(text: str) -> None:
    """Write a playbook with a hostile bullet and read it again: no bullet is lost."""
    bullet = Bullet("s-9", "strategies", text)
    read = read_text(str(replace(BOOK, bullets=(*BOOK.bullets, bullet))))
    ids = [bullet.id for bullet in BOOK.bullets]
    assert [bullet.id for bullet in read.bullets][: len(ids)] == ids
    read_text(text)


def test_what_goes_wrong_names_how_to_get_it_again() -> None:
    def fail() -> None:
        raise KeyError("\x1b")

    trials = Trials("a reader").attempt(fail, "seed 0, a reader 7")
    assert (trials.wrong, trials.example) == (1, "seed 0, a reader 7: KeyError: '\\x1b'")


def test_hostile_texts_come_from_the_seed() -> None:
    assert hostile(random.Random(1), "text") == hostile(random.Random(1), "text")
    assert len({hostile(random.Random(n), "text") for n in range(50)}) > 30
