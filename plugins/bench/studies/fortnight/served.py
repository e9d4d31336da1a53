"""A real model served by ``Live``: questions of house-rules, labels that come late, some wrong.

The clock is simulated and the model is not. Each label says which rule was broken, and a part of
them is wrong. Before and after, held-out questions are answered that ``Live`` never meets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import dspy
from pydantic import Field

from combee_bench.endpoints import as_proposer, model_lm
from combee_bench.options import Count, ModelOptions
from combee_bench.surroundings import load_rows, quietly
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.lms import ConstrainedJSONAdapter
from combee_dspy.options import Privacy
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive
from combee_dspy.traces import Selection
from combee_strategist.canary import CanaryPlan, Serving
from combee_strategist.live import Gate, Learning, Live, LiveProgram
from studies.fortnight.live import NAME, SetClock, in_production, store
from studies.fortnight.world import BEGIN

HOUR = 3_600.0
TRUSTED, HELDOUT = 12, 24
BLOCK = 8
"""Hours of a row."""


@parameters
class ServedOptions(ModelOptions):
    """Serve a real model by Live; it learns from late and partly wrong labels, and ships.

    Args:
        requests: Requests, evenly over the hours.
        hours: Hours of the simulated clock.
        labelled: Share of requests that are labelled, two to ten hours later; a quarter of the
            labels comes from the team.
        wrong: Share of all labels that are wrong; none of the team's.
        rules: Rules of the house.
        number: Of the rule set.
        budget: Tokens a day for learning and for the gate.
        reading: Tokens of requests that readers get in a session: 1,000 are four or five.
        folder: Where the journals and the page lie.
        api_base: Address of an OpenAI-compatible service that has the model, or several by comma,
            which take turns.
    """

    requests: Count = 240
    hours: Count = 64
    labelled: Annotated[float, Field(ge=0, le=1)] = 0.4
    wrong: Annotated[float, Field(ge=0, le=0.75)] = 0.15
    rules: Annotated[int, Field(ge=2, le=12)] = 6
    number: int = 701
    budget: Count = 40_000
    reading: Annotated[int, Field(ge=1_000)] = 3_000
    folder: Path = Path("served")
    lm: str = "embedded"


@dataclass(frozen=True, slots=True)
class ServedRow:
    """Some hours of serving; the first and the last row are of the held-out questions.

    Attributes:
        hour: At which it ends.
        requests: Served in it, or held out.
        right: Percent of these that were answered rightly.
        labels: Labels that came in it, and those of them that were wrong.
        decisions: What the learner decided.
        version: What serves at its end.
        lines: Lines of the prompt in production, where held-out questions were asked.
    """

    hour: int
    requests: int
    right: float
    labels: tuple[int, int] = (0, 0)
    decisions: tuple[str, ...] = ()
    version: int = 1
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Request:
    id: str
    at: float
    row: dspy.Example
    label_at: float | None = None
    trusted: bool = False
    answer: str = ""
    comment: str = ""


def rule_metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    """Score an answer by its label; which rule was broken is what people say, not the metric."""
    answer = str(pred.answer or "")
    right = answer == gold.answer
    return dspy.Prediction(
        score=float(right), feedback="" if right else f"{answer!r} is wrong: {gold.answer}."
    )


def run(options: ServedOptions) -> Iterator[ServedRow]:
    """Serve, and learn every hour of the clock.

    Raises:
        ArgumentValueError: The key is not set.
    """
    sizes = {"train": options.requests, "validation": TRUSTED, "heldout": HELDOUT}
    own = {"rules": options.rules, "choices": True, "seed": options.number, **sizes}
    rows = load_rows("house-rules", own, **sizes)
    lms, reader = _lms(options)
    clock = SetClock()
    with ExitStack() as stack:
        stack.enter_context(dspy.context(lm=lms[0], adapter=ConstrainedJSONAdapter()))
        pool = stack.enter_context(ThreadPoolExecutor(options.slots * len(lms)))
        live = _open(options, rows, reader, lms[-1], clock)
        stack.callback(live.close)
        qa = live.serve()
        stack.callback(qa.close)
        ask = _Asker(pool, lms)
        yield _heldout(0, qa, ask, rows, options)
        yield from _serve(options, rows, live, qa, ask, clock)
        yield _heldout(options.hours, qa, ask, rows, options)


def line(options: ServedOptions, row: ServedRow) -> str:
    """Return a row in words."""
    what = "; ".join(row.decisions or row.lines)
    return (
        f"hour {row.hour}: {row.right:.1f} of 100 right of {row.requests}, {row.labels[0]} labels"
        f" ({row.labels[1]} wrong), version {row.version}. {what}"
    )


def table(options: ServedOptions, rows: Sequence[ServedRow]) -> str:
    """Return the table of docs/results/live.md."""
    lines = ["| hour | requests | right | labels | wrong | version | decisions |"]
    lines.append("| ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for row in rows:
        actions = Counter(decision.split(":")[0] for decision in row.decisions)
        what = ", ".join(
            f"{action} × {times}" if times > 1 else action for action, times in actions.items()
        )
        labels = f"{row.labels[0]} | {row.labels[1]}"
        cells = f"{row.hour} | {row.requests} | {row.right:.1f} | {labels} | {row.version}"
        lines.append(f"| {cells} | {'held-out' if row.lines or not row.hour else what} |")
    return "\n".join(lines)


def _lms(options: ServedOptions) -> tuple[list[dspy.LM], dspy.LM]:
    """Return who answers, by turns, and who reads."""
    bases = (options.api_base or "").split(",")
    where: list[dict[str, Any]] = [
        options.settings() | ({} if options.lm == "embedded" else {"api_base": base})
        for base in bases
    ]
    name = str(options.lm)
    lms = [model_lm(name, temperature=0.0, **place)[0] for place in where]
    return lms, as_proposer(model_lm(name, temperature=0.0, **where[-1])[0])


def _open(
    options: ServedOptions, rows: LoadedBenchmark, reader: dspy.LM, lm: dspy.LM, clock: SetClock
) -> Live:
    return Live(
        NAME,
        rows.program(),
        metric=rule_metric,
        reflection_lm=reader,
        lm=lm,
        trusted=rows.validation.examples,
        learning=Learning(
            tokens=options.budget,
            selection=Selection(tokens=options.reading),
            num_threads=options.slots,
        ),
        gate=Gate(rows=18, retain=6),
        plan=CanaryPlan(epsilon=0.05, pairs=20, hours=2),
        serving=Serving(shadow=1.0, ttl=1e9, queue=1000, timeout=600),
        log_dir=options.folder,
        uri=store(options.folder),
        privacy=Privacy(texts="all"),
        clock=clock,
    )


class _Asker:
    """Asks questions at once, the services by turns."""

    def __init__(self, pool: ThreadPoolExecutor, lms: Sequence[dspy.LM]) -> None:
        self._pool, self._lms = pool, lms

    def ask(
        self, program: dspy.Module, rows: Sequence[dspy.Example], ids: Sequence[str | None]
    ) -> list[bool]:
        """Return whether each answer is right, by what is true and not by labels."""

        def ask(number: int, row: dspy.Example, request: str | None) -> bool:
            more = {} if request is None else {"request_id": request}
            lm = self._lms[number % len(self._lms)]
            with dspy.context(lm=lm, adapter=ConstrainedJSONAdapter()):
                return bool(program(message=row.message, **more).answer == row.answer)

        return list(self._pool.map(ask, count(), rows, ids))


def _heldout(
    hour: int, qa: LiveProgram, ask: _Asker, rows: LoadedBenchmark, options: ServedOptions
) -> ServedRow:
    program = in_production(qa, rows.program(), options.folder)
    ((_, predictor),) = program.named_predictors()
    right = ask.ask(program, rows.heldout.examples, [None] * HELDOUT)
    lines = tuple(predictor.signature.instructions.splitlines())
    return ServedRow(hour, HELDOUT, 100 * fmean(right), version=qa.versions[0], lines=lines)


def _serve(
    options: ServedOptions,
    rows: LoadedBenchmark,
    live: Live,
    qa: LiveProgram,
    ask: _Asker,
    clock: SetClock,
) -> Iterator[ServedRow]:
    requests = _requests(options, rows)
    labelled = [item for item in requests if item.label_at is not None]
    labels = iter(sorted(labelled, key=lambda item: item.label_at or 0.0))
    coming = next(labels, None)
    right, came, wrong, decisions = list[bool](), 0, 0, list[str]()
    for hour in range(1, options.hours + 1):
        begin, clock.now = BEGIN + (hour - 1) * HOUR, BEGIN + hour * HOUR
        of_hour = [item for item in requests if begin <= item.at < clock.now]
        right += ask.ask(qa, [item.row for item in of_hour], [item.id for item in of_hour])
        while coming is not None and (coming.label_at or 0.0) <= clock.now:
            qa.feedback(
                coming.id, answer=coming.answer, comment=coming.comment, trusted=coming.trusted
            )
            came, wrong = came + 1, wrong + (coming.answer != coming.row.answer)
            coming = next(labels, None)
        with quietly():
            qa.refresh()
            for made in live.tick():
                decisions.append(f"{made.action} {made.version or ''}".strip() + f": {made.why}")
            qa.refresh()
        if hour % BLOCK == 0:
            share = 100 * fmean(right) if right else 0.0
            yield ServedRow(
                hour, len(right), share, (came, wrong), tuple(decisions), qa.versions[0]
            )
            right, came, wrong, decisions = [], 0, 0, []


def _requests(options: ServedOptions, rows: LoadedBenchmark) -> list[_Request]:
    stream = derive(options.number, "served")
    answers = sorted({row.answer for row in rows.train.examples})
    step, requests = options.hours * HOUR / options.requests, []
    for number, row in enumerate(rows.train.examples):
        at = BEGIN + (number + 0.5) * step
        request = _Request(f"r{number}", at, row)
        if stream.random() < options.labelled:
            trusted, answer = stream.random() < 0.25, row.answer
            if not trusted and stream.random() < options.wrong / 0.75:
                answer = stream.choice([other for other in answers if other != answer])
            late = at + HOUR * stream.uniform(2, 10)
            comment = row.rule.replace(row.answer, answer)
            request = _Request(f"r{number}", at, row, late, trusted, answer, comment)
        requests.append(request)
    return requests
