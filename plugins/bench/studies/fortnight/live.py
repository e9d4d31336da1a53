"""The fortnight by ``Live``: a clock that is handed in, labels as they come, an hourly tick."""

from __future__ import annotations

import heapq
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import dspy

from combee_dspy.loading import artifact_of
from combee_dspy.options import Privacy
from combee_strategist.canary import CanaryPlan, Registry, Serving
from combee_strategist.live import Learning, Live, LiveProgram
from studies.fortnight.peers import DayRow, day_row, quietly
from studies.fortnight.world import BEGIN, DAY, DAYS, ServedRequest, World
from studies.weighing.scoring import Metric
from studies.weighing.service import Service

NAME, TICK = "fortnight", 3600.0
PLAN = CanaryPlan(epsilon=0.05, pairs=20, hours=2)
SERVING = Serving(shadow=1.0, ttl=1e9, queue=1000, timeout=600)


@dataclass
class SetClock:
    """Time that somebody sets."""

    now: float = BEGIN

    def __call__(self) -> float:
        """Return the Unix time."""
        return self.now


@dataclass(frozen=True, slots=True)
class FastClock:
    """Real time from a moment on, so many times faster: the same in all processes."""

    began: float
    rate: float = 3600.0

    def __call__(self) -> float:
        """Return the Unix time."""
        return BEGIN + (time.time() - self.began) * self.rate


def open_live(
    program: dspy.Module,
    lm: Service,
    folder: Path,
    clock: Callable[[], float],
    *,
    learning: Learning,
    plan: CanaryPlan = PLAN,
    serving: Serving = SERVING,
) -> Live:
    """Return the fortnight's ``Live``; all processes that name the folder share it."""
    return Live(
        NAME,
        program,
        metric=Metric(),
        reflection_lm=lm,
        lm=lm,
        learning=learning,
        plan=plan,
        serving=serving,
        log_dir=folder,
        uri=store(folder),
        privacy=Privacy(texts="all"),
        clock=clock,
    )


def store(folder: Path) -> str:
    """Return the address of MLflow's store."""
    return f"sqlite:///{folder / 'mlflow.db'}"


@dataclass
class Labels:
    """Labels on their way, the earliest first."""

    waiting: list[tuple[float, str, ServedRequest]] = field(default_factory=list)

    def add(self, request: ServedRequest) -> None:
        """Let a request's label come when it does, if it has one."""
        if request.label_at is not None:
            heapq.heappush(self.waiting, (request.label_at, request.id, request))

    def deliver(self, qa: LiveProgram, now: float) -> None:
        """Give all labels that have come."""
        while self.waiting and self.waiting[0][0] <= now:
            request = heapq.heappop(self.waiting)[2]
            qa.feedback(request.id, code=request.row.label, trusted=request.trusted)


def in_production(qa: LiveProgram, program: dspy.Module, folder: Path) -> dspy.Module:
    """Return the program that a server answers with, apart from the server."""
    version = Registry(NAME, store(folder)).version(qa.versions[0])
    return artifact_of(version.artifact).build(program, dict(version.texts))


def run_live(world: World, program: dspy.Module, lm: Service, tokens: int) -> Iterator[DayRow]:
    """Serve the fortnight and learn from it."""
    worker = Service(world.launch.laws, world.launch.seed)
    with tempfile.TemporaryDirectory() as text:
        folder, clock, labels = Path(text), SetClock(), Labels()
        live = open_live(program, lm, folder, clock, learning=Learning(tokens=tokens))
        qa, ticked = live.serve(), clock.now
        for day in range(DAYS):
            right, before, notes = [], lm.tokens.total(), []
            for request in (request for request in world.requests if request.day == day):
                clock.now = request.at
                labels.deliver(qa, clock.now)
                if clock.now - ticked >= TICK:
                    ticked = clock.now
                    notes += _tick(live, qa)
                with dspy.context(lm=worker):
                    answer = qa(case=request.text, request_id=request.id)
                right.append(str(answer.code) == request.row.code)
                labels.add(request)
            clock.now = BEGIN + (day + 1) * DAY
            score, spent = 100 * sum(right) / len(right), lm.tokens.total() - before
            now = in_production(qa, program, folder)
            yield day_row("live", day, score, now, world, spent, "; ".join(notes))
        qa.close()
        live.close()


def _tick(live: Live, qa: LiveProgram) -> list[str]:
    """Let the server and the learner do what is due, and return what was decided."""
    with quietly():
        qa.refresh()
        decided = [f"{made.action} {made.version or ''}".strip() for made in live.tick()]
        qa.refresh()
    return decided
