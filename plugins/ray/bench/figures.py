"""What Ray workers bring at zero latency, and what a killed one costs.

    python bench/figures.py [--rollouts 400] [--actors 2]

The LM answers at once inside the process, so that only the client's own work is
measured: DSPy's in the first load, DSPy's and 20 ms of Python a rollout in the second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import time

import dspy
import ray
from combee_dspy.costs import Tariff, totals
from combee_dspy.hashing import row_hash
from combee_dspy.rollouts import RolloutJob, Threads
from dspy.lm15 import Message, Response, TextPart, Usage

from combee_ray import Ray


class Instant:
    """An engine that answers at once."""

    def complete(self, request):
        text = "[[ ## answer ## ]]\n4\n\n[[ ## completed ## ]]"
        usage = Usage(input_tokens=100, output_tokens=10, total_tokens=110)
        message = Message.assistant([TextPart(text)])
        return Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)


class Thinking(dspy.Module):
    """Computes before it asks."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question):
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return self.answer(question=question)


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return float(pred.answer == gold.answer)


async def measured(executor, program, examples, workers, kill_at):
    session = executor.start(workers)
    slots = asyncio.Semaphore(workers)
    tariff, begun = Tariff(), 0

    async def one(example):
        nonlocal begun
        async with slots:
            begun += 1
            if begun == kill_at:
                os.kill(session.actors.pids()[0], signal.SIGKILL)
            return await session.rollout(RolloutJob(program, example, row_hash(example), metric, tariff=tariff))

    try:
        # Workers are up and hold the program before the clock starts.
        kill_at, wanted = None, kill_at
        await asyncio.gather(*map(one, examples[: 4 * workers]))
        kill_at = None if wanted is None else begun + wanted
        started, spent = time.perf_counter(), time.process_time()
        rollouts = await asyncio.gather(*map(one, examples))
        seconds, cpu = time.perf_counter() - started, time.process_time() - spent
    finally:
        await session.close()
    assert all(rollout.score == 1.0 for rollout in rollouts)
    calls = totals(usage for rollout in rollouts for usage in rollout.usage).total.calls
    return seconds, cpu, calls, getattr(session, "repeated", 0)


def measure(executor, program, examples, workers, kill_at=None):
    """Return seconds, this process's CPU seconds, calls in the books, and how many rollouts were
    begun again.
    """
    return asyncio.run(measured(executor, program, examples, workers, kill_at))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=400)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=16)
    given = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray starts its workers at niceness 15: beside other load they would be measured waiting.
    os.environ["RAY_worker_niceness"] = "0"
    ray.init(
        address="local",
        num_cpus=given.actors,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="WARNING",
    )
    examples = [
        dspy.Example(question=f"What is 2 + 2, number {n}?", answer="4").with_inputs("question")
        for n in range(given.rollouts)
    ]
    executors = {
        "one process, threads": Threads(),
        f"Ray, {given.actors} workers": Ray(actors=given.actors),
    }
    with dspy.context(lm=dspy.LM("instant/double", engine=Instant(), cache=False)):
        for load, seconds in (("no work", 0.0), ("20 ms of Python", 0.02)):
            rates = {name: [] for name in executors}
            costs = {name: [] for name in executors}
            for _ in range(given.repeats):
                for name, executor in executors.items():
                    taken, cpu, calls, _ = measure(executor, Thinking(seconds), examples, given.workers)
                    assert calls == len(examples)
                    rates[name].append(len(examples) / taken)
                    costs[name].append(1000 * cpu / len(examples))
            for name, found in rates.items():
                spread = f"{min(found):.0f} to {max(found):.0f}"
                here = f"{statistics.median(costs[name]):.1f} CPU ms a rollout in this process"
                print(
                    f"{load}: {name}: {statistics.median(found):.0f} rollouts/s ({spread}), {here}",
                    flush=True,
                )
        taken, _, calls, again = measure(
            Ray(actors=given.actors),
            Thinking(0.02),
            examples,
            given.workers,
            kill_at=len(examples) // 3,
        )
        print(f"20 ms of Python, one worker killed after a third: {len(examples) / taken:.0f} rollouts/s")
        print(f"{again} begun again; {calls} calls in the books for {len(examples)} rollouts")
    ray.shutdown()


if __name__ == "__main__":
    main()
