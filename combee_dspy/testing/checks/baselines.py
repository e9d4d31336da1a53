"""Checks for baselines: a task in, a curve and a program out, with honest books.

They run the method for a few dozen rollouts against a simulated service on this
machine, which is no language model: they say nothing of how well it learns.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import dspy

from combee_dspy.events import Event, HeldoutEvaluated, RolloutFinished, RunFinished, RunStarted, ValidationFinished
from combee_dspy.testing.checks._expect import attempt, expect
from combee_dspy.tracking import Hook

if TYPE_CHECKING:
    from combee_dspy.lms import ServiceStats

__all__ = ["CHECKS"]

_BUDGET = 40
_VALIDATION = 4


@dataclass(frozen=True)
class _Seen:
    """One run, and the truth beside it."""

    result: Any
    events: tuple[Event, ...]
    stats: ServiceStats
    before: Any
    after: Any


class _Remember(Hook):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = 0

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1


def _rows() -> list[dspy.Example]:
    return [
        dspy.Example(
            question=f"What is piece number {number} of kind {kind} worth in the shop today?", answer=f"{kind}{number}"
        ).with_inputs("question")
        for number in range(8)
        for kind in ("copper", "silver", "amber")
    ]


def _metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> dspy.Prediction:
    right = str(getattr(pred, "answer", "")) == gold.answer
    return dspy.Prediction(score=float(right), feedback=f"The answer to {gold.question} is {gold.answer}.")


@lru_cache(maxsize=8)
def _run(strategy: Any) -> _Seen:
    # A baseline needs the engine, which the checks of other kinds do without.
    from combee_dspy.baselines._records import BaselineTask
    from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask

    rows = _rows()
    knowledge = SimulatedTask.from_examples(
        rows, "question", "answer", key_of=lambda row: row["answer"].rstrip("0123456789")
    )
    program = dspy.Predict(dspy.Signature("question -> answer", "Say what the piece is worth."))
    before = program.dump_state()
    heard = _Remember()
    with SimulatedService(SimulatedConfig(time_scale=0.0), knowledge) as service:
        task = BaselineTask(
            program=program,
            metric=_metric,
            train=tuple(rows[:12]),
            validation=tuple(rows[12 : 12 + _VALIDATION]),
            heldout=tuple(rows[16:]),
            task_lm=service.lm(),
            reflection_lm=service.lm(),
            budget=_BUDGET,
            seed=3,
            threads=4,
            hooks=(heard,),
            probe=False,
        )
        result = attempt(lambda: strategy.run(task), "`run` returns a BaselineResult", "see combee_dspy.baselines")
        stats = service.stats()
    expect(heard.closed == 1, "every hook closed once", f"closed {heard.closed} times", "leave `run` to the base class")
    return _Seen(result, tuple(heard.events), stats, before, program.dump_state())


def _of(events: tuple[Event, ...], kind: type[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def check_curve_grows(strategy: Any) -> None:
    """Costs never fall along a curve, and its best is the best so far."""
    curve = _run(strategy).result.curve
    expect(curve, "at least one point: the student is validated", "an empty curve", "evaluate the student first")
    for one, two in itertools.pairwise(curve):
        expect(
            one.rollouts <= two.rollouts and one.tokens <= two.tokens and one.seconds <= two.seconds,
            "rollouts, tokens and seconds that do not fall",
            f"{one} and then {two}",
            "leave the points to the books",
        )
    best = float("-inf")
    for point in curve:
        best = max(best, point.validation)
        expect(point.best == best, f"best {best}", f"{point.best}", "leave the points to the books")


def check_keeps_the_budget(strategy: Any) -> None:
    """Methods are compared at the same number of rollouts."""
    seen = _run(strategy)
    told = [event for event in _of(seen.events, RolloutFinished) if event.split != "heldout"]
    bought = sum(not event.cached for event in told)
    expect(
        max(seen.result.rollouts, bought) <= _BUDGET,
        f"at most {_BUDGET} rollouts",
        f"{bought} told, {seen.result.rollouts} counted",
        "score with desk.metric or desk.evaluate, and let BudgetSpentError pass",
    )


def check_every_task_call_belongs_to_a_rollout(strategy: Any) -> None:
    """A method that calls the program behind the books' back would look cheap."""
    seen = _run(strategy)
    told = [event for event in _of(seen.events, RolloutFinished) if not event.cached]
    expect(
        seen.stats.by_kind["task"].calls == len(told),
        "one rollout told for each task call that the service answered",
        f"{len(told)} rollouts told, {seen.stats.by_kind['task'].calls} task calls answered",
        "run programs inside `search` only, and score each prediction with desk.metric, in the same thread",
    )


