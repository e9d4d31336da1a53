"""The collapsing proposer in whole Combee runs, for ``combee_dspy.bench.collapse --full``.

A question describes one of half of the formulas; it is answered rightly where the
instruction has that formula's lesson, or where a draw per question says that it is
known anyway. Three operators ask a scripted proposer for one lesson each, and each
has a favourite; temperature alone makes it think of another. One child an
iteration; guard, redraws, acceptance, validation and held-out reading are the run's own.
No language model is involved.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import dspy

from combee_dspy.bench.collapse import FAVOUR, INSTRUCTION, KNOWN, OWN_TEMPERATURE, WORDINGS, CollapseResult
from combee_dspy.benchmarks.formula_mini.formulas import FORMULAS
from combee_dspy.combee import Combee
from combee_dspy.diversity import Diversity
from combee_dspy.events import CandidateProposed, CandidateRefused, Event, ValidationFinished
from combee_dspy.guards import Guards
from combee_dspy.operators import Operator, OperatorInput
from combee_dspy.records import Edit, FailedCall, Refusal
from combee_dspy.strategies import StrategyContext
from combee_dspy.streams import derive
from combee_dspy.testing._scripted_lm import ScriptedLM, ScriptedRequest, as_chat
from combee_dspy.tracking import Hook

__all__ = ["ANGLES", "Suggest", "SuggestLesson", "full_search"]

ANGLES = ("first", "second", "third")
_ROWS = {"train": 160, "validation": 60, "heldout": 120}
_MINIBATCH = 10
_BY_TELL = {formula.tell: formula for formula in FORMULAS}


class SuggestLesson(dspy.Signature):
    """Suggest one more lesson for the instruction."""

    instruction: str = dspy.InputField(desc="The instruction so far.")
    angle: str = dspy.InputField(desc="From which side to look at it.")
    lesson: str = dspy.OutputField(desc="The lesson.")


class Suggest(Operator):
    """Asks the proposer for one lesson and puts it at the end of the instruction.

    Args:
        angle: Which of the proposer's favourites it is shown: one of :data:`ANGLES`.
    """

    name: ClassVar[str] = "suggest"
    needs_lessons: ClassVar[bool] = False

    def __init__(self, angle: str = ANGLES[0]) -> None:
        self.angle = angle

    def apply(self, given: OperatorInput, context: StrategyContext) -> Edit | Refusal:
        """Return the longer instruction."""
        asked = {"instruction": given.instruction, "angle": self.angle}
        answer = context.predict(SuggestLesson, [asked], role="proposer")[0]
        if isinstance(answer, FailedCall):
            return Refusal(answer.error)
        return Edit(instruction=f"{given.instruction}\n- {answer.lesson}")


class _World:
    """The questions of one seed, and who answers and proposes."""

    def __init__(self, seed: int) -> None:
        stream = derive(seed, "collapse task")
        names = [formula.name for formula in FORMULAS]
        self.seed = seed
        self.useful = frozenset(stream.sample(names, len(names) // 2))
        self.favourites = dict(zip(ANGLES, stream.sample(names, len(ANGLES)), strict=True))
        self.suggested: list[str] = []
        self._calls = itertools.count()
        self._lock = threading.Lock()

    def splits(self) -> dict[str, list[dspy.Example]]:
        """Return rows by split, the useful formulas in turn."""
        formulas = itertools.cycle([formula for formula in FORMULAS if formula.name in self.useful])
        numbers = itertools.count(1)
        return {split: [self._row(next(numbers), next(formulas)) for _ in range(size)] for split, size in _ROWS.items()}

    @staticmethod
    def _row(number: int, formula: Any) -> dspy.Example:
        question = f"Case {number}: somebody describes {formula.tell}. Which formula is it?"
        return dspy.Example(question=question, formula=formula.name).with_inputs("question")

    def answer(self, request: ScriptedRequest) -> str:
        """Answer a question of the task."""
        said = request.last
        formula = next(formula for tell, formula in _BY_TELL.items() if f"describes {tell}." in said)
        known = derive(self.seed, "known", said).random() < KNOWN
        right = known or formula.name in _held(request.system)
        return as_chat({"formula": formula.name if right else "none of these"})

    def propose(self, request: ScriptedRequest) -> str:
        """Propose a favourite lesson, or another one the likelier the hotter the request is."""
        angle = next(angle for angle in ANGLES if f"[[ ## angle ## ]]\n{angle}" in request.last)
        temperature = OWN_TEMPERATURE if request.temperature is None else request.temperature
        with self._lock:
            stream = derive(self.seed, "collapse suggestion", next(self._calls))
            others = math.exp(-FAVOUR / temperature)
            weights = [1.0 if formula.name == self.favourites[angle] else others for formula in FORMULAS]
            (chosen,) = stream.choices(FORMULAS, weights)
            self.suggested.append(chosen.name)
        return as_chat({"lesson": stream.choice(WORDINGS).format(tell=chosen.tell, name=chosen.phrase)})


class _Seen(Hook):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)


def full_search(seed: int, diversity: Diversity, proposals: int) -> CollapseResult:
    """Search with a whole run, one child an iteration: see the module.

    Args:
        seed: Seed of everything.
        diversity: What is done against collapse.
        proposals: Iterations, and so children asked for.
    """
    world, seen = _World(seed), _Seen()
    splits = world.splits()
    proposer = ScriptedLM(world.propose, model="simulated/collapsing-proposer")
    combee = Combee(
        _metric,
        # Nothing else may end the run: what is asked for is a number of proposals.
        max_metric_calls=10**6,
        gepa_kwargs={"stop_callbacks": [_Until(proposals)]},
        reflection_lm=proposer,
        reflection_minibatch_size=_MINIBATCH,
        candidate_selection_strategy="current_best",
        operators=[Suggest(angle) for angle in ANGLES],
        children=1,
        diversity=diversity,
        # Lessons are in the words of the questions here.
        guards=Guards(max_copied_words=None),
        use_merge=False,
        skip_perfect_score=False,
        finalists=1,
        # One at a time, so that the suggestions stand in the order of the draws.
        num_threads=1,
        seed=seed,
        hooks=[seen],
        probe=False,
        progress=False,
    )
    student = dspy.Predict(dspy.Signature("question -> formula", INSTRUCTION))
    with dspy.context(lm=ScriptedLM(world.answer, model="simulated/formulas"), adapter=dspy.ChatAdapter()):
        program = combee.compile(
            student, trainset=splits["train"], valset=splits["validation"], heldout=splits["heldout"]
        )
    made = [_held(event.texts["self"]) for event in seen.events if isinstance(event, CandidateProposed)]
    refusals = [event for event in seen.events if isinstance(event, CandidateRefused)]
    return CollapseResult(
        arm="",
        seed=seed,
        proposals=proposals,
        made=len(made),
        distinct=len(set(made)),
        refused=sum("repeats" not in event.reason for event in refusals),
        repeated=sum("repeats" in event.reason for event in refusals),
        wrong_refusals=_wrong(seen.events, world.suggested),
        heldout=program.combee_report.heldout.after,
    )


def _metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> dspy.Prediction:
    right = getattr(pred, "formula", None) == gold.formula
    return dspy.Prediction(score=float(right), feedback="Right." if right else f"It is {gold.formula}.")


class _Until:
    def __init__(self, iterations: int) -> None:
        self._iterations = iterations

    def __call__(self, state: Any) -> bool:
        return bool(state.i + 1 >= self._iterations)


def _held(text: str) -> frozenset[str]:
    """Return the formulas whose lessons a text has."""
    return frozenset(formula.name for tell, formula in _BY_TELL.items() if tell in text)


def _wrong(events: Sequence[Event], suggested: Sequence[str]) -> int:
    """Count refused draws that said what no candidate said. Refusals of a child are told before its proposal."""
    draws = iter(suggested)
    known: set[frozenset[str]] = {frozenset()}
    parents: dict[str, frozenset[str]] = {}
    wrong = 0
    for event in events:
        if isinstance(event, ValidationFinished):
            parents[event.candidate_id] = _held(event.texts["self"])
        elif isinstance(event, CandidateRefused):
            wrong += (parents[event.parent_id] | {next(draws)}) not in known
        elif isinstance(event, CandidateProposed):
            next(draws)
            known.add(_held(event.texts["self"]))
    return wrong
