"""The reducer alone in MLflow: ``mlflow.genai.optimize_prompts(optimizer=CombeePromptOptimizer(lm),
…)``.

For agents that know nothing of DSPy: they read their prompts from MLflow's registry, and each of
these learns from what scorers say about many rows at once. Needs the extra ``mlflow``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
import gepa

from combee_dspy.exceptions import ArgumentValueError, MissingDistributionError
from combee_dspy.reducer import CombeeReflection
from combee_dspy.streams import derive

try:
    from mlflow.genai.optimize import BasePromptOptimizer, PromptOptimizerOutput
    from mlflow.genai.optimize.types import EvaluationResultRecord
except ImportError as error:
    raise MissingDistributionError("CombeePromptOptimizer", "combee-dspy[mlflow]") from error

__all__ = ["CombeePromptOptimizer"]

logger = logging.getLogger("combee_dspy")

# A variable of a template, or what begins a statement or a comment of Jinja's.
_FIELD = re.compile(r"\{\{.*?\}\}|\{[%#]", re.DOTALL)

Rows = Sequence[dict[str, Any]]
Evaluate = Callable[[dict[str, str], Rows], list[EvaluationResultRecord]]


class CombeePromptOptimizer(BasePromptOptimizer):
    """GEPA's search over registered prompts, whose minibatches are read by an aggregator of ours.
    Thread-safe.

    Rows are divided by the seed into some to learn from and some to choose by, so the scores that
    MLflow shows are of rows that no reflection has seen. In a chat prompt the first system message
    is learned, or else the first message. A line that would bring in a variable or a statement that
    the template does not have is left out, and a text that lacks one of the template's is refused:
    an answer of an LM must not become a field that nobody fills.

    Args:
        lm: Who reflects: a ``dspy.LM`` or a model's name, or a
            :class:`combee_dspy.CombeeReflection` with an aggregator and an operator of its own.
        max_metric_calls: Rows that may be evaluated in all.
        minibatch_size: Rows that one reflection reads, or all there are to learn from if fewer. 40
            is the size at which the paper compares a scan with one call.
        validation: Share of the rows to choose by, above 0 and below 1.
        seed: Where chance comes from.

    Raises:
        ArgumentTypeError: ``lm`` is of another kind.
        ArgumentValueError: A value is out of its range.
        MissingDistributionError: On import, where MLflow is not installed.
    """

    def __init__(
        self,
        lm: str | dspy.BaseLM | CombeeReflection,
        max_metric_calls: int = 500,
        minibatch_size: int = 40,
        validation: float = 0.5,
        seed: int = 0,
    ) -> None:
        for name, count in (
            ("max_metric_calls", max_metric_calls),
            ("minibatch_size", minibatch_size),
        ):
            if count < 1:
                raise ArgumentValueError(name, count, "is below 1", "Give at least one row.")
        if not 0 < validation < 1:
            problem, remedy = (
                "is no share between 0 and 1",
                "Give 0.5 to choose by half of the rows.",
            )
            raise ArgumentValueError("validation", validation, problem, remedy)
        self._reflection = (
            lm if isinstance(lm, CombeeReflection) else CombeeReflection(lm, seed=seed)
        )
        self._max_metric_calls, self._minibatch_size = max_metric_calls, minibatch_size
        self._validation, self._seed = validation, seed

    def optimize(
        self,
        eval_fn: Evaluate | None,
        train_data: Rows,
        target_prompts: dict[str, str],
        enable_tracking: bool = True,
    ) -> PromptOptimizerOutput:
        """Return the templates that do best on the rows to choose by; called by
        ``optimize_prompts``.

        Raises:
            ArgumentValueError: There are fewer than two rows or no scorers, or a chat prompt holds
                no text.
        """
        if eval_fn is None or len(train_data) < 2:
            remedy = "Give optimize_prompts rows, of which some are to choose by."
            raise ArgumentValueError(
                "train_data", len(train_data), "holds fewer than two rows", remedy
            )
        rows = list(train_data)
        derive(self._seed, "mlflow rows").shuffle(rows)
        chosen_by = min(max(1, round(self._validation * len(rows))), len(rows) - 1)
        prompts = _Prompts(eval_fn, target_prompts, self._reflection)
        found = gepa.optimize(
            seed_candidate=prompts.texts,
            trainset=rows[chosen_by:],
            valset=rows[:chosen_by],
            adapter=prompts,
            reflection_minibatch_size=min(self._minibatch_size, len(rows) - chosen_by),
            max_metric_calls=self._max_metric_calls,
            seed=self._seed,
            logger=_Log(),
        )
        scores = found.val_aggregate_scores
        if enable_tracking:
            import mlflow

            for step, score in enumerate(scores):
                mlflow.log_metric("eval_score", score, step=step)
        best = prompts.templates(found.best_candidate)
        return PromptOptimizerOutput(
            best, initial_eval_score=scores[0], final_eval_score=max(scores)
        )


class _Prompts:
    """A gepa adapter over MLflow's ``eval_fn``: one component a prompt. ``texts`` are what is
    learned of each.
    """

    def __init__(
        self,
        eval_fn: Evaluate,
        templates: dict[str, str],
        lm: CombeeReflection,
    ) -> None:
        self._eval_fn, self._lm = eval_fn, lm
        self._chats = {
            name: chat
            for name, text in templates.items()
            if (chat := _chat(name, text)) is not None
        }
        learned = {
            name: messages[place]["content"] for name, (messages, place) in self._chats.items()
        }
        self.texts: dict[str, str] = templates | learned

    def templates(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Return the templates that hold some texts, chat prompts as MLflow writes them."""
        found = dict(texts)
        for name, (messages, place) in self._chats.items():
            changed = {**messages[place], "content": texts[name]}
            found[name] = json.dumps([*messages[:place], changed, *messages[place + 1 :]])
        return found

    def evaluate(
        self, batch: Rows, candidate: dict[str, str], capture_traces: bool = False
    ) -> gepa.EvaluationBatch[Any, Any]:
        results = self._eval_fn(self.templates(candidate), batch)
        if any(one.score is None for one in results):
            remedy = (
                "Give optimize_prompts scorers, and an aggregation where their scores are no"
                " numbers."
            )
            raise ArgumentValueError("scorers", None, "are missing: rows have no score", remedy)
        return gepa.EvaluationBatch(
            outputs=[one.outputs for one in results],
            scores=[float(one.score) for one in results],
            trajectories=results if capture_traces else None,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: gepa.EvaluationBatch[Any, Any],
        components_to_update: list[str],
    ) -> dict[str, list[dict[str, Any]]]:
        records = [_record(one) for one in eval_batch.trajectories or ()]
        return dict.fromkeys(components_to_update, records)

    def propose_new_texts(
        self, candidate: dict[str, str], reflective_dataset: Any, components_to_update: list[str]
    ) -> dict[str, str]:
        proposal, _ = self._lm.reflect(candidate, reflective_dataset, components_to_update)
        found = {
            name: _with_fields_of(candidate[name], text)
            for name, text in proposal.new_texts.items()
        }
        for name in (name for name, text in found.items() if text is None):
            logger.warning("%s keeps its text: the new one lacks a field of the template", name)
        return {name: text for name, text in found.items() if text is not None}


