"""Compiles that are killed at a chosen commit: run as a program of its own, which forks once for
each.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import dspy

from combee_dspy import Budget, Combee, Search, Task, compile_many
from combee_dspy.journal import _writer
from combee_dspy.traces import Trace
from tests.worlds import gate_metric, gate_rows

CASES: dict[str, dict[str, Any]] = {
    "pareto": {"operators": ["insert", "few-shot-swap"]},
    "stale": {"search": Search(staleness=2), "operators": ["insert", "rewrite"]},
    "trunk": {"search": Search(keep="trunk", staleness=1)},
    "proven": {
        "search": Search(keep="trunk", staleness=1),
        "aggregator": "reference-scan",
        "budget": Budget(rollouts=110),
    },
    "playbook": {"artifact": "playbook", "search": Search(staleness=1)},
    "traces": {"aggregator": "reference-scan", "search": Search(keep="trunk", staleness=1)},
    "calls": {"budget": Budget(calls=60)},
}
WORKERS = 4


def gate_traces(start: int, end: int) -> list[Trace]:
    """Return what a program that knew nothing had answered."""
    return [
        Trace(
            f"gate {number}",
            {"question": row.question},
            {"answer": "nobody"},
            expected={"answer": row.answer},
        )
        for number, row in enumerate(gate_rows(start, end))
    ]


def compiled(case: str, folder: str, api_base: str, **more: Any) -> Any:
    """Compile one case against the simulated service."""
    lm = dspy.LM(
        "openai/simulated", api_base=api_base, api_key="simulated", cache=False, temperature=0.0
    )
    combee = Combee(
        gate_metric,
        reflection_lm=lm,
        reflection_minibatch_size=6,
        num_threads=WORKERS,
        tracker=(),
        log_dir=folder,
        seed=1,
        **{"budget": Budget(epochs=1), **CASES[case], **more},
    )
    with dspy.context(lm=lm):
        return combee.compile(
            dspy.Predict("question -> answer"),
            trainset=None if case == "traces" else gate_rows(0, 18),
            traces=gate_traces(0, 18) if case == "traces" else None,
            valset=gate_rows(20, 26),
            heldout=gate_rows(30, 36),
        )


def compiled_many(folder: str, api_base: str) -> Any:
    """Compile three tasks into one journal."""
    lm = dspy.LM(
        "openai/simulated", api_base=api_base, api_key="simulated", cache=False, temperature=0.0
    )
    combee = Combee(
        gate_metric,
        reflection_lm=lm,
        reflection_minibatch_size=6,
        num_threads=WORKERS,
        tracker=(),
        log_dir=folder,
        seed=1,
        budget=Budget(epochs=1),
    )
    tasks = [
        Task(
            name,
            dspy.Predict("question -> answer"),
            gate_rows(start, start + 12),
            gate_rows(80, 84),
        )
        for name, start in (("one", 0), ("two", 20), ("three", 40))
    ]
    with dspy.context(lm=lm):
        return compile_many(tasks, combee=combee)


def die_at(limit: int, *, before: bool) -> None:
    """Kill this process when so many effects are on disk, or in the middle of their commit."""
    written, kept = _writer.Writer._transact, 0

    def armed(statements: Any) -> Any:
        yield from statements
        if kept >= limit and before:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(self: Any, connection: Any, statements: Any) -> None:
        nonlocal kept
        kept += sum("INTO effect" in sql for sql, _ in statements)
        written(self, connection, armed(statements))
        if kept >= limit:
            os.kill(os.getpid(), signal.SIGKILL)

    _writer.Writer._transact = counted  # type: ignore[method-assign,assignment]  # the point of it


def main(case: str, folder: str, api_base: str, *limits: str) -> None:
    """Compile once for each limit, in a folder of its own, and die there."""
    for limit in limits:
        child = os.fork()
        if not child:
            die_at(int(limit), before=int(limit) % 2 == 0)
            if case == "many":
                compiled_many(f"{folder}/{limit}", api_base)
            else:
                compiled(case, f"{folder}/{limit}", api_base)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(f"the compile that was to die at {limit} ended with status {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
