"""Rollouts a second that one process sustains, and their CPU, where a service answers at once.

No waiting hides here what a client costs: every row asks the same service, in a
process of its own, and is itself measured in a fresh process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import dspy

from combee_bench.options import Count, Names
from combee_bench.surroundings import in_own_process, own_module, peak_mib, quietly
from combee_dspy import Budget, Combee, Validation
from combee_dspy.exceptions import ArgumentValueError, ServiceError
from combee_dspy.lms import pooled
from combee_dspy.rollouts import Asyncio, Executor, Fixed, RolloutJob, Slots, Threads, patient
from combee_dspy.strategies import parameters

ANSWER = "42"
"""What every question is answered with."""

_MODEL = "instant"  # which no price table knows, as with any self-hosted model
_HOST = "127.0.0.1"
_CHAT = f"[[ ## answer ## ]]\n{ANSWER}\n\n[[ ## completed ## ]]\n"
_BASELINE = "evaluate-plain"
# Rollouts of one call: as many as a large validation set.
_BATCH = 1_000


@parameters
class ClientOptions:
    """Rollouts a second that one process sustains, and their CPU, where a service answers at once.

    Args:
        rows: What is measured, by comma.
        rollouts: Rollouts of one measurement, of one call each.
        workers: Rollouts at once.
        times: Measurements of each row; the median counts.
    """

    rows: Names = (
        "evaluate-plain",
        "evaluate-pooled",
        "threads-plain",
        "threads-pooled",
        "asyncio-pooled",
        "compile-pooled",
    )
    rollouts: Count = 2_000
    workers: Count = 64
    times: Count = 3


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One row: the median of its measurements, by rollouts a second.

    Attributes:
        name: The row's name.
        rate: Rollouts a second.
        cpu_ms: CPU milliseconds a rollout, all threads of the process together.
        lowest: The lowest rate measured.
        highest: The highest.
        peak_mib: The most memory that the process held.
    """

    name: str
    rate: float
    cpu_ms: float
    lowest: float
    highest: float
    peak_mib: float


def run(options: ClientOptions) -> Iterator[ClientRow]:
    """Measure row by row.

    Raises:
        ArgumentValueError: A row is not known.
        ServiceError: The service, or a measurement, did not run.
    """
    for name in options.rows:
        if name not in ROWS:
            raise ArgumentValueError("rows", name, "is no row", f"Give some of {', '.join(ROWS)}.")
    return _rows(options)


