"""Between gepa's loop and a DSPy program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction

from combee_dspy.costs import role_scope
from combee_dspy.engine._private import DspyBridge, EvaluationBatch
from combee_dspy.engine.candidates import Candidate, candidate_id, demonstrations_key, fields_key, is_hidden, visible
from combee_dspy.engine.evaluator import Begun, Evaluated, Evaluator
from combee_dspy.engine.feedback import CrashedPrediction, as_evaluator
from combee_dspy.engine.flex import flex_rollouts
from combee_dspy.engine.screening import Screening
from combee_dspy.engine.state import RunState
from combee_dspy.events import CandidateProposed, CandidateRefused, ErrorRaised
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms.redact import scrub
from combee_dspy.operators import decode_demonstrations, decode_fields, describe_fields
from combee_dspy.records import Refusal, Rollout

if TYPE_CHECKING:  # Foresight reads what this module makes.
    from combee_dspy.engine.foresight import Foresight
    from combee_dspy.engine.judging import Judging

__all__ = ["CombeeAdapter", "RecordsOf", "ReflectiveDataset"]

RecordsOf = Callable[
    [Candidate, Sequence[Rollout], Sequence[str]], tuple[dict[str, list[Any]], Mapping[str, Sequence[int]]]
]
"""Parent, its rollouts and the components to their records, and which rollout each is about."""

logger = logging.getLogger("combee_dspy")


class ReflectiveDataset(dict[str, list[Any]]):
    """GEPA's reflective dataset, with the rollouts it was made from.

    Attributes:
        rollouts: In minibatch order.
        number: Position of the minibatch in its iteration.
        positions: By component, which rollout each record is about; empty where DSPy made the records.
    """

    def __init__(
        self,
        records: Mapping[str, list[Any]],
        rollouts: tuple[Rollout, ...],
        number: int = 0,
        positions: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        super().__init__(records)
        self.rollouts = rollouts
        self.number = number
        self.positions = dict(positions or {})


class _TracedBatch(EvaluationBatch):
    """gepa's evaluation batch, with the rollouts behind it and its position in the iteration."""

    rollouts: tuple[Rollout, ...] = ()
    number: int = 0


