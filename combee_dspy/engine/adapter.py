"""Between gepa's loop and a DSPy program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction

from combee_dspy.engine._private import DspyBridge, EvaluationBatch
from combee_dspy.engine.candidates import Candidate, demonstrations_key, is_hidden, visible
from combee_dspy.engine.evaluator import Evaluated, Evaluator
from combee_dspy.engine.state import RunState
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators import decode_demonstrations
from combee_dspy.records import Rollout

__all__ = ["CombeeAdapter", "CrashedPrediction", "ReflectiveDataset", "feedback_map"]


class CrashedPrediction(dspy.Prediction):
    """Stands for the output of a program that raised, so that its steps can still be reflected on."""

    def __init__(self, error: str) -> None:
        super().__init__(error=error)


class ReflectiveDataset(dict[str, list[Any]]):
    """GEPA's reflective dataset, with the rollouts it was made from.

    Attributes:
        rollouts: In minibatch order.
    """

    def __init__(self, records: Mapping[str, list[Any]], rollouts: tuple[Rollout, ...]) -> None:
        super().__init__(records)
        self.rollouts = rollouts


class _TracedBatch(EvaluationBatch):
    """gepa's evaluation batch, with the rollouts behind it."""

    rollouts: tuple[Rollout, ...] = ()


def feedback_map(student: dspy.Module, metric: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return GEPA's feedback function per predictor.

    Args:
        student: The program.
        metric: GEPA's metric; called with the predictor's name and its part of the trace.

    Returns:
        Predictor name to a function that returns ``score`` and ``feedback``.
    """

    def make(name: str, predictor: Any) -> Callable[..., Any]:
        def feedback(
            predictor_output: Any, predictor_inputs: Any, module_inputs: Any, module_outputs: Any, captured_trace: Any
        ) -> Any:
            if isinstance(module_outputs, CrashedPrediction):
                return {"score": None, "feedback": f"After this step the program failed: {module_outputs.error}"}
            part = [(predictor, predictor_inputs, predictor_output)]
            output = metric(module_inputs, module_outputs, captured_trace, name, part)
            if hasattr(output, "feedback"):
                if output["feedback"] is None:
                    output["feedback"] = f"This trajectory got a score of {output['score']}."
                return output
            return {"score": output, "feedback": f"This trajectory got a score of {output}."}

        return feedback

    return {name: make(name, predictor) for name, predictor in student.named_predictors()}


class CombeeAdapter(DspyBridge):
    """Evaluates through the run's evaluator and keeps the rollouts for the reducer.

    gepa calls it from one thread.

    Args:
        evaluator: Buys the rollouts; set right after construction by :meth:`attach`.
        state: The run's state.
        like_gepa: Keep to what ``dspy.GEPA`` sends: rollouts of a program that
            raised are dropped from reflection instead of teaching something.
        **kwargs: As for DSPy's adapter.
    """

    def __init__(
        self,
        *,
        state: RunState,
        like_gepa: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.run_state = state
        self.like_gepa = like_gepa
        self.purpose = "validation"
        self._evaluator: Evaluator | None = None
        self._last_dataset: tuple[object, list[str], ReflectiveDataset] | None = None

    def attach(self, evaluator: Evaluator) -> None:
        """Set the evaluator, which needs :meth:`build_program` of this very object."""
        self._evaluator = evaluator

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
        return program

    def evaluate(
        self, batch: list[Any], candidate: Candidate, capture_traces: bool = False, num_threads: int | None = None
    ) -> EvaluationBatch:
        """Evaluate one candidate; the seed's validation and merge checks come this way."""
        if self.flex_components:
            return self.own_evaluation(batch, candidate, capture_traces)
        return self._as_batch(self._buy([(candidate, batch)], "validation")[0], capture_traces)

    def batch_evaluate(
        self, items: list[tuple[Candidate, list[Any]]], *, capture_traces: bool = True
    ) -> list[EvaluationBatch]:
        """Evaluate all pairs of one step of gepa's loop, together."""
        purpose, self.purpose = self.purpose, "validation"
        if self.flex_components:
            batches = super().batch_evaluate(items, capture_traces=capture_traces)
        else:
            batches = [self._as_batch(done, capture_traces) for done in self._buy(items, purpose)]
        if purpose == "parent":
            for batch in batches:
                for score in batch.scores:
                    self.run_state.add_score(score)
        elif purpose == "child":
            self.run_state.finish_measurement()
        return list(batches)

    def make_reflective_dataset(
        self, candidate: Candidate, eval_batch: EvaluationBatch, components_to_update: list[str]
    ) -> ReflectiveDataset:
        """Build the reflective dataset, once for all children of one parent and minibatch."""
        components = [name for name in components_to_update if not is_hidden(name)]
        last = self._last_dataset
        if last is not None and last[0] is eval_batch and last[1] == components:
            return last[2]
        records = self.own_dataset(candidate, eval_batch, components)
        dataset = ReflectiveDataset(records, getattr(eval_batch, "rollouts", ()))
        self._last_dataset = (eval_batch, components, dataset)
        return dataset

    def get_adapter_state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {**super().get_adapter_state(), "combee": self.run_state.dump()}

    def set_adapter_state(self, state: dict[str, Any]) -> None:
        """Restore what a checkpoint kept."""
        super().set_adapter_state(state)
        if "combee" in state:
            self.run_state.load(state["combee"])

    def _buy(self, items: Sequence[tuple[Candidate, Sequence[Any]]], purpose: str) -> list[Evaluated]:
        if self._evaluator is None:
            raise RuntimeError("the adapter was used before attach()")
        done = self._evaluator.evaluate(items, purpose=purpose, iteration=self.run_state.iteration)
        if self.run_state.iteration == 0:
            self._check_metric([rollout for one in done for rollout in one.rollouts])
        return done

    def _check_metric(self, rollouts: Sequence[Rollout]) -> None:
        """Tell a metric that never works from a program that is never right."""
        broken = [rollout.error for rollout in rollouts if rollout.failed_in == "metric"]
        if broken and len(broken) == len(rollouts):
            problem = f"raised on every one of {len(broken)} validation examples, first: {broken[0]}"
            raise ArgumentValueError(
                "metric", self.metric_fn, problem, "Mend it, then try it on one prediction by hand."
            )

    def _as_batch(self, evaluated: Evaluated, capture_traces: bool) -> EvaluationBatch:
        rollouts = evaluated.rollouts
        objectives = [dict(rollout.objective_scores) for rollout in rollouts]
        batch = _TracedBatch(
            outputs=[None if rollout.error else rollout.prediction for rollout in rollouts],
            scores=[rollout.score for rollout in rollouts],
            trajectories=self._trajectories(rollouts) if capture_traces else None,
            objective_scores=objectives if any(objectives) else None,
            num_metric_calls=evaluated.bought,
        )
        batch.rollouts = rollouts
        return batch

    def _trajectories(self, rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
        """Return DSPy's trajectory records."""
        found = []
        for index, rollout in enumerate(rollouts):
            if rollout.error and (self.like_gepa or not rollout.trace):
                continue
            prediction = CrashedPrediction(rollout.error) if rollout.error else rollout.prediction
            found.append(
                {
                    "example_ind": index,
                    "example": rollout.example,
                    "prediction": prediction,
                    "trace": list(rollout.trace),
                    "score": None if rollout.error else _module_score(rollout),
                }
            )
        return found


def _module_score(rollout: Rollout) -> Any:
    if isinstance(rollout.prediction, FailedPrediction):
        return rollout.score
    return rollout.metric_output