class _Log:
    """What gepa says goes where the package logs, not to the terminal."""

    def log(self, message: str) -> None:
        logger.debug("%s", message)


def _record(result: Any) -> dict[str, Any]:
    """Return GEPA's reflective record of one of MLflow's results."""
    said = [f"This row got a score of {result.score}.", f"Expected: {result.expectations}"]
    said += [
        f"{name}: {rationale}" for name, rationale in (result.rationales or {}).items() if rationale
    ]
    return {
        "Inputs": result.inputs,
        "Generated Outputs": result.outputs,
        "Feedback": "\n".join(said),
    }


def _chat(name: str, template: str) -> tuple[list[dict[str, Any]], int] | None:
    """Return the messages of a chat prompt and which of them is learned, or ``None`` for a text
    prompt.
    """
    try:
        messages = json.loads(template)
    except ValueError:
        return None
    if not isinstance(messages, list) or not all(
        isinstance(one, dict) and "role" in one for one in messages
    ):
        return None
    texts = [place for place, one in enumerate(messages) if isinstance(one.get("content"), str)]
    if not texts:
        raise ArgumentValueError(
            "target_prompts", name, "is a chat prompt without text", "Give it a system message."
        )
    return messages, min(texts, key=lambda place: messages[place]["role"] != "system")


def _with_fields_of(old: str, new: str) -> str | None:
    """Return a new text without the lines that hold fields of their own; ``None`` where it lacks
    one of the old.
    """
    known, lines = _fields(old), set(old.splitlines())
    text = "\n".join(line for line in new.splitlines() if line in lines or _fields(line) <= known)
    return text if _fields(text) == known else None


def _fields(text: str) -> set[str]:
    return {"".join(field.split()) for field in _FIELD.findall(text)}
