"""An agent that writes code, sees what it prints, and goes on until it is done."""

from __future__ import annotations

import re
from collections.abc import Callable

import dspy

__all__ = ["CodeAgent"]

_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)
_NOTHING = "(no code was given: nothing was carried out)"

_HOW = """\
You act in an environment by writing code. At each turn, write the next piece of code; it is carried
out, and you see what it printed before the next turn. State stays between turns. Print what you
need to see.
Set `finished` to true with the last piece of code, when nothing is left to do."""


class CodeAgent(dspy.Module):
    """Acts by code alone, with one predictor (CodeAct, arXiv 2402.01030).

    Unlike ``dspy.CodeAct`` the code runs in the environment and not in an
    interpreter beside it, is carried out as it was written, and no further call
    sums the attempt up. It answers ``trajectory``: a text of all turns.

    Args:
        signature: What the agent is given. Its output fields are asked for at each turn, and the
            last turn's are the answer.
        execute: Carries out code and returns what it printed.
        max_iters: The most turns.
    """

    def __init__(
        self, signature: type[dspy.Signature], execute: Callable[[str], str], *, max_iters: int = 20
    ) -> None:
        super().__init__()
        self._execute = execute
        self.max_iters = max_iters
        instructions = "\n\n".join(
            part for part in (signature.instructions, _HOW, execute.__doc__) if part
        )
        acting = dspy.Signature(dict(signature.input_fields), instructions)
        acting = acting.append(
            "trajectory", dspy.InputField(desc="Code so far and what it printed."), type_=str
        )
        acting = acting.append("code", dspy.OutputField(desc="The next piece of code."), type_=str)
        acting = acting.append(
            "finished", dspy.OutputField(desc="Whether nothing is left to do."), type_=bool
        )
        for name, field in signature.output_fields.items():
            acting = acting.append(name, field)
        self._answers = tuple(signature.output_fields)
        self.act = dspy.Predict(acting)

    def forward(self, **inputs: object) -> dspy.Prediction:
        """Act until finished, or until the turns are used up."""
        told: list[str] = []
        turn = dspy.Prediction()
        for number in range(1, self.max_iters + 1):
            turn = self.act(**inputs, trajectory="\n\n".join(told) or "(nothing yet)")
            code = _unfenced(turn.code or "")
            printed = self._execute(code) if code.strip() else _NOTHING
            told.append(f"[{number}] code:\n{code}\n[{number}] printed:\n{printed}")
            if turn.finished:
                break
        return dspy.Prediction(
            **{name: turn.get(name) for name in self._answers}, trajectory="\n\n".join(told)
        )


def _unfenced(code: str) -> str:
    """Return the code without Markdown's fences; several blocks are joined."""
    blocks = _FENCE.findall(code)
    return "\n".join(block.rstrip() for block in blocks) if blocks else code
