"""From the trajectories of a minibatch to what a component's children are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from combee_dspy.aggregators import Aggregator
from combee_dspy.engine.adapter import CombeeAdapter, ReflectiveDataset
from combee_dspy.engine.candidates import Candidate, demonstrations_key, fields_key
from combee_dspy.engine.guarding import Guarding
from combee_dspy.engine.runs import predictor_runs
from combee_dspy.events import Event, ReflectionsMade
from combee_dspy.operators import OperatorInput, decode_demonstrations, decode_fields
from combee_dspy.records import Lessons, Reflection, Retained
from combee_dspy.reducer_core import learn
from combee_dspy.reflections import estimate_record_tokens
from combee_dspy.retention import RetentionSample, lost_once, measure_retention, node_samples, with_rescued
from combee_dspy.strategies import PredictFn, StrategyContext

__all__ = ["Scanned", "Scanner"]

# Sampling costs as much as measuring; beyond this a single scan tells more than the law needs.
_SAMPLED = 2_000


@dataclass(frozen=True, slots=True)
class Scanned:
    """What one component of one parent has learned from one minibatch.

    Attributes:
        given: What an operator works on, with the lessons that it may use.
        context: The way to the LM for this component.
        reflections: What the scan read; empty where nothing is said about the component.
        scan: What the scan returned; without lessons and nodes where none ran.
        retained: What became of each reflection; empty where no scan ran.
        again: Indices of the reflections that were on their second chance.
        samples: What the scan's calls kept, those that read and those that merged.
    """

    given: OperatorInput
    context: StrategyContext
    reflections: tuple[Reflection, ...]
    scan: Lessons
    retained: tuple[Retained, ...] = ()
    again: tuple[int, ...] = ()
    samples: tuple[tuple[RetentionSample, ...], tuple[RetentionSample, ...]] = ((), ())

    @property
    def lost(self) -> tuple[Reflection, ...]:
        """The reflections that deserve a second chance in the next scan."""
        gone = set(lost_once(self.retained, self.again))
        return tuple(reflection for reflection in self.reflections if reflection.index in gone)


class Scanner:
    """Reduces one component's reflections. Thread-safe: it changes nothing of the run.

    Args:
        adapter: Knows the programs.
        aggregator: Turns reflections into lessons.
        emit: Where events go.
        seed: The run's seed.
        perfect_score: The score of a success.
        guarding: What no edit may break; operators and proposers are told.
    """

    def __init__(
        self,
        adapter: CombeeAdapter,
        aggregator: Aggregator,
        emit: Callable[[Event], None],
        *,
        seed: int,
        perfect_score: float,
        guarding: Guarding,
    ) -> None:
        self._adapter = adapter
        self._aggregator = aggregator
        self._emit = emit
        self._seed = seed
        self._perfect_score = perfect_score
        self._guarding = guarding

    def scan(  # noqa: PLR0913 - one scan's whole material, named where it is started
        self,
        candidate: Candidate,
        dataset: ReflectiveDataset,
        component: str,
        predict: PredictFn,
        *,
        iteration: int,
        place: str,
        again: Sequence[Reflection] = (),
        lessons_needed: bool = True,
    ) -> Scanned:
        """Reduce what a minibatch says about one component.

        Args:
            candidate: The parent.
            dataset: The minibatch's records, and the rollouts behind them.
            component: Which component.
            predict: The way to the LM.
            iteration: The iteration.
            place: What tells this scan apart from others in the iteration.
            again: Reflections of the last scan that its result had lost.
            lessons_needed: Whether an operator will read lessons; without, no scan runs.
        """
        program = self._adapter.build_program(dict(candidate))
        predictor = dict(program.named_predictors())[component]
        given = OperatorInput(
            instruction=candidate[component],
            demonstrations=decode_demonstrations(candidate.get(demonstrations_key(component), "")),
            signature=predictor.signature,
            lessons=Lessons(component),
            runs=predictor_runs(predictor, dataset.rollouts, component),
            perfect_score=self._perfect_score,
            field_descriptions=decode_fields(candidate.get(fields_key(component), "")),
            guards=self._guarding.guards,
            seed_instruction=self._guarding.seed.get(component),
        )
        context = StrategyContext(
            component=component,
            text=candidate[component],
            predict=predict,
            emit=self._emit,
            iteration=iteration,
            seed=self._seed,
            place=place,
            notes=self._guarding.notes(component, candidate),
        )
        fresh = _reflections(dataset.get(component) or [], dataset)
        if not fresh or not lessons_needed:
            return Scanned(given, context, tuple(fresh), given.lessons)
        reflections, offered = with_rescued(fresh, again)
        tokens = sum(estimate_record_tokens(one.record) for one in reflections)
        self._emit(ReflectionsMade(iteration=iteration, component=component, size=len(reflections), tokens=tokens))
        lessons = learn(self._aggregator, reflections, context)
        told = lessons.rewrite is None
        retained = measure_retention(reflections, lessons) if told else ()
        samples = node_samples(reflections, lessons) if told and len(reflections) <= _SAMPLED else ((), ())
        return Scanned(replace(given, lessons=lessons), context, reflections, lessons, retained, offered, samples)


def _reflections(records: Sequence[Mapping[str, Any]], dataset: ReflectiveDataset) -> list[Reflection]:
    # DSPy drops trajectories that say nothing about a component; only where it
    # dropped none do positions still tell which example a record is about.
    ids = [rollout.example_id for rollout in dataset.rollouts]
    known: Sequence[str | None] = ids if len(ids) == len(records) else [None] * len(records)
    return [
        Reflection(index, record, example_id)
        for index, (record, example_id) in enumerate(zip(records, known, strict=True))
    ]
