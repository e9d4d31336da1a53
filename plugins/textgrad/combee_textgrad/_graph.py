"""From rollouts that have been run to textgrad's graph, and a step down it."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
from combee_dspy.records import Rollout

__all__ = ["Engine", "Graph", "textgrad"]


def _import_quietly() -> Any:
    """Import textgrad without the log of every prompt that it would write below the working
    directory.
    """
    before = os.environ.get("TEXTGRAD_LOG_DIR")
    with tempfile.TemporaryDirectory(prefix="combee-textgrad-") as folder:
        os.environ["TEXTGRAD_LOG_DIR"] = before or folder
        try:
            import textgrad as imported
        finally:
            if before is None:
                del os.environ["TEXTGRAD_LOG_DIR"]
        if before is None:
            logger = logging.getLogger("textgrad")
            for handler in [one for one in logger.handlers if isinstance(one, logging.FileHandler)]:
                logger.removeHandler(handler)
                handler.close()
            logger.propagate = False
    return imported


textgrad = _import_quietly()

from textgrad.autograd.llm_ops import LLMCall  # noqa: E402 - after the quiet import
from textgrad.autograd.string_based_ops import StringBasedFunction  # noqa: E402
from textgrad.engine import EngineLM  # noqa: E402


class Engine(EngineLM):
    """textgrad's way to an LM, through DSPy: so every call is in the ledger, and no cache of
    textgrad's is used.

    Args:
        lm: The LM.
    """

    def __init__(self, lm: dspy.LM) -> None:
        self.lm = lm
        self.model_string = str(lm.model)

    def generate(self, prompt: Any, system_prompt: str | None = None, **kwargs: Any) -> str:
        """Return the LM's answer."""
        messages = [{"role": "system", "content": system_prompt or self.system_prompt}]
        # Not as a Request, which DSPy sends without the temperature and the limits that the LM was
        # made with.
        answers = self.lm(messages=[*messages, {"role": "user", "content": str(prompt)}])
        first = answers[0] if answers else ""
        return str(first.get("text", "") if isinstance(first, dict) else first)

    def __call__(self, prompt: Any, **kwargs: Any) -> str:
        """Return the LM's answer."""
        return self.generate(prompt, **kwargs)


class _Bought(EngineLM):
    """Gives the answer that a rollout has paid for already."""

    model_string = "rollout"

    def __init__(self, text: str) -> None:
        self._text = text

    def generate(self, prompt: Any, system_prompt: str | None = None, **kwargs: Any) -> str:
        return self._text

    def __call__(self, prompt: Any, **kwargs: Any) -> str:
        return self._text


class Graph:
    """Builds the graph of a minibatch and takes one step.

    Args:
        program: The program, for the names of its predictors and fields.
        engine: Computes gradients and updates.
        constraints: Sentences for the optimizer.
    """

    def __init__(self, program: dspy.Module, engine: Engine, constraints: tuple[str, ...] = ()) -> None:
        self._fields = {
            name: (
                tuple(predictor.signature.input_fields),
                tuple(predictor.signature.output_fields),
            )
            for name, predictor in program.named_predictors()
        }
        self._engine = engine
        self._constraints = list(constraints)

    def step(self, instructions: Mapping[str, str], rollouts: Sequence[Rollout]) -> dict[str, str]:
        """Return the instructions after one step; unchanged where no rollout made an LM call that
        could be read.

        Args:
            instructions: Text by predictor.
            rollouts: A minibatch, run with these instructions.

        Raises:
            IndexError: The optimizer did not answer between its tags.
        """
        parameters = {
            name: textgrad.Variable(
                text or "Answer.",
                requires_grad=True,
                role_description=(f"instruction of the step {name!r}, given to the language model as system prompt"),
            )
            for name, text in instructions.items()
        }
        losses = [loss for rollout in rollouts if (loss := self._loss(rollout, parameters)) is not None]
        if not losses:
            return dict(instructions)
        textgrad.sum(losses).backward(engine=self._engine)
        touched = [parameter for parameter in parameters.values() if parameter.gradients]
        optimizer = textgrad.TextualGradientDescent(
            parameters=touched, engine=self._engine, constraints=self._constraints
        )
        optimizer.step()
        values = {name: str(parameter.value).strip() for name, parameter in parameters.items()}
        # An empty prompt is no prompt: what was there stays.
        return {
            name: values[name] if values[name] and parameters[name] in touched else text
            for name, text in instructions.items()
        }

    def _loss(self, rollout: Rollout, parameters: Mapping[str, Any]) -> Any:
        responses: dict[str, Any] = {}
        for number, call in enumerate(rollout.calls):
            if call.predictor not in parameters:
                continue
            given, told = self._fields[call.predictor]
            question = textgrad.Variable(
                _lines(call.inputs, given) or "(nothing)",
                requires_grad=False,
                role_description="input of the step",
            )
            said = _lines(call.outputs or {}, told) or call.completion or "(no answer)"
            answered = LLMCall(_Bought(said), parameters[call.predictor])
            name = f"answer_{number}_of_{call.predictor}"
            responses[name] = answered(question, response_role_description="answer of the step")
        if not responses:
            return None
        said = rollout.feedback or rollout.error or ""
        text = f"score {rollout.score:g}. {said}".strip()
        purpose = "scores the answer: the higher, the better, with feedback on what was right or wrong"
        return StringBasedFunction(lambda **_: text, function_purpose=purpose)(
            inputs=responses, response_role_description="score and feedback"
        )


def _lines(values: Mapping[str, Any], names: Sequence[str]) -> str:
    found = {name: values.get(name) for name in names}
    return "\n".join(f"{name}: {value}" for name, value in found.items() if value is not None)