class CombeeAdapter(DspyBridge):
    """Evaluates through the run's evaluator and keeps the rollouts for the reducer.

    gepa calls it from one thread.

    Args:
        evaluator: Buys the rollouts; set right after construction by :meth:`attach`.
        state: The run's state.
        like_gepa: Keep to what ``dspy.GEPA`` sends: rollouts of a program that
            raised are dropped from reflection instead of teaching something.
        scrubbed: Takes keys out of a message.
        **kwargs: As for DSPy's adapter.
    """

    def __init__(
        self,
        *,
        state: RunState,
        like_gepa: bool = False,
        scrubbed: Callable[[str], str] = scrub,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._scrub = scrubbed
        self.run_state = state
        self.like_gepa = like_gepa
        self.purpose = "validation"
        if self.flex_components:
            # DSPy's own evaluation calls program and metric from one place: the metric names its own role.
            self.metric_fn = as_evaluator(kwargs["metric_fn"])
        self._evaluator: Evaluator | None = None
        self._judging: Judging | None = None
        # Content hashes of the parents of the merge that is evaluated next; set by the listener.
        self.merging: tuple[str, ...] = ()
        self._foresight: Foresight | None = None
        self._screening: Screening | None = None
        self._recorder: RecordsOf | None = None
        self._guard: Callable[[str, str, Candidate], Refusal | None] = lambda component, text, candidate: None
        self._warned: set[str] = set()
        self._last_dataset: tuple[object, list[str], ReflectiveDataset] | None = None

    def attach(self, evaluator: Evaluator, judging: Judging | None = None) -> None:
        """Set the evaluator, which needs :meth:`build_program` of this very object, and who sees every rollout."""
        self._evaluator = evaluator
        self._judging = judging

    def scrubbed(self, text: str) -> str:
        """Return a text without keys."""
        return self._scrub(text)

    def look_ahead(self, foresight: Foresight, screening: Screening | None, recorder: RecordsOf) -> None:
        """Set what begins early, what spares children most of their minibatch, and who makes reflective records."""
        self._foresight, self._screening, self._recorder = foresight, screening, recorder

    def bind(self, guard: Callable[[str, str, Candidate], Refusal | None]) -> None:
        """Set what judges the texts of a proposer that DSPy calls: component, text and parent to a refusal."""
        self._guard = guard

    def build_program(self, candidate: Candidate) -> dspy.Module:
        """Return a fresh program with the candidate's texts and demonstrations. The student is not changed."""
        program = super().build_program({key: candidate[key] for key in visible(candidate)})
        for name, predictor in program.named_predictors():
            encoded = candidate.get(demonstrations_key(name))
            if encoded:
                predictor.demos = [
                    dspy.Example(**demo.inputs, **demo.outputs).with_inputs(*demo.inputs)
                    for demo in decode_demonstrations(encoded)
                ]
            described = decode_fields(candidate.get(fields_key(name), ""))
            if described:
                predictor.signature = describe_fields(predictor.signature, described)
        return program

    def evaluate(
        self, batch: list[Any], candidate: Candidate, capture_traces: bool = False, num_threads: int | None = None
    ) -> EvaluationBatch:
        """Evaluate one candidate; the seed's validation and merge checks come this way."""
        self._tell_merge(candidate)
        # A merge was announced like a child: what follows its check is a validation.
        self.purpose = "validation"
        if self.flex_components:
            return self._evaluate_flex([(candidate, batch)], "validation", capture_traces)[0]
        early = self._foresight if self.run_state.iteration == 0 else None
        if early is not None:
            early.before_seed()
        begun = self._begin([(candidate, batch)], "validation")
        if early is not None:
            with begun.kept():
                early.beside_seed(begun)
        return self._as_batch(self._finish(begun)[0], capture_traces)

    def batch_evaluate(
        self, items: list[tuple[Candidate, list[Any]]], *, capture_traces: bool = True
    ) -> list[EvaluationBatch]:
        """Evaluate all pairs of one step of gepa's loop, together."""
        purpose, self.purpose = self.purpose, "validation"
        if self.flex_components:
            batches = self._evaluate_flex(items, purpose, capture_traces)
        elif purpose == "parent":
            batches = self._parents(items, capture_traces)
        elif purpose == "child":
            batches = self._children(items, capture_traces)
        else:
            begun = self._begin(items, purpose)
            if self._foresight is not None:
                with begun.kept():
                    self._foresight.beside_validation(self._likeliest([candidate for candidate, _ in items]))
            batches = [self._as_batch(done, capture_traces) for done in self._finish(begun)]
        if purpose == "parent":
            for batch in batches:
                for score in batch.scores:
                    self.run_state.add_score(score)
        elif purpose == "child":
            self.run_state.checked = True
        return list(batches)

    def _parents(self, items: Sequence[tuple[Candidate, Sequence[Any]]], capture_traces: bool) -> list[EvaluationBatch]:
        hears = () if self._foresight is None else self._foresight.hears(items)
        done = self._finish(self._begin(items, "parent", hears))
        batches = [self._as_batch(one, capture_traces) for one in done]
        for number, (batch, one, (candidate, _)) in enumerate(zip(batches, done, items, strict=True)):
            batch.number = number
            if self._screening is not None:
                self._screening.remember(number, candidate, one.rollouts)
        return list(batches)

    def _children(
        self, items: Sequence[tuple[Candidate, Sequence[Any]]], capture_traces: bool
    ) -> list[EvaluationBatch]:
        """Run children on their minibatch, or on what their screen takes of it."""
        evaluator = self._bought_by()
        plans = [
            None if self._screening is None else self._screening.plan(candidate, batch, evaluator.row_hash)
            for candidate, batch in items
        ]
        asked = [
            (candidate, batch if plan is None else [batch[position] for position in plan.positions])
            for (candidate, batch), plan in zip(items, plans, strict=True)
        ]
        begun = self._begin(asked, "child" if None in plans else "screen")
        if self._foresight is not None:
            with begun.kept():
                self._foresight.beside_screen([candidate for candidate, _ in items])
                self._foresight.once_certain([candidate for candidate, _ in items], plans, begun)
        batches: list[EvaluationBatch] = []
        gone: list[str] = []
        for plan, one in zip(plans, self._finish(begun), strict=True):
            full = one if plan is None else replace(one, rollouts=plan.filled(one.rollouts))
            batches.append(self._as_batch(full, capture_traces))
            if plan is not None and self._screening is not None and not self._screening.judge(plan, one.rollouts):
                gone.append(plan.candidate_id)
        if self._foresight is not None and gone:
            self._foresight.refused(gone)
        return list(batches)

    def _likeliest(self, children: Sequence[Candidate]) -> list[Candidate]:
        """Return the children in the order in which the next iteration is likely to start from them."""
        gains = {} if self._screening is None else self._screening.gains
        return sorted(children, key=lambda child: -gains.get(candidate_id(child), 0.0))

    def screen(self, candidates: Sequence[Candidate], rows: Sequence[Any]) -> list[list[float]]:
        """Return each candidate's scores on a few examples; what it buys is counted with gepa's next evaluation."""
        done = self._buy([(candidate, list(rows)) for candidate in candidates], "screen")
        self.run_state.unbilled += sum(one.bought for one in done)
        return [[rollout.score for rollout in one.rollouts] for one in done]

    def another_draw(self, candidates: Sequence[Candidate], rows: Sequence[Any]) -> list[list[float]]:
        """Return each candidate's validation scores, drawn once more past every cache."""
        done = self._bought_by().evaluate(
            [(candidate, list(rows)) for candidate in candidates],
            purpose="validation",
            iteration=self.run_state.iteration,
            replicate=1,
        )
        self.run_state.unbilled += sum(one.bought for one in done)
        return [[rollout.score for rollout in one.rollouts] for one in done]

    def heldout_scores(self, candidates: Sequence[Candidate], rows: Sequence[Any]) -> list[list[float]]:
        """Return each candidate's scores on the held-out set, measured as its validation scores are."""
        items = [(candidate, list(rows)) for candidate in candidates]
        if self.flex_components:
            return [list(batch.scores) for batch in self._evaluate_flex(items, "heldout", False)]
        return [[rollout.score for rollout in done.rollouts] for done in self._buy(items, "heldout")]

    def make_reflective_dataset(
        self, candidate: Candidate, eval_batch: EvaluationBatch, components_to_update: list[str]
    ) -> ReflectiveDataset:
        """Build the reflective dataset, once for all children of one parent and minibatch.

        Raises:
            Exception: As DSPy does; told first, because gepa only skips the task.
        """
        components = [name for name in components_to_update if not is_hidden(name)]
        last = self._last_dataset
        if last is not None and last[0] is eval_batch and last[1] == components:
            return last[2]
        rollouts, number = getattr(eval_batch, "rollouts", ()), getattr(eval_batch, "number", 0)
        positions: Mapping[str, Sequence[int]] = {}
        try:
            if self._recorder is not None and not self.flex_components and rollouts:
                records, positions = self._recorder(candidate, rollouts, components)
            else:
                records = self.own_dataset(candidate, eval_batch, components)
        except Exception as error:
            self._tell("reflective dataset", error)
            raise
        dataset = ReflectiveDataset(records, rollouts, number, positions)
        # dspy.GEPA draws anew for every task, so parity does too.
        self._last_dataset = None if self.like_gepa else (eval_batch, components, dataset)
        return dataset

    def leave_proposals(self) -> None:
        """Leave proposing to gepa's reflection strategy, for the rest of the run."""
        # gepa asks the adapter wherever this attribute is not None; a method cannot be unset otherwise.
        self.__dict__["propose_new_texts"] = None

    def propose_new_texts(
        self, candidate: Candidate, reflective_dataset: Any, components_to_update: list[str]
    ) -> dict[str, str]:
        """Propose as ``dspy.GEPA`` does; gepa asks here where the scan does not propose.

        Raises:
            Exception: As the proposer does; told first, because gepa only skips the task.
        """
        try:
            texts = self.own_proposals(candidate, reflective_dataset, components_to_update)
        except Exception as error:
            self._tell("proposer", error)
            raise
        # Here, not in the files: a candidate is known by the hash of its texts.
        texts = self._allowed(candidate, {name: self._scrub(text) for name, text in texts.items()})
        if texts and self._evaluator is not None:
            self._evaluator.emit(
                CandidateProposed(
                    iteration=self.run_state.iteration,
                    candidate_id=candidate_id({**candidate, **texts}),
                    parent_id=candidate_id(candidate),
                    operator="instruction_proposer",
                    texts=texts,
                )
            )
        return texts

    def _allowed(self, candidate: Candidate, texts: Mapping[str, str]) -> dict[str, str]:
        """Return the texts that break no guard, and tell of the others."""
        allowed: dict[str, str] = {}
        for component, text in texts.items():
            refusal = self._guard(component, text, candidate)
            if refusal is None:
                allowed[component] = text
            elif self._evaluator is not None:
                self._evaluator.emit(
                    CandidateRefused(
                        iteration=self.run_state.iteration,
                        parent_id=candidate_id(candidate),
                        operator="instruction_proposer",
                        reason=refusal.reason,
                    )
                )
        return allowed

    def _tell_merge(self, candidate: Candidate) -> None:
        """Announce a child of gepa's merge, before it is evaluated."""
        parents, self.merging = self.merging, ()
        if parents and self._evaluator is not None:
            self._evaluator.emit(
                CandidateProposed(
                    iteration=self.run_state.iteration,
                    candidate_id=candidate_id(candidate),
                    parent_id=parents[0],
                    parent_ids=parents,
                    operator="merge",
                    texts=dict(candidate),
                )
            )

    def get_adapter_state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        judging = {} if self._judging is None else self._judging.dump()
        return {**super().get_adapter_state(), "combee": self.run_state.dump(), "judging": judging}

    def set_adapter_state(self, state: dict[str, Any]) -> None:
        """Restore what a checkpoint kept."""
        super().set_adapter_state(state)
        if "combee" in state:
            self.run_state.load(state["combee"])
        if self._judging is not None and self._evaluator is not None:
            self._judging.load(state.get("judging", {}))
            self._evaluator.rescore()

    def _bought_by(self) -> Evaluator:
        if self._evaluator is None:
            raise RuntimeError("the adapter was used before attach()")
        return self._evaluator

    def _buy(self, items: Sequence[tuple[Candidate, Sequence[Any]]], purpose: str) -> list[Evaluated]:
        return self._finish(self._begin(items, purpose))

    def _begin(
        self,
        items: Sequence[tuple[Candidate, Sequence[Any]]],
        purpose: str,
        ready: Sequence[Callable[[int, Rollout], None] | None] = (),
    ) -> Begun:
        begun = self._bought_by().begin(items, purpose=purpose, iteration=self.run_state.iteration, ready=ready)
        self.run_state.bought += sum(ticket.new for tickets in begun.pending for ticket in tickets)
        return begun

    def _finish(self, begun: Begun) -> list[Evaluated]:
        done = self._bought_by().finish(begun)
        for one in done:
            for rollout in one.rollouts:
                if self._judging is not None:
                    self._judging.observe(rollout)
        if self.run_state.iteration == 0 and begun.purpose == "validation":
            self._check_seed([rollout for one in done for rollout in one.rollouts])
        return done

    def _evaluate_flex(
        self, items: list[tuple[Candidate, list[Any]]], purpose: str, capture_traces: bool
    ) -> list[EvaluationBatch]:
        """Evaluate by DSPy's own means, which run a ``dspy.Flex`` program with its trace at hand."""
        evaluator, iteration = self._bought_by(), self.run_state.iteration
        with role_scope("task"):
            measured = self.own_batches(items, capture_traces)
        batches = []
        for (candidate, examples), plain in zip(items, measured, strict=True):
            batch = _TracedBatch(plain.outputs, plain.scores, plain.trajectories, plain.objective_scores)
            batch.rollouts = flex_rollouts(examples, plain, evaluator.row_hash)
            for rollout in batch.rollouts:
                evaluator.announce(rollout, candidate_id(candidate), purpose=purpose, iteration=iteration)
            batches.append(batch)
        if iteration == 0 and purpose == "validation":
            self._check_seed([rollout for batch in batches for rollout in batch.rollouts])
        return list(batches)

    def _check_seed(self, rollouts: Sequence[Rollout]) -> None:
        """Tell a metric or a program that never works from a program that is never right."""
        kinds = {rollout.failed_in if rollout.error else None for rollout in rollouts}
        if not rollouts or None in kinds:
            return
        problem = f"raised on every one of {len(rollouts)} validation examples, first: {rollouts[0].error}"
        if kinds == {"metric"}:
            raise ArgumentValueError(
                "metric", self.metric_fn, problem, "Mend it, then try it on one prediction by hand."
            )
        if "metric" not in kinds:
            raise ArgumentValueError("student", self.student, problem, "Mend it, then try it on one example by hand.")

    def _tell(self, where: str, error: Exception) -> None:
        """Tell of an error that gepa will swallow; log it once, however often it comes."""
        text = f"{type(error).__name__}: {error}"
        if self._evaluator is not None:
            iteration = self.run_state.iteration
            self._evaluator.emit(ErrorRaised(iteration=iteration, where=where, error=text, fatal=False))
        self._warn(f"{where} {text}", f"the {where} failed, and its task was skipped: {text}")

    def _warn(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            # An error's message may quote the request, key and all.
            logger.warning("%s", self._scrub(text))

    def _as_batch(self, evaluated: Evaluated, capture_traces: bool) -> EvaluationBatch:
        rollouts = evaluated.rollouts
        objectives = [dict(rollout.objective_scores) for rollout in rollouts]
        batch = _TracedBatch(
            outputs=[rollout.prediction for rollout in rollouts],
            scores=[rollout.score for rollout in rollouts],
            trajectories=self._trajectories(rollouts) if capture_traces else None,
            objective_scores=objectives if any(objectives) else None,
            num_metric_calls=evaluated.bought + self._unbilled(),
        )
        batch.rollouts = rollouts
        return batch

    def _unbilled(self) -> int:
        bought, self.run_state.unbilled = self.run_state.unbilled, 0
        return bought

    def _trajectories(self, rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
        """Return DSPy's trajectory records."""
        found = [self.trajectory(position, rollout) for position, rollout in enumerate(rollouts)]
        return [one for one in found if one is not None]

    def trajectory(self, position: int, rollout: Rollout) -> dict[str, Any] | None:
        """Return DSPy's trajectory record of one rollout; ``None`` where it teaches nothing.

        Args:
            position: Its place in the minibatch.
            rollout: The rollout.
        """
        if rollout.error and (rollout.failed_in == "metric" or rollout.prediction is not None):
            self._warn(
                "metric",
                "rollouts that the metric could not score teach nothing and get the failure score, "
                f"first: {rollout.error}",
            )
            return None
        if rollout.error and (self.like_gepa or not rollout.trace):
            return None
        prediction = CrashedPrediction(rollout.error) if rollout.error else rollout.prediction
        return {
            "example_ind": position,
            "example": rollout.example,
            "prediction": prediction,
            "trace": list(rollout.trace),
            "score": None if rollout.error else _module_score(rollout),
        }


def _module_score(rollout: Rollout) -> Any:
    if isinstance(rollout.prediction, FailedPrediction):
        return rollout.score
    return rollout.metric_output
