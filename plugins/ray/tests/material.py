"""Programs and metrics of the tests: in a module that workers can import."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import dspy
from combee_dspy import load_benchmark
from combee_dspy.rollouts import InfrastructureFaultError


def benchmark():
    return load_benchmark("formula-mini", task="compute", train=24, validation=12, heldout=12, seed=1)


class Once(dspy.Module):
    """Kills its own process at the first attempt at each marked row."""

    def __init__(self, inner: dspy.Module, folder: str, marked: tuple[str, ...]) -> None:
        super().__init__()
        self.inner = inner
        self.folder = folder
        self.marked = marked

    def forward(self, **inputs):
        answer = self.inner(**inputs)
        question = inputs["question"]
        if question in self.marked:
            place = Path(self.folder) / str(self.marked.index(question))
            if not place.exists():
                place.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
        return answer


class Killer(dspy.Module):
    """Kills every worker that runs it."""

    def forward(self, **inputs):
        os.kill(os.getpid(), signal.SIGKILL)


class Locked(dspy.Module):
    """Holds what no other process can have."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self.lock = threading.Lock()

    def forward(self, question):
        return self.answer(question=question)


class Leaking(dspy.Module):
    """Answers with what no other process can have."""

    def forward(self, question):
        return dspy.Prediction(answer=threading.Lock())


class Outage(dspy.Module):
    def forward(self, question):
        raise InfrastructureFaultError("the environment is gone", retryable=False)


class Where(dspy.Module):
    """Says in which process it ran."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, question):
        time.sleep(self.seconds)
        return dspy.Prediction(answer=str(os.getpid()), lm=getattr(dspy.settings.lm, "model", ""))


def always(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return 1.0


def judged(gold, pred, trace=None, pred_name=None, pred_trace=None):
    """A metric with an LM call of its own."""
    dspy.Predict("question, answer -> verdict")(question=gold.question, answer=str(pred.answer))
    return dspy.Prediction(score=0.5, feedback="judged")


class Threshold:
    """A metric with state."""

    def __init__(self) -> None:
        self.score = 0.0

    def __call__(self, gold, pred, trace=None, pred_name=None, pred_trace=None):
        return self.score