def check_ledger_is_the_truth(strategy: Any) -> None:
    """Tokens are what the service billed, but for the held-out reading."""
    seen = _run(strategy)
    heldout = [event.rollout for event in _of(seen.events, RolloutFinished) if event.split == "heldout"]
    read = sum(usage.prompt_tokens + usage.completion_tokens for one in heldout for usage in one.usage or ())
    billed = seen.stats.prompt_tokens + seen.stats.completion_tokens
    expect(
        seen.result.tokens + read == billed,
        f"{billed - read} tokens",
        f"{seen.result.tokens}",
        "ask LMs through DSPy, in this thread or in ones that carry its settings",
    )


def check_events_frame_the_run(strategy: Any) -> None:
    """A tracker needs a beginning, an end and ids that tell rollouts apart."""
    events = _run(strategy).events
    ends = (len(_of(events, RunStarted)), len(_of(events, RunFinished)))
    expect(
        ends == (1, 1) and isinstance(events[0], RunStarted) and isinstance(events[-1], RunFinished),
        "RunStarted first and RunFinished last, once each",
        f"{ends}, first {type(events[0]).__name__}, last {type(events[-1]).__name__}",
        "emit neither: the base class does",
    )
    ids = [event.rollout_id for event in _of(events, RolloutFinished)]
    expect(len(ids) == len(set(ids)), "unique rollout ids", f"{len(ids) - len(set(ids))} repeated", "use the desk")
    expect(
        len(_of(events, ValidationFinished)) == len(_run(strategy).result.curve),
        "one point of the curve per validated candidate",
        f"{len(_of(events, ValidationFinished))} validations",
        "use the desk",
    )


def check_heldout_is_read_once(strategy: Any) -> None:
    """The method must not see the held-out set; it is read at the end."""
    seen = _run(strategy)
    splits = [event.split for event in _of(seen.events, RolloutFinished)]
    first = splits.index("heldout") if "heldout" in splits else len(splits)
    expect(
        len(_of(seen.events, HeldoutEvaluated)) == 1 and set(splits[first:]) == {"heldout"},
        "one reading of the held-out set, after everything else",
        f"{len(_of(seen.events, HeldoutEvaluated))} readings",
        "leave the held-out rows of the task alone",
    )


def check_leaves_the_program_alone(strategy: Any) -> None:
    """The same program is given to the next method."""
    seen = _run(strategy)
    expect(seen.before == seen.after, "the task's program unchanged", "it was changed", "work on program.deepcopy()")
    expect(
        isinstance(seen.result.program, dspy.Module),
        "a program",
        f"{type(seen.result.program).__name__}",
        "return a program, or None for the best on validation",
    )


def check_names_its_version(strategy: Any) -> None:
    """A figure without a version cannot be repeated."""
    found = attempt(lambda: dict(strategy.versions()), "`versions` returns a mapping", "name the distributions")
    missing = [name for name, version in found.items() if not version or version == "not installed"]
    expect(found and not missing, "an installed version for each distribution", f"{found}", "mend `distributions`")
    told = _of(_run(strategy).events, RunStarted)[0].specs
    expect(told.get("versions") == found, "the versions in RunStarted", f"{told}", "leave `run` to the base class")


CHECKS = (
    check_curve_grows,
    check_keeps_the_budget,
    check_every_task_call_belongs_to_a_rollout,
    check_ledger_is_the_truth,
    check_events_frame_the_run,
    check_heldout_is_read_once,
    check_leaves_the_program_alone,
    check_names_its_version,
)
