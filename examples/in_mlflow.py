"""An agent without DSPy learns its prompt: ``mlflow.genai.optimize_prompts`` with
``CombeePromptOptimizer``.

    python examples/in_mlflow.py

The agent below calls an OpenAI-compatible service by itself and reads its prompt from MLflow's
registry. Needs ``pip install 'combee-dspy[mlflow]'``. A simulated service answers (``pip install
combee-simulator``), so nothing is paid, and the scores are no claim about language models.
"""

from __future__ import annotations

import json
import logging
import tempfile
import urllib.request
from pathlib import Path

import mlflow
from mlflow.genai.scorers import scorer

from combee_dspy import CombeePromptOptimizer, load_benchmark
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task

logging.getLogger("mlflow").setLevel(logging.WARNING)

data = load_benchmark("formula-mini", task="compute", formulas=4, train=32, validation=1, heldout=1)
rows = [
    {"inputs": {"question": row.question}, "expectations": {"expected_response": row.answer}}
    for row in data.train.examples
]


@scorer
def right(outputs, expectations):
    return float(outputs.strip() == expectations["expected_response"])


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        SimulatedService(SimulatedConfig(time_scale=0.0), benchmark_task(data)) as service,
    ):
        mlflow.set_tracking_uri(f"sqlite:///{Path(folder) / 'mlflow.db'}")
        mlflow.create_experiment(
            "formulas", artifact_location=(Path(folder) / "artifacts").as_uri()
        )
        mlflow.set_experiment("formulas")
        messages = [
            {"role": "system", "content": "Answer with a number."},
            {"role": "user", "content": "{{question}}"},
        ]
        prompt = mlflow.genai.register_prompt(name="formula", template=messages)

        def agent(question):
            body = {"model": "simulated", "messages": prompt.format(question=question)}
            where = f"{service.api_base}/chat/completions"
            request = urllib.request.Request(  # noqa: S310 - a service on this machine
                where, json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as answer:  # noqa: S310 - the same
                return json.load(answer)["choices"][0]["message"]["content"]

        found = mlflow.genai.optimize_prompts(
            predict_fn=agent,
            train_data=rows,
            prompt_uris=[prompt.uri],
            optimizer=CombeePromptOptimizer(service.lm(), max_metric_calls=60, minibatch_size=16),
            scorers=[right],
        )
        (learned,) = found.optimized_prompts
        scores = f"{found.initial_eval_score:.2f} -> {found.final_eval_score:.2f}"
        print(f"MLflow, version {learned.version} of the prompt: {scores} (simulated)")
        print(learned.template[0]["content"])


if __name__ == "__main__":
    main()
