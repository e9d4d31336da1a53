"""From the trajectories of a minibatch to what a component's children are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dspy

from combee_dspy.aggregators import Aggregator, Scan
from combee_dspy.engine.adapter import CombeeAdapter, ReflectiveDataset
from combee_dspy.engine.candidates import Candidate, demonstrations_key, fields_key
from combee_dspy.engine.guarding import Guarding
from combee_dspy.engine.lost import behind
from combee_dspy.engine.placing import within
from combee_dspy.engine.runs import predictor_runs
from combee_dspy.engine.streaming import Stream
from combee_dspy.events import Event, ReflectionsMade
from combee_dspy.operators import Operator, OperatorInput, decode_demonstrations, decode_fields
from combee_dspy.records import Lessons, Reflection, Retained, Rollout
from combee_dspy.reducer_core import begin, learn
from combee_dspy.reflections import estimate_record_tokens
from combee_dspy.retention import RetentionSample, lost_once, measure_scan
from combee_dspy.strategies import PredictFn, StrategyContext
from combee_dspy.streams import derive

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
        operators: Who reads the lessons.

    Attributes:
        emit: As given.
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
        operators: Sequence[Operator] = (),
    ) -> None:
        readers = [operator for operator in operators if operator.needs_lessons]
        self._joined_later = bool(readers) and all(operator.joins_lessons for operator in readers)
        self._adapter = adapter
        self._aggregator = aggregator
        self.emit = emit
        self._seed = seed
        self._perfect_score = perfect_score
        self._guarding = guarding

    def program(self, candidate: Candidate) -> dspy.Module:
        """Return the candidate's program, to be read only."""
        return self._adapter.build_program(dict(candidate))

    def record(self, program: dspy.Module, iteration: int, component: str, position: int, rollout: Rollout) -> Any:
        """Return what one rollout's reflective record for a component is; ``None`` where it says nothing.

        Args:
            program: The parent's program.
            iteration: The iteration.
            component: Which component.
            position: The rollout's place in its minibatch.
            rollout: The rollout.
        """
        trajectory = self._adapter.trajectory(position, rollout)
        if trajectory is None:
            return None
        chance = derive(self._seed, "record", iteration, component, rollout.example_id)
        return self._adapter.own_record(program, trajectory, component, chance)

    def reads(self, size: int) -> int:
        """Return how many shards of so many reflections a component's scan reads, as planned."""
        return self._aggregator.reads(size)

    def begin(
        self,
        candidate: Candidate,
        component: str,
        predict: PredictFn,
        *,
        iteration: int,
        place: str,
        size: int,
        emit: Callable[[Event], None] | None = None,
    ) -> Scan | None:
        """Begin a scan of reflections that do not exist yet; ``None`` where the aggregator cannot.

        Args:
            candidate: The parent.
            component: Which component.
            predict: The way to the LM.
            iteration: The iteration.
            place: What tells this scan apart from others in the iteration.
            size: Reflections to come, at most.
            emit: Where its events go; by default where all do.
        """
        context = self._context(candidate, component, predict, iteration, place)
        if emit is not None:
            context = replace(context, emit=emit)
        return begin(self._aggregator, size, context)

    def _learned(self, reflections: Sequence[Reflection], size: int, context: StrategyContext) -> Lessons:
        """Learn from reflections that are all there, by the plan that a stream of them would have had."""
        scan = begin(self._aggregator, size, context)
        if scan is None or any(one.index >= size or one.part for one in reflections):
            return learn(self._aggregator, reflections, context)
        for reflection in reflections:
            scan.feed(reflection.index, reflection)
        return scan.finish()

    def _context(
        self, candidate: Candidate, component: str, predict: PredictFn, iteration: int, place: str
    ) -> StrategyContext:
        return StrategyContext(
            component=component,
            text=candidate[component],
            predict=within(predict, f"{place}/{component}", iteration),
            emit=self.emit,
            iteration=iteration,
            seed=self._seed,
            place=place,
            notes=self._guarding.notes(component, candidate),
            joined_later=self._joined_later,
        )

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
        stream: Stream | None = None,
    ) -> Scanned:
        """Reduce what a minibatch says about one component.

        Args:
            candidate: The parent.
            dataset: The minibatch's records, and the rollouts behind them.
            component: Which component.
            predict: The way to the LM.
            iteration: The iteration.
            place: What tells this scan apart from others in the iteration.
            again: Reflections that an earlier scan's result had lost.
            lessons_needed: Whether an operator will read lessons; without, no scan runs.
            stream: The scan that has begun already, if it has.
        """
        program = self.program(candidate)
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
        context = self._context(candidate, component, predict, iteration, place)
        fresh = _reflections(component, dataset)
        if not fresh or not lessons_needed:
            return Scanned(given, context, tuple(fresh), given.lessons)
        if stream is not None:
            rescued = stream.rescued(component)
        else:
            rescued = behind(len(dataset.rollouts), [one.example_id for one in dataset.rollouts], again)
        reflections = (*fresh, *rescued)
        tokens = sum(estimate_record_tokens(one.record) for one in reflections)
        self.emit(ReflectionsMade(iteration=iteration, component=component, size=len(reflections), tokens=tokens))
        size = len(dataset.rollouts) + len(rescued)
        lessons = stream.lessons(component) if stream is not None else self._learned(reflections, size, context)
        told = lessons.rewrite is None
        sample = len(reflections) <= _SAMPLED
        retained, samples = measure_scan(reflections, lessons, sample=sample) if told else ((), ((), ()))
        offered = tuple(dict.fromkeys(one.index for one in rescued))
        return Scanned(replace(given, lessons=lessons), context, reflections, lessons, retained, offered, samples)


def _reflections(component: str, dataset: ReflectiveDataset) -> list[Reflection]:
    records = dataset.get(component) or []
    placed = dataset.positions.get(component)
    if placed is not None:
        ids = [rollout.example_id for rollout in dataset.rollouts]
        return [Reflection(place, record, ids[place]) for place, record in zip(placed, records, strict=True)]
    # Records that DSPy made itself do not say which trajectory they are about, unless it left none out.
    known: Sequence[str | None] = [rollout.example_id for rollout in dataset.rollouts]
    known = known if len(known) == len(records) else [None] * len(records)
    return [
        Reflection(index, record, example_id)
        for index, (record, example_id) in enumerate(zip(records, known, strict=True))
    ]
