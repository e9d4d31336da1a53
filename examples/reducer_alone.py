"""Keep ``dspy.GEPA`` or ``gepa.optimize``, and replace only the call that reads the minibatch.

    python examples/reducer_alone.py

``CombeeProposer`` and ``CombeeReflection`` read a minibatch by an aggregator.
Give the optimizer a larger minibatch with them: with the default of 3 there is
nothing to divide. A simulated service answers (``pip install ./plugins/simulator``), so
nothing is paid, and the scores are no claim about language models.
"""

from __future__ import annotations

import logging

import dspy
import gepa
from gepa import EvaluationBatch

from combee_dspy import CombeeProposer, CombeeReflection, load_benchmark
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task

logging.getLogger("dspy").setLevel(logging.WARNING)

data = load_benchmark(
    "formula-mini", task="compute", formulas=8, train=40, validation=16, heldout=40
)
train, validation, heldout = (list(split.examples) for split in data.splits)


def in_dspy_gepa(lm: dspy.LM) -> None:
    """An instruction proposer for ``dspy.GEPA``."""
    optimizer = dspy.GEPA(
        data.metric,
        max_metric_calls=200,
        reflection_lm=lm,
        reflection_minibatch_size=16,
        instruction_proposer=CombeeProposer(),
        num_threads=16,
        track_stats=True,
    )
    found = optimizer.compile(data.program(), trainset=train, valset=validation).detailed_results
    scores = found.val_aggregate_scores
    print(
        f"dspy.GEPA with CombeeProposer: validation {scores[0]:.2f} -> {max(scores):.2f}"
        " (simulated)"
    )


class OnePrompt:
    """A plain gepa adapter, without DSPy programs: one text, one call an example."""

    propose_new_texts = None

    def __init__(self, lm: dspy.LM) -> None:
        self.lm = lm

    def evaluate(self, batch, candidate, capture_traces=False):
        program = dspy.Predict(dspy.Signature("question -> answer", candidate["prompt"]))
        program.lm = self.lm
        predictions = program.batch(
            [dspy.Example(question=row.question).with_inputs("question") for row in batch],
            num_threads=16,
            disable_progress_bar=True,
        )
        judged = [
            data.metric(row, prediction) for row, prediction in zip(batch, predictions, strict=True)
        ]
        return EvaluationBatch(
            outputs=[prediction.answer for prediction in predictions],
            scores=[one.score for one in judged],
            trajectories=[
                (row, prediction, one.feedback)
                for row, prediction, one in zip(batch, predictions, judged, strict=True)
            ],
        )

    def make_reflective_dataset(self, candidate, eval_batch, components_to_update):
        records = [
            {
                "Inputs": {"question": row.question},
                "Generated Outputs": {"answer": prediction.answer},
                "Feedback": feedback,
            }
            for row, prediction, feedback in eval_batch.trajectories
        ]
        return dict.fromkeys(components_to_update, records)


def in_gepa_optimize(lm: dspy.LM) -> None:
    """A reflection strategy for ``gepa.optimize``."""
    result = gepa.optimize(
        seed_candidate={"prompt": "Answer with a number."},
        trainset=train,
        valset=validation,
        adapter=OnePrompt(lm),
        reflection_strategy=CombeeReflection(lm),
        reflection_minibatch_size=16,
        max_metric_calls=200,
        display_progress_bar=False,
        logger=Quiet(),
    )
    scores = result.val_aggregate_scores
    print(
        f"gepa.optimize with CombeeReflection: validation {scores[0]:.2f} -> {max(scores):.2f}"
        " (simulated)"
    )
    print(result.best_candidate["prompt"])


class Quiet:
    """gepa prints each iteration unless it gets a logger of one's own."""

    def log(self, message: str) -> None:
        pass


def main() -> None:
    with SimulatedService(SimulatedConfig(time_scale=0.0), benchmark_task(data)) as service:
        lm = service.lm()
        with dspy.context(lm=lm):
            in_dspy_gepa(lm)
            in_gepa_optimize(lm)


if __name__ == "__main__":
    main()
