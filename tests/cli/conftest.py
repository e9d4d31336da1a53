from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import dspy
import pytest

from combee_dspy import Combee, Validation
from combee_dspy.cli import main
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat
from tests.cli.spoiled import files  # noqa: F401 - a fixture

Shell = Callable[..., tuple[int, str, str]]

HOSTILE = "<b>x</b> \x1b[2J\u202e [bold]x[/bold]"
KEY = "sk-" + "commandline0123456789abcdef"


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """Run ``combee`` in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        # What another test wrote under the same name is another module.
        for name in set(sys.modules) - modules:
            if name.startswith("their_"):
                del sys.modules[name]
        out, err = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return run


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log_dir of a finished run, with what a terminal would obey and a key among its texts."""

    def answer(request: ScriptedRequest) -> str:
        if "lessons" in request.system:
            return as_chat({"lessons": f'["State the unit. {HOSTILE}"]', "reasoning": HOSTILE})
        return as_chat({"answer": "right" if "State the unit" in request.text else "wrong"})

    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        return dspy.Prediction(score=float(pred.answer == "right"), feedback=f"{HOSTILE} {KEY}")

    rows = [
        dspy.Example(question=f"{HOSTILE} {n}", unit="m").with_inputs("question") for n in range(15)
    ]
    folder = tmp_path_factory.mktemp("recorded") / "run"
    lm = ScriptedLM(answer)
    combee = Combee(
        metric,
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
            dspy.Predict("question -> answer"),
            trainset=rows[:6],
            valset=rows[6:10],
            heldout=rows[10:],
        )
    return folder
