"""TextGrad on a DSPy program: its instructions are the variables, the metric's feedback is the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import dspy
from combee_dspy.baselines import Baseline, BaselineTask, Desk
from combee_dspy.bounds import check_whole
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.records import Rollout
from combee_dspy.streams import derive

__all__ = ["TextGrad"]


class TextGrad(Baseline):
    """Textual gradient descent with the ``textgrad`` package, as its prompt optimization does it.

    One step: run a minibatch, back-propagate each loss through the predictor calls to the
    instructions, one LM call a gradient and one after the other, then one call of the optimizer
    per instruction. The new prompt is validated, and undone where it is worse.

    Every LM call goes through ``reflection_lm`` and so to any endpoint that DSPy reaches; none of
    textgrad's own engines is used. It keeps gradients in Python sets, whose order differs from
    process to process: a seed fixes minibatches and not the order of what a prompt shows.

    Args:
        batch_size: Examples in a minibatch; 3 is what textgrad's own example of prompt optimization uses.
        revert: Whether a step that lowers the validation score is undone.
        constraints: Sentences that the optimizer is told to keep to.
    """

    name: ClassVar[str] = "textgrad"
    distributions: ClassVar[tuple[str, ...]] = ("dspy", "textgrad", "combee-dspy-textgrad")

    def __init__(self, batch_size: int = 3, revert: bool = True, constraints: Sequence[str] = ()) -> None:
        self.batch_size = batch_size
        self.revert = revert
        self.constraints = constraints

    def validate(self) -> None:
        """Check the parameters.

        Raises:
            ArgumentTypeError: ``constraints`` is no list of texts, or ``batch_size`` no whole number.
            ArgumentValueError: ``batch_size`` is below 1.
        """
        check_whole("batch_size", self.batch_size, 1)
        if isinstance(self.constraints, str) or not all(isinstance(one, str) for one in self.constraints):
            raise ArgumentTypeError("constraints", self.constraints, "is no list of texts", 'Give ["Keep it short."].')

    def prepare(self) -> None:
        """Load textgrad, which takes seconds."""
        import combee_textgrad._graph  # noqa: F401

    def search(self, task: BaselineTask, desk: Desk) -> dspy.Module | None:
        """Step until the budget is spent."""
        from combee_textgrad._graph import Engine, Graph

        graph = Graph(task.program, Engine(task.reflection_lm), tuple(self.constraints))
        program = task.program.deepcopy()
        score = _mean(desk.evaluate(program, task.validation))
        order: list[int] = []
        epoch = 0
        while True:
            if not order:
                order = list(range(len(task.train)))
                derive(task.seed, "textgrad", "epoch", epoch).shuffle(order)
                epoch += 1
            batch, order = order[: self.batch_size], order[self.batch_size :]
            rollouts = desk.evaluate(program, [task.train[number] for number in batch])
            before = instructions_of(program)
            try:
                after = graph.step(before, rollouts)
            except IndexError as error:
                # textgrad's word for an optimizer that did not answer between its tags.
                desk.trouble("textgrad", f"{type(error).__name__}: {error}"[:500])
                continue
            if after == before:
                continue
            child = with_instructions(program, after)
            desk.proposed(program, child, "textual-gradient-descent")
            found = _mean(desk.evaluate(child, task.validation))
            if found >= score or not self.revert:
                program, score = child, found


def instructions_of(program: dspy.Module) -> dict[str, str]:
    """Return instruction by predictor."""
    return {name: str(predictor.signature.instructions) for name, predictor in program.named_predictors()}


def with_instructions(program: dspy.Module, texts: Mapping[str, str]) -> dspy.Module:
    """Return a copy of a program with other instructions."""
    copied = program.deepcopy()
    for name, predictor in copied.named_predictors():
        predictor.signature = predictor.signature.with_instructions(texts[name])
    return copied


def _mean(rollouts: Sequence[Rollout]) -> float:
    scores: list[Any] = [rollout.score for rollout in rollouts]
    return sum(scores) / len(scores)
