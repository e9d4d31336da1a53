"""A run in small, for measuring what keeping its books costs: real rollouts, a simulated service, no search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.bench.tracking_meter import CpuMeter
from combee_dspy.costs import Ledger, LedgerRecorder, Totals
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.events import Event, IterationFinished, IterationStarted, RunFinished, RunStarted
from combee_dspy.lms.simulated import FailureRates, SimulatedConfig, SimulatedService
from combee_dspy.rollouts import Threads, rarely_collected
from combee_dspy.tracking import EventBus, Hook, Journal, MLflowHook, MLflowTracker

__all__ = ["Books", "BusTime", "Shape", "TimedJournal", "failing_service", "judged", "run_shape"]

_UNLUCKY = 17

_SEED = {"self": "Answer the question."}


@dataclass(frozen=True, slots=True)
class Shape:
    """How much is run.

    Attributes:
        iterations: Iterations.
        candidates: Candidates in each, new ones every time.
        examples: Examples each of them runs on.
        again: How many of them run again, from the memo.
        threads: Rollouts in flight.
    """

    iterations: int
    candidates: int
    examples: int
    again: int = 0
    threads: int = 64

    @property
    def rollouts(self) -> int:
        """Rollouts that are told of, those from the memo included."""
        return self.iterations * (self.candidates + self.again) * self.examples

    @classmethod
    def of(cls, rollouts: int, threads: int = 64) -> Shape:
        """Return a shape of at least so many rollouts: one candidate in five runs a second time."""
        examples = max(4, min(100, rollouts // 25))
        iterations = max(1, min(20, rollouts // (5 * examples)))
        each = -(-rollouts // (iterations * examples))
        again = each // 5
        return cls(iterations, each - again, examples, again, threads)


@dataclass(frozen=True, slots=True)
class Books:
    """What a run left behind.

    Attributes:
        wall: Seconds from the first rollout to the last.
        cpu: CPU seconds of the whole process in that time, the service's own included.
        totals: What the ledger counted.
        folder: The journal's folder, ``None`` without a journal.
        hook: MLflow's hook, ``None`` without MLflow.
    """

    wall: float
    cpu: float
    totals: Totals
    folder: Path | None
    hook: MLflowHook | None


class TimedJournal(Journal):
    """A journal that adds up its own CPU time.

    Args:
        folder: The journal's.
        meter: Counts the time.
    """

    def __init__(self, folder: Path, meter: CpuMeter) -> None:
        super().__init__(folder)
        self._record = meter.timed(super().record)

    def record(self, event: Event) -> None:
        """Write one event, and count the time."""
        self._record(event)


class BusTime(Hook):
    """Reads at the end how much CPU time the thread that delivers events has used."""

    cpu_seconds = 0.0
    # To be there must not be what makes an event wake the thread.
    wants = ()

    def close(self) -> None:
        """Read the clock: a hook is closed by that very thread."""
        self.cpu_seconds = time.thread_time()


def failing_service(time_scale: float = 0.0, slots: int = 64, seed: int = 0) -> SimulatedService:
    """Return a service that fails in every way it can, a little."""
    rates = FailureRates(server_error=0.005, rate_limited=0.005, malformed=0.02, truncated=0.01, retry_after=0.0)
    return SimulatedService(SimulatedConfig(seed=seed, time_scale=time_scale, slots=slots, failures=rates))


def judged(lm: dspy.LM) -> Any:
    """Return a metric that asks a judge about the example alone, so that DSPy's cache answers the second time.

    It raises for a few examples.
    """
    judge = dspy.Predict("question -> verdict")

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        with dspy.context(lm=lm):
            verdict = judge(question=f"Is it about {gold.question}").verdict
        if int(gold.answer) % _UNLUCKY == 0:
            raise ValueError("this example cannot be scored")
        score = float(len(str(getattr(pred, "answer", ""))) % 2)
        return dspy.Prediction(score=score, feedback=f"The judge says {verdict}.")

    return metric


def run_shape(  # noqa: PLR0913 - which of the books to keep, each on its own
    shape: Shape,
    lm: dspy.LM,
    metric: Any,
    *,
    journal: Journal | None = None,
    tracker: MLflowTracker | None = None,
    hooks: tuple[Hook, ...] = (),
    books: bool = True,
    label: str = "run",
    bus: type[EventBus] = EventBus,
    during: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Books:
    """Run it, and keep the books asked for.

    Args:
        shape: How much.
        lm: The task's LM.
        metric: The metric.
        journal: Written by the run; closed at its end.
        tracker: Opened on that journal.
        hooks: Further hooks.
        books: Whether the ledger listens at all.
        label: Part of every prompt: another label, other prompts.
        bus: The class that carries the events.
        during: Entered where the ledger listens, for as long as rollouts run.
    """
    hook = tracker.open(journal) if tracker is not None else None
    ledger = Ledger()
    with ExitStack() as stack:
        stack.enter_context(rarely_collected())
        if books:
            stack.enter_context(LedgerRecorder(ledger).installed())
        carrier = bus((*(() if hook is None else (hook,)), *hooks), journal=journal)
        stack.callback(carrier.close)
        with dspy.context(lm=lm), during(), _evaluator(shape, metric, carrier) as evaluator:
            wall, cpu = time.monotonic(), time.process_time()
            _loop(shape, evaluator, carrier, ledger, label)
            wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    return Books(wall, cpu, ledger.snapshot(), None if journal is None else journal.folder, hook)


@contextmanager
def _evaluator(shape: Shape, metric: Any, bus: EventBus) -> Iterator[Evaluator]:
    session = Threads().start(shape.threads)
    try:
        yield Evaluator(_program, metric, 0.0, session, bus.emit, memoize=True, keep_traces=frozenset())
    finally:
        session.close()


def _program(candidate: Mapping[str, str]) -> dspy.Module:
    program = dspy.Predict("question -> answer")
    program.signature = program.signature.with_instructions(candidate["self"])
    return program


def _loop(shape: Shape, evaluator: Evaluator, bus: EventBus, ledger: Ledger, label: str) -> None:
    rows = [
        dspy.Example(question=f"what is {number} plus {number}?", answer=str(2 * number)).with_inputs("question")
        for number in range(shape.examples)
    ]
    sizes = {"train": len(rows)}
    models = {"task": "openai/simulated", "evaluator": "openai/simulated"}
    bus.emit(
        RunStarted(name=f"books {label}", seed=0, sizes=sizes, digests={}, specs={}, models=models, components=_SEED)
    )
    done = 0
    for iteration in range(1, shape.iterations + 1):
        begun = time.monotonic()
        bus.emit(IterationStarted(iteration=iteration))
        texts = [f"Answer the question. {label} {iteration}.{number}" for number in range(shape.candidates)]
        evaluator.evaluate([({"self": text}, rows) for text in texts], purpose="parent", iteration=iteration)
        evaluator.evaluate(
            [({"self": text}, rows) for text in texts[: shape.again]], purpose="parent", iteration=iteration
        )
        done += (shape.candidates + shape.again) * len(rows)
        bus.emit(
            IterationFinished(
                iteration=iteration,
                accepted=False,
                rollouts=done,
                best_score=0.0,
                seconds=time.monotonic() - begun,
                costs=ledger.snapshot().to_dict(),
            )
        )
    bus.emit(
        RunFinished(
            iteration=shape.iterations,
            reason="all is run.",
            best_index=0,
            best_score=0.0,
            texts=_SEED,
            rollouts=done,
            seconds=0.0,
            costs=ledger.snapshot().to_dict(),
        )
    )
