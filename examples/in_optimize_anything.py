"""Keep ``gepa.optimize_anything``, and let an aggregator read its minibatches.

    python examples/in_optimize_anything.py

Whatever text is optimized, each evaluation says what went wrong (``side_info``), and
``CombeeReflection`` turns many of those into lessons at once. Give it a larger minibatch: with the
default of 3 there is nothing to divide. A simulated service answers (``pip install
./plugins/simulator``), so nothing is paid, and the scores are no claim about language models.
"""

from __future__ import annotations

import logging

import dspy
from gepa.optimize_anything import (
    EngineConfig,
    GEPAConfig,
    ReflectionConfig,
    TrackingConfig,
    optimize_anything,
)

from combee_dspy import CombeeReflection, load_benchmark
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task

logging.getLogger("dspy").setLevel(logging.WARNING)

data = load_benchmark(
    "formula-mini", task="compute", formulas=8, train=40, validation=16, heldout=40
)
train, validation, heldout = (list(split.examples) for split in data.splits)


class Quiet:
    """gepa prints each iteration unless it gets a logger of one's own."""

    def log(self, message: str) -> None:
        pass


def main() -> None:
    with SimulatedService(SimulatedConfig(time_scale=0.0), benchmark_task(data)) as service:
        lm = service.lm()

        def evaluate(candidate, example):
            program = dspy.Predict(dspy.Signature("question -> answer", candidate))
            prediction = program(question=example.question, lm=lm)
            judged = data.metric(example, prediction)
            said = {
                "Inputs": example.question,
                "Generated Outputs": prediction.answer,
                "Feedback": judged.feedback,
            }
            return judged.score, said

        found = optimize_anything(
            "Answer with a number.",
            evaluator=evaluate,
            dataset=train,
            valset=validation,
            config=GEPAConfig(
                engine=EngineConfig(max_metric_calls=200),
                reflection=ReflectionConfig(
                    reflection_strategy=CombeeReflection(lm, aggregator="parallel-scan"),
                    reflection_lm=None,
                    reflection_minibatch_size=16,
                ),
                tracking=TrackingConfig(logger=Quiet()),
            ),
        )
    scores = found.val_aggregate_scores
    print(
        f"optimize_anything with CombeeReflection: validation {scores[0]:.2f} -> {max(scores):.2f}"
        " (simulated)"
    )
    print(found.best_candidate)


if __name__ == "__main__":
    main()
