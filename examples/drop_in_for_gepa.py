"""The same script with ``dspy.GEPA`` and with ``Combee``: one name changes.

    python examples/drop_in_for_gepa.py

Both buy the same number of rollouts. A simulated service answers (``pip install
./plugins/simulator``), so nothing is paid, and which of the two scores higher here is no
claim about language models: ``combee bench speed`` is what compares them.
"""

from __future__ import annotations

import logging

import dspy

from combee_dspy import Combee, load_benchmark
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task

logging.getLogger("dspy").setLevel(logging.WARNING)

data = load_benchmark(
    "formula-mini", task="compute", formulas=8, train=40, validation=16, heldout=40
)
train, validation, heldout = (list(split.examples) for split in data.splits)


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    """GEPA's protocol, as it is: Combee takes the same metric."""
    return data.metric(gold, pred)


def heldout_score(program) -> float:
    evaluate = dspy.Evaluate(
        devset=heldout,
        metric=lambda gold, pred: metric(gold, pred).score,
        num_threads=16,
        display_progress=False,
    )
    return evaluate(program).score


def main() -> None:
    with SimulatedService(SimulatedConfig(time_scale=0.0), benchmark_task(data)) as service:
        lm = service.lm()
        with dspy.context(lm=lm):
            print(f"student  held-out {heldout_score(data.program()):.1f} % (simulated)")
            for optimizer in (dspy.GEPA, Combee):
                service.reset_stats()
                # From here on both are the same script.
                teleprompter = optimizer(
                    metric=metric,
                    max_metric_calls=200,
                    reflection_lm=lm,
                    num_threads=16,
                    track_stats=True,
                    seed=0,
                )
                better = teleprompter.compile(data.program(), trainset=train, valset=validation)
                best = max(better.detailed_results.val_aggregate_scores)
                calls = {kind: tally.calls for kind, tally in service.stats().by_kind.items()}
                print(
                    f"{optimizer.__name__:8} held-out {heldout_score(better):.1f} % (simulated),"
                    f" validation {best:.2f}, {calls['task']} task calls, {calls['reflect']}"
                    " reflection calls"
                )


if __name__ == "__main__":
    main()
