"""From a session to a DSPy program: tools of an agent, the program around it, and its metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import dspy

from combee_agents._base import EnvironmentFaultError
from combee_agents._code import CodeAgent
from combee_agents._pool import SessionPool
from combee_agents._pooled import PooledSession, shorten
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["SessionAgent", "SessionMetric", "current", "in_session", "session_tools"]

_CURRENT: ContextVar[PooledSession | None] = ContextVar("combee_agent_session", default=None)
_SHOWN = 8_000

Style = Literal["react", "code"]
AgentBuilder = Callable[[type[dspy.Signature], Sequence[Callable[..., str]]], dspy.Module]
"""From a signature and tools to an agent."""


class _AbandonedError(BaseException):
    """Ends an agent whose environment is gone.

    No ``Exception``: agents turn those into observations, and would go on
    paying for steps in a world that is not there any more.
    """


@contextmanager
def in_session(session: PooledSession) -> Iterator[None]:
    """Let the tools of :func:`session_tools` act in a session, in this thread, inside the block.

    Raises:
        EnvironmentFaultError: The environment failed while an agent used a tool.
    """
    token = _CURRENT.set(session)
    try:
        yield
    except _AbandonedError:
        session.check()
        raise
    finally:
        _CURRENT.reset(token)


def current() -> PooledSession:
    """Return the session that this thread's agent acts in.

    Raises:
        ArgumentValueError: There is none.
    """
    session = _CURRENT.get()
    if session is None:
        remedy = "Call the agent through SessionAgent, or inside `with in_session(session):`."
        raise ArgumentValueError("session", None, "is used outside of one", remedy)
    return session


def _act(code: str, shown: int) -> str:
    try:
        return shorten(current().exec(code), shown)
    except EnvironmentFaultError as fault:
        raise _AbandonedError from fault


def session_tools(
    description: str | None = None, *, shown: int = _SHOWN
) -> list[Callable[..., str]]:
    """Return the tools of an agent that acts in the session of its thread.

    Args:
        description: What the environment carries out, as the tool's documentation for the agent.
        shown: Characters of an output that the agent sees; of a longer one, its head and its tail.

    Returns:
        One tool, ``execute(code)``, for ``dspy.ReAct``, ``dspy.CodeAct`` and the like.
    """

    def execute(code: str) -> str:
        return _act(code, shown)

    execute.__doc__ = description or (
        "Carry out code in the environment and return what it printed. State stays between calls."
    )
    return [execute]


class SessionAgent(dspy.Module):
    """A program that lets an agent act in a session of its own at each call, and has the result
    judged.

    A fault of the environment ends the call with
    :class:`~combee_agents.EnvironmentFaultError`, even where the agent
    went on after it: a run then tries again, and scores nothing. An error of the
    agent's is its own, and is scored.

    Args:
        pool: Where sessions come from. Shared by copies of the program.
        signature: What the agent is given and what it is to answer.
        agent: ``"react"`` for ``dspy.ReAct`` with one tool, ``"code"`` for
            :class:`~combee_agents.CodeAgent`, or a function from signature and tools to a module.
        task_field: The example's field that holds the task's id. The agent sees it only where
            the signature has it too.
        max_iters: The most steps of an agent; not for a function.
        description: What the environment carries out, for the agent.

    Raises:
        ArgumentValueError: ``agent`` is none of these.
    """

    def __init__(
        self,
        pool: SessionPool,
        signature: type[dspy.Signature],
        *,
        agent: Style | AgentBuilder = "react",
        task_field: str = "task_id",
        max_iters: int = 20,
        description: str | None = None,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.task_field = task_field
        self._given = frozenset(signature.input_fields)
        tools = session_tools(description)
        if callable(agent):
            self.agent = agent(signature, tools)
        elif agent == "react":
            self.agent = dspy.ReAct(signature, tools=tools, max_iters=max_iters)
        elif agent in get_args(Style):
            self.agent = CodeAgent(signature, tools[0], max_iters=max_iters)
        else:
            remedy = "Give 'react', 'code', or a function from signature and tools to a module."
            raise ArgumentValueError("agent", agent, "names no style of agent", remedy)

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Act on one task.

        Args:
            **inputs: The example's inputs, the task's id among them.

        Returns:
            What the agent answered, with ``evaluation`` (the fields of
            :class:`~combee_agents.Evaluation`) and ``steps`` (``[code, output]`` pairs).

        Raises:
            ArgumentValueError: The inputs hold no task id.
            EnvironmentFaultError: The environment failed.
        """
        task = inputs.get(self.task_field)
        if not isinstance(task, str) or not task:
            remedy = f"Mark {self.task_field!r} as an input of the examples."
            raise ArgumentValueError(self.task_field, task, "is no task id", remedy)
        with self.pool.session(task) as session:
            with in_session(session):
                answered = self.agent(
                    **{name: value for name, value in inputs.items() if name in self._given}
                )
            session.check()
            evaluation = session.evaluate()
            steps = [list(step) for step in session.steps]
        plain = {**asdict(evaluation), "passed": list(evaluation.passed)}
        return dspy.Prediction(**{**dict(answered.items()), "evaluation": plain, "steps": steps})


@dataclass(frozen=True, slots=True)
class SessionMetric:
    """GEPA's metric for a :class:`SessionAgent`: the environment's own verdict.

    Pure, and safe to call from any thread.

    Attributes:
        shown: Characters of the agent's steps that the feedback repeats, so that reflection sees
            the whole attempt and not the one step it was called for; 0 for none.
    """

    shown: int = 4_000

    def __call__(
        self,
        gold: dspy.Example,
        pred: dspy.Prediction,
        trace: Any = None,
        pred_name: str | None = None,
        pred_trace: Any = None,
    ) -> dspy.Prediction:
        """Return ``dspy.Prediction(score, feedback)``; 0 for a prediction that no
        :class:`SessionAgent` made.
        """
        evaluation = pred.get("evaluation")
        if not isinstance(evaluation, dict) or "score" not in evaluation:
            return dspy.Prediction(
                score=0.0,
                feedback="There is no evaluation of a session: no SessionAgent made this.",
            )
        feedback = str(evaluation.get("feedback") or "")
        if self.shown:
            feedback = f"{feedback}\n\nWhat was carried out:\n{self._told(pred.get('steps') or [])}"
        return dspy.Prediction(score=float(evaluation["score"]), feedback=feedback)

    def _told(self, steps: Sequence[Sequence[str]]) -> str:
        if not steps:
            return "(nothing)"
        # Long outputs are cut one by one, so that none of them hides the steps after it.
        each = max(200, self.shown // len(steps) // 2)
        told = [
            f"[{n}] {shorten(code, each)}\n-> {shorten(out, each)}"
            for n, (code, out) in enumerate(steps, 1)
        ]
        return shorten("\n".join(told), self.shown)