def _rows(options: ClientOptions) -> Iterator[ClientRow]:
    with instant_service() as api_base:
        for name in options.rows:
            arguments = (name, api_base, str(options.rollouts), str(options.workers))
            figures = [in_own_process(__name__, *arguments) for _ in range(options.times)]
            figures.sort(key=lambda row: row["rate"])
            middle = figures[(len(figures) - 1) // 2]
            yield ClientRow(name, lowest=figures[0]["rate"], highest=figures[-1]["rate"], **middle)


@contextmanager
def instant_service(seconds: float = 0.0) -> Iterator[str]:
    """Run the service in a process of its own, which ends with this one, and give its ``api_base``.

    Args:
        seconds: What it takes for a call.

    Raises:
        ServiceError: The process did not start.
    """
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(**own_module(__name__, str(seconds)), **pipes) as process:
        try:
            port = process.stdout.readline().strip() if process.stdout else ""
            if not port.isdigit():
                raise ServiceError("the service that the client is measured against did not start")
            yield f"http://{_HOST}:{port}/v1"
        finally:
            if process.stdin:
                process.stdin.close()


async def _serve(seconds: float) -> None:
    from aiohttp import web

    usage = {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": _CHAT},
        "finish_reason": "stop",
    }
    answer = {"id": _MODEL, "object": "chat.completion", "created": 0, "model": _MODEL}
    body = json.dumps({**answer, "choices": [choice], "usage": usage}).encode()

    async def respond(request: web.BaseRequest) -> web.Response:
        await request.read()
        await asyncio.sleep(seconds)
        return web.Response(body=body, content_type="application/json")

    runner = web.ServerRunner(web.Server(respond))
    await runner.setup()
    await web.TCPSite(runner, _HOST, 0, backlog=2048).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    # Ends when the parent does, however that ends: its end of the pipe is then closed.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


Batch = Callable[[Sequence[dspy.Example]], list[float]]


def _metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> float:
    return float(pred.answer == gold.answer)


def service_lm(api_base: str, kind: str = "pooled") -> dspy.LM:
    """Return an LM of the service, by the pooled client or DSPy's own (``plain``)."""
    # No cache: a call that is not made cannot be measured.
    where: dict[str, Any] = {"api_base": api_base, "api_key": "instant-service-key", "cache": False}
    return (
        pooled(f"openai/{_MODEL}", **where)
        if kind == "pooled"
        else dspy.LM(f"openai/{_MODEL}", **where)
    )


@contextmanager
def _evaluate(api_base: str, workers: int, kind: str) -> Iterator[Batch]:
    """``dspy.Evaluate``, as a user calls it."""
    program = dspy.Predict("question -> answer")

    def run(batch: Sequence[dspy.Example]) -> list[float]:
        evaluate = dspy.Evaluate(
            devset=list(batch), metric=_metric, num_threads=workers, display_progress=False
        )
        return [score for _, _, score in evaluate(program).results]

    with dspy.context(lm=service_lm(api_base, kind)):
        yield run


@contextmanager
def _slots(api_base: str, workers: int, kind: str, executor: Executor) -> Iterator[Batch]:
    """A search's slots over one executor; nothing is kept."""
    program = dspy.Predict("question -> answer")
    # The runner keeps the context that it was made in.
    with dspy.context(lm=patient(service_lm(api_base, kind))), asyncio.Runner() as runner:
        slots = Slots(executor.start(workers), Fixed(workers))

        async def bought(batch: Sequence[dspy.Example]) -> list[float]:
            jobs = [
                RolloutJob(program, example, str(number), _metric)
                for number, example in enumerate(batch)
            ]
            rollouts = await asyncio.gather(*(slots.rollout(job, (0,)) for job in jobs))
            calls = sum(row.calls for rollout in rollouts for row in rollout.usage)
            if calls != len(batch):
                raise ServiceError(f"{len(batch)} calls were made and {calls} are in the books")
            return [rollout.score for rollout in rollouts]

        yield lambda batch: runner.run(bought(batch))
        runner.run(slots.close())


@contextmanager
def _compile(api_base: str, workers: int, kind: str) -> Iterator[Batch]:
    """A compile that validates a student: journal, books, memo and all."""
    lm, probe = service_lm(api_base, kind), Validation(probe=False)
    settings: dict[str, Any] = {"num_threads": workers, "validation": probe, "tracker": ()}
    optimizer = Combee(_metric, budget=Budget(updates=1), reflection_lm=lm, **settings)

    def run(batch: Sequence[dspy.Example]) -> list[float]:
        student = dspy.Predict("question -> answer")
        program: Any = optimizer.compile(student, trainset=list(batch[:3]), valset=list(batch))
        return [program.combee_report.best_score] * len(batch)

    with dspy.context(lm=lm):
        yield run


ROWS: dict[str, Callable[[str, int], AbstractContextManager[Batch]]] = {
    "evaluate-plain": partial(_evaluate, kind="plain"),
    "evaluate-pooled": partial(_evaluate, kind="pooled"),
    "threads-plain": partial(_slots, kind="plain", executor=Threads()),
    "threads-pooled": partial(_slots, kind="pooled", executor=Threads()),
    "asyncio-pooled": partial(_slots, kind="pooled", executor=Asyncio()),
    "compile-pooled": partial(_compile, kind="pooled"),
}
"""What is measured, by name, with ``dspy.LM`` or the pooled client: each makes a context that runs
a batch.
"""


def measure(name: str, api_base: str, rollouts: int, workers: int) -> dict[str, float]:
    """Run so many rollouts and measure them, after one warm-up of a rollout a worker.

    Returns:
        ``rate``, ``cpu_ms`` and ``peak_mib`` of a :class:`ClientRow`.

    Raises:
        ServiceError: A score is not 1, or the books do not hold every call.
    """
    # The same rows again and again, as in a run.
    count = max(workers, min(_BATCH, rollouts))
    rows = [
        dspy.Example(question=f"What is {n} + {n}?", answer=ANSWER).with_inputs("question")
        for n in range(count)
    ]
    with quietly(), ROWS[name](api_base, workers) as run:
        run(rows[:workers])
        done, seconds, cpu_seconds = 0, -time.perf_counter(), -time.process_time()
        while done < rollouts:
            batch = rows[: min(_BATCH, rollouts - done)]
            scores = run(batch)
            if len(scores) != len(batch) or set(scores) != {1.0}:
                raise ServiceError(
                    f"{len(scores)} scores, the lowest {min(scores, default=0)}: 1 was expected"
                )
            done += len(batch)
        seconds, cpu_seconds = seconds + time.perf_counter(), cpu_seconds + time.process_time()
    return {
        "rate": rollouts / seconds,
        "cpu_ms": 1000 * cpu_seconds / rollouts,
        "peak_mib": peak_mib(),
    }


if __name__ == "__main__":
    if len(sys.argv) == 2:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(float(sys.argv[1])))
    else:
        sys.stdout.write(
            json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))) + "\n"
        )
