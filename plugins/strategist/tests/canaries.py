"""A registry on SQLite, a run with a held-out receipt, and servers whose two versions answer as a
test says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Combee, Validation
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat
from combee_strategist.canary import CanaryPlan, CanaryProgram, Registry, Serving, publish

LESSON = "State the unit."
PROGRAM = dspy.Predict("question -> answer")
# Terms that a test can meet: few pairs, no time to wait.
QUICK = CanaryPlan(epsilon=0.2, pairs=20, hours=0, window=20)


def metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> float:
    return float(pred.answer == gold.get("label", "right"))


def lm_for(
    challenger: Callable[[], str], incumbent: Callable[[], str] = lambda: "wrong"
) -> ScriptedLM:
    """Return an LM that answers by one of two functions: does the prompt show what the run has
    learned?
    """

    def answer(request: ScriptedRequest) -> str:
        return as_chat({"answer": (challenger if LESSON in request.text else incumbent)()})

    return ScriptedLM(answer, cache=False)


def compiled(folder: Path, heldout: bool) -> Path:
    def answer(request: ScriptedRequest) -> str:
        if "lessons" in request.system:
            return as_chat({"lessons": f'["{LESSON}"]', "reasoning": "because"})
        return as_chat({"answer": "right" if LESSON in request.text else "wrong"})

    def told(*given: Any) -> dspy.Prediction:
        return dspy.Prediction(score=metric(*given), feedback="Name the unit.")

    rows = [
        dspy.Example(question=f"How long, number {n}?", unit="m").with_inputs("question")
        for n in range(15)
    ]
    lm = ScriptedLM(answer)
    combee = Combee(
        told,
        reflection_lm=lm,
        max_metric_calls=40,
        reflection_minibatch_size=4,
        num_threads=2,
        tracker=(),
        validation=Validation(probe=False),
        log_dir=folder,
    )
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        combee.compile(
            PROGRAM, trainset=rows[:6], valset=rows[6:10], heldout=rows[10:] if heldout else None
        )
    return folder


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log_dir of a run that learned something and read its held-out set."""
    return compiled(tmp_path_factory.mktemp("learned") / "run", heldout=True)


_names = itertools.count()


@pytest.fixture
def published(mlflow_store: str, learned: Path) -> Callable[..., Registry]:
    """Publish the run under a name of its own."""

    def make(plan: CanaryPlan = QUICK) -> Registry:
        name = f"qa{next(_names)}"
        publish(learned, name, plan, uri=mlflow_store, who="ada", why="for a test")
        return Registry(name, mlflow_store)

    return make


@pytest.fixture
def server(mlflow_store: str, tmp_path: Path) -> Iterator[Callable[..., CanaryProgram]]:
    """Make servers, which are closed at the end; they look at the registry when a test says
    ``refresh()``.
    """
    made: list[CanaryProgram] = []

    def make(registry: Registry, *, judged: bool = True, **given: Any) -> CanaryProgram:
        serving = {
            "shadow": 1.0,
            "ttl": 3600.0,
            "timeout": 10.0,
            "queue": 1000,
            **given.pop("serving", {}),
        }
        scorer = {"judge": metric} if judged else {"metric": metric}
        given = {"log_dir": tmp_path / "serving", "uri": mlflow_store, **scorer, **given}
        made.append(CanaryProgram(registry.name, PROGRAM, serving=Serving(**serving), **given))
        return made[-1]

    yield make
    for one in made:
        if not one._closed.is_set():
            one.close(0.05)


def ask(program: CanaryProgram, count: int, start: int = 0) -> list[str]:
    return [
        program(question=f"How long is {n}?", request_id=f"r{n}").answer
        for n in range(start, start + count)
    ]
