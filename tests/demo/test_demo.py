"""The demo, on the real embedded model, cut short."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from combee_dspy import demo
from combee_dspy.evaluation import PairedDifference, detectable_difference
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms._weights import find_weights


@pytest.mark.slow
@pytest.mark.embedded
def test_it_runs_and_says_what_it_did(tmp_path, monkeypatch):
    pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'local'")
    if find_weights() is None:
        pytest.skip("the embedded model's weights are not installed")
    sizes = {**demo.EMBEDDED.params, "train": 6, "validation": 4, "heldout": 4}
    arguments = {**demo.EMBEDDED.arguments, "reflection_minibatch_size": 4}
    monkeypatch.setattr(
        demo, "EMBEDDED", replace(demo.EMBEDDED, params=sizes, rollouts=24, arguments=arguments)
    )
    monkeypatch.chdir(tmp_path)
    console = Console(file=io.StringIO(), width=100)
    report = demo.run_demo(demo.DemoOptions(seed=3), console)
    shown = console.file.getvalue()
    assert report.heldout.n == 4
    assert set(report.costs.by_role) == {"task"}, "demonstrations cost no call of a proposer"
    for said in (
        "real but tiny",
        "135 million",
        "--lm openai/",
        "--benchmark formula --path",
        "before",
        "the learned",
        "Report: none. Add --log-dir",
    ):
        assert said in shown
    assert f"{report.heldout.before:.2f}" in shown
    assert not list(tmp_path.iterdir()), "without a log_dir nothing is written"


@pytest.mark.parametrize(
    ("low", "high", "after", "said"),
    [
        (0.1, 0.3, 0.6, "is better, n = 60."),
        (-0.1, 0.3, 0.5, "is not shown to be better, n = 60."),
        (-0.3, 0.1, 0.3, "is lower, not shown to be worse, n = 60."),
        (-0.3, -0.1, 0.2, "is worse, n = 60."),
    ],
)
def test_the_verdict_is_what_the_interval_says(low, high, after, said):
    console = Console(file=io.StringIO(), width=200)
    console.print(demo._verdict(PairedDifference(0.4, after, after - 0.4, low, high, 60, 0.95)))
    assert said in console.file.getvalue()


def test_its_held_out_questions_tell_the_gain_that_it_shows():
    # The mean gain of the runs on the results page, and the share of answers that changed in
    # the default run.
    gain, discordance = 0.21, 0.46
    assert (
        detectable_difference(demo.EMBEDDED.params["heldout"], discordance=discordance, power=0.95)
        < gain
    )
    assert detectable_difference(48, discordance=discordance, power=0.6) > gain, "48 were too few"


def test_a_model_file_takes_the_place_of_the_own_one(tmp_path):
    settings = demo._model(demo.DemoOptions(model_file=tmp_path / "qwen.gguf"), demo.EMBEDDED)
    assert settings["lm"].engine.options.files == (str(tmp_path / "qwen.gguf"),)


def test_a_key_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ArgumentValueError, match="NO_SUCH_KEY"):
        demo.run_demo(
            demo.DemoOptions(lm="openai/x", api_key_env="NO_SUCH_KEY"), Console(file=io.StringIO())
        )
