"""What ``combee bench client`` measures, each in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
from dspy.lm15 import request_from_openai_chat

from combee_dspy.bench.client_service import ANSWER, MODEL
from combee_dspy.bench.quiet import quietly
from combee_dspy.costs import Ledger, LedgerRecorder, PriceTable
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.exceptions import ServiceError
from combee_dspy.lms import metadata_once, pooled
from combee_dspy.lms.pool import PooledEngine, PooledOptions
from combee_dspy.rollouts import Asyncio, Executor, Threads, patient, rarely_collected

__all__ = ["ROWS", "Measured", "WrongAnswersError", "main"]

_KEY = "instant-service-key"
_NAME = f"openai/{MODEL}"

# Rollouts of one call: as many as a large validation set.
_BATCH = 1_000

_SAMPLES = 20


class WrongAnswersError(ServiceError):
    """What was measured is not what was asked for: an answer is wrong, or the books are."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement.

    Attributes:
        rollouts: How many.
        seconds: Wall-clock seconds.
        cpu_seconds: CPU seconds of the process, all its threads together; the service's are not among them.
        memory: Pairs of rollouts done and bytes resident then.
    """

    rollouts: int
    seconds: float
    cpu_seconds: float
    memory: tuple[tuple[int, int], ...] = ()

    @property
    def rate(self) -> float:
        """Rollouts a second."""
        return self.rollouts / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds a rollout."""
        return 1000 * self.cpu_seconds / self.rollouts


Batch = Callable[[Sequence[dspy.Example]], Any]


def _metric(gold: dspy.Example, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
    return float(pred.answer == gold.answer)


def _program() -> dspy.Module:
    return dspy.Predict("question -> answer")


def _lm(api_base: str, kind: str) -> dspy.LM:
    # No cache: a call that is not made cannot be measured.
    make = pooled if kind == "pooled" else dspy.LM
    return make(_NAME, api_base=api_base, api_key=_KEY, cache=False)


@contextmanager
def _raw(api_base: str, workers: int) -> Iterator[Batch]:
    """The pooled client alone: a request of two messages, no DSPy around it."""
    engine = PooledEngine(PooledOptions(api_base=api_base), _KEY)
    messages = [{"role": "system", "content": "s" * 600}, {"role": "user", "content": "u" * 200}]
    request = request_from_openai_chat({"model": MODEL, "messages": messages})

    def one(_: object) -> float:
        return float(ANSWER in (engine.complete(request).message.text or ""))

    with ThreadPoolExecutor(workers) as pool:
        yield lambda batch: list(pool.map(one, batch))
    engine.close()


@contextmanager
def _evaluate(api_base: str, workers: int, kind: str) -> Iterator[Batch]:
    """``dspy.Evaluate``, as a user calls it."""
    program = _program()

    def run(batch: Sequence[dspy.Example]) -> list[float]:
        evaluate = dspy.Evaluate(devset=list(batch), metric=_metric, num_threads=workers, display_progress=False)
        return [score for _, _, score in evaluate(program).results]

    with dspy.context(lm=_lm(api_base, kind)):
        yield run


@contextmanager
def _combee(api_base: str, workers: int, kind: str, executor: Executor) -> Iterator[Batch]:
    """A run's evaluator over one executor, with its ledger, as a run has them; nothing is remembered."""
    ledger = Ledger(PriceTable({}))
    done = 0
    with ExitStack() as stack:
        session = executor.start(workers)
        stack.callback(session.close)
        stack.enter_context(metadata_once())
        stack.enter_context(rarely_collected())
        stack.enter_context(dspy.context(lm=patient(_lm(api_base, kind))))
        stack.enter_context(LedgerRecorder(ledger).installed())
        evaluator = Evaluator(
            lambda candidate: _program(),
            _metric,
            0.0,
            session,
            lambda event: None,
            # Rollouts that are kept so that they are not bought twice would be taken for a leak.
            memoize=False,
            keep_traces=frozenset(),
        )

        def run(batch: Sequence[dspy.Example]) -> list[float]:
            nonlocal done
            (found,) = evaluator.evaluate([({"self": "Answer."}, batch)], purpose="validation", iteration=0)
            done += len(batch)
            if ledger.snapshot().total.calls != done:
                raise WrongAnswersError(f"{done} calls were made and {ledger.snapshot().total.calls} are in the books")
            return [rollout.score for rollout in found.rollouts]

        yield run


ROWS: dict[str, Callable[[str, int], Any]] = {
    "client": _raw,
    "evaluate-plain": lambda base, workers: _evaluate(base, workers, "plain"),
    "evaluate-pooled": lambda base, workers: _evaluate(base, workers, "pooled"),
    "threads-plain": lambda base, workers: _combee(base, workers, "plain", Threads()),
    "threads-pooled": lambda base, workers: _combee(base, workers, "pooled", Threads()),
    "asyncio-pooled": lambda base, workers: _combee(base, workers, "pooled", Asyncio()),
}
"""What is measured, by name: each makes a context in which a batch of examples can be run."""


def measure(name: str, api_base: str, rollouts: int, workers: int) -> Measured:
    """Run so many rollouts and measure them, after one warm-up of a rollout a worker.

    Raises:
        WrongAnswersError: A score is not 1, or the books do not hold every call.
    """
    # The same rows again and again, as in a run.
    rows = _examples(max(workers, min(_BATCH, rollouts)))
    with quietly(), ROWS[name](api_base, workers) as run:
        run(rows[:workers])
        memory = [(0, _resident())]
        done, sampled = 0, max(1, rollouts // _SAMPLES)
        seconds, cpu_seconds = -time.perf_counter(), -time.process_time()
        while done < rollouts:
            batch = rows[: min(_BATCH, rollouts - done)]
            scores = run(batch)
            if len(scores) != len(batch) or set(scores) != {1.0}:
                raise WrongAnswersError(f"{len(scores)} scores, the lowest {min(scores, default=0)}: 1 was expected")
            done += len(batch)
            if done - memory[-1][0] >= sampled:
                memory.append((done, _resident()))
        seconds += time.perf_counter()
        cpu_seconds += time.process_time()
    return Measured(rollouts, seconds, cpu_seconds, tuple(memory))


def _examples(count: int) -> list[dspy.Example]:
    return [dspy.Example(question=f"What is {n} + {n}?", answer=ANSWER).with_inputs("question") for n in range(count)]


def _resident() -> int:
    """Return the bytes that this process holds in memory now; where the system does not tell, the most it held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one row and print it as JSON: ``NAME API_BASE ROLLOUTS WORKERS``."""
    name, api_base, rollouts, workers = argv if argv is not None else sys.argv[1:]
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    found = measure(name, api_base, int(rollouts), int(workers))
    sys.stdout.write(
        json.dumps([found.rollouts, found.seconds, found.cpu_seconds, [list(sample) for sample in found.memory]]) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
