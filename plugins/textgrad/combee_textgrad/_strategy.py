"""TextGrad on a DSPy program: its instructions are the variables, the metric's feedback is the
loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Annotated, ClassVar

import dspy
from combee_bench.baselines import Baseline, BaselineTask, Found
from combee_dspy.hashing import row_hash
from combee_dspy.records import Rollout
from combee_dspy.rollouts import RolloutJob, run_rollout
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive
from pydantic import Field

__all__ = ["TextGrad"]


@parameters
class TextGrad(Baseline):
    """Textual gradient descent with the ``textgrad`` package, as its prompt optimization does it.

    One step: run a minibatch, back-propagate each loss through the predictor calls to the
    instructions, one LM call a gradient and one after the other, then one call of the optimizer
    per instruction. The new prompt is validated, and undone where it is worse.

    Every LM call goes through ``reflection_lm`` and so to any endpoint that DSPy reaches; none of
    textgrad's own engines is used. It keeps gradients in Python sets, whose order differs from
    process to process: a seed fixes minibatches and not the order of what a prompt shows.

    Args:
        batch_size: Examples in a minibatch; 3 is what textgrad's own example of prompt optimization
            uses.
        revert: Whether a step that lowers the validation score is undone.
        constraints: Sentences that the optimizer is told to keep to.
    """

    name: ClassVar[str] = "textgrad"
    distributions: ClassVar[tuple[str, ...]] = ("dspy", "textgrad", "combee-dspy-textgrad")

    batch_size: Annotated[int, Field(ge=1)] = 3
    revert: bool = True
    constraints: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Load textgrad, which takes seconds."""
        import combee_textgrad._graph  # noqa: F401

    def search(self, task: BaselineTask) -> Found:
        """Step until the budget is spent."""
        from combee_textgrad._graph import Engine, Graph

        rows, desk = task.rows, _Desk(task)
        graph = Graph(task.student, Engine(task.reflection_lm), self.constraints)
        program = task.student.deepcopy()
        score = desk.validated(program)
        order: list[int] = []
        epoch = unread = 0
        # A step takes a minibatch and the validation of what it found.
        while desk.bought + self.batch_size + len(rows.validation) <= task.budget:
            if not order:
                order = list(range(len(rows.train)))
                derive(task.seed, "textgrad", "epoch", epoch).shuffle(order)
                epoch += 1
            batch, order = order[: self.batch_size], order[self.batch_size :]
            rollouts = desk.evaluated(program, [rows.train.examples[number] for number in batch])
            before = instructions_of(program)
            try:
                after = graph.step(before, rollouts)
            except IndexError:
                # textgrad's word for an optimizer that did not answer between its tags.
                unread += 1
                continue
            if after == before:
                continue
            child = with_instructions(program, after)
            found = desk.validated(child)
            if found >= score or not self.revert:
                program, score = child, found
        return Found(
            program,
            desk.bought,
            score,
            f"{unread} answers of its optimizer could not be read" if unread else "",
        )


class _Desk:
    """Buys rollouts, and counts them."""

    def __init__(self, task: BaselineTask) -> None:
        self._task = task
        self.bought = 0

    def evaluated(self, program: dspy.Module, examples: Sequence[dspy.Example]) -> list[Rollout]:
        """Run a program on examples, in threads."""
        jobs = [RolloutJob(program, example, row_hash(example), self._task.rows.metric) for example in examples]
        self.bought += len(jobs)
        with ThreadPoolExecutor(self._task.threads) as pool:
            # DSPy keeps its settings in context variables.
            return [future.result() for future in [pool.submit(copy_context().run, run_rollout, job) for job in jobs]]

    def validated(self, program: dspy.Module) -> float:
        """Return a program's mean score on the validation set."""
        scores = [rollout.score for rollout in self.evaluated(program, self._task.rows.validation.examples)]
        return sum(scores) / len(scores)


def instructions_of(program: dspy.Module) -> dict[str, str]:
    """Return instruction by predictor."""
    return {name: str(predictor.signature.instructions) for name, predictor in program.named_predictors()}


def with_instructions(program: dspy.Module, texts: Mapping[str, str]) -> dspy.Module:
    """Return a copy of a program with other instructions."""
    copied = program.deepcopy()
    for name, predictor in copied.named_predictors():
        predictor.signature = predictor.signature.with_instructions(texts[name])
    return copied
