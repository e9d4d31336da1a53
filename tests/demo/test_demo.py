"""The demo, on the real embedded model, cut short; and what it refuses."""

from __future__ import annotations

import sys

import pytest

from combee_dspy.cli.demo import EMBEDDED, QUESTIONS
from combee_dspy.evaluation import detectable_difference
from combee_dspy.lms._weights import find_weights
from tests.cli.conftest import shell  # noqa: F401 - a fixture

DEMO = "combee_dspy.cli.demo"


@pytest.mark.slow
@pytest.mark.embedded
def test_it_runs_and_prints_its_result(shell, tmp_path, monkeypatch):  # noqa: F811 - the fixture
    pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'local'")
    if find_weights() is None:
        pytest.skip("the embedded model's weights are not installed")
    small = {**EMBEDDED, "budget": {"rollouts": 24}, "reflection_minibatch_size": 4}
    sizes = {"train": 6, "validation": 4, "heldout": 4}
    monkeypatch.setattr(sys.modules[DEMO], "EMBEDDED", small)
    monkeypatch.setattr(sys.modules[DEMO], "QUESTIONS", {**QUESTIONS, **sizes})
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = shell("demo", "--seed", "3")
    assert code == 0, err
    text = " ".join(out.split())
    for words in (
        "real but tiny",
        "135 million",
        "that of seed 4, 0.11, is not",
        "--lm openai/",
        "--benchmark formula --path",
        "24 rollouts, seed 3",
        "the learned prompt",
        "Report: none. Add --log-dir",
    ):
        assert words in text
    assert "n = 4: " in text
    assert "proposer" not in text.partition("calls ")[2].partition("models")[0], (
        "demonstrations cost no call of a proposer"
    )
    assert not list(tmp_path.iterdir()), "without a log_dir nothing is written"


def test_its_held_out_questions_tell_the_gain_that_it_shows():
    # The mean gain of the runs on the results page, and the share of answers that changed in
    # the default run.
    gain, discordance = 0.21, 0.46
    rows = QUESTIONS["heldout"]
    assert detectable_difference(rows, discordance=discordance, power=0.95) < gain
    assert detectable_difference(48, discordance=discordance, power=0.6) > gain, "48 were too few"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--api-base http://h/v1", "Add --lm"),
        ("--model-file none.gguf", "--model-file is no file"),
        ("--model-file none.gguf --lm openai/m", "--model-file is given beside --lm"),
        ("--lm openai/x --api-key-env NO_SUCH_KEY", "--api-key-env is not set"),
        ("--rollouts 0", "--rollouts cannot be used: Input should be greater than 0 (got 0)"),
        ("--seconds -1", "See combee demo --help."),
    ],
)
def test_options_that_cannot_be_used_are_named(shell, options, words):  # noqa: F811 - the fixture
    code, _, err = shell("demo", *options.split())
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
