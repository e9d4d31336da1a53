"""What a user gets wrong is refused by name, with what to give instead."""

from __future__ import annotations

import dspy
import pytest

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.testing import ScriptedLM
from combee_strategist.commands.live import _located
from combee_strategist.exceptions import RegistryError
from combee_strategist.live import Live
from plugins.strategist.tests.lives import DESK, GOODS, desk_answer, metric, trusted_rows
from plugins.strategist.tests.test_live_learning import actions

LM = ScriptedLM(desk_answer, cache=False)


def make(**arguments):
    return Live(**{"name": "x", "program": DESK, "metric": metric, "reflection_lm": LM} | arguments)


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"learning": 5}, r"learning .*\(got 5\)\. Give Learning\(…\)"),
        ({"learning": {"hour": 5}}, r"learning\.hour .*\(got 5\)\. Correct its name"),
        ({"clock": 5}, r"clock .*\(got 5\)\. Give a function"),
        ({"slices": "topic"}, r"slices .*\(got 'topic'\)\. Give a function"),
        ({"log_dir": 5}, r"log_dir .*\(got 5\)\. Give a path"),
        ({"trusted": 5}, r"trusted .*\(got 5\)\. Give a list"),
        ({"lm": "gpt"}, r"lm .*\(got 'gpt'\)\. Give an LM"),
    ],
)
def test_an_argument_of_another_type_is_refused_with_the_remedy(arguments, refusal):
    with pytest.raises(ArgumentTypeError, match=refusal):
        make(**arguments)


def test_options_may_be_a_mapping_as_in_the_commands_file():
    assert make(learning={"hours": 24})._setup.learning.hours == 24.0


def test_a_folder_that_is_a_file_is_refused_before_anything_is_served(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for place in (file, file / "below"):
        with pytest.raises(ArgumentValueError, match=r"log_dir is a file.*Name a folder"):
            make(log_dir=place)


def test_a_trusted_row_with_a_slip_in_a_fields_name_is_refused():
    rows = trusted_rows({"cup": "K2"}, each=3)
    slip = dspy.Example(question="code for cup?", cod="K2").with_inputs("question")
    with pytest.raises(ArgumentValueError, match=r"trusted\[3\]\.cod .*Did you mean 'code'"):
        make(trusted=[*rows, slip])
    # A field more is a metric's own matter.
    make(trusted=[*rows, rows[0].copy(codes=["K2", "K3"])])


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ({"score": "good"}, r"score is no number \(got 'good'\)\. Give a score from 0 to 1"),
        ({"comment": 5}, r"comment is no text \(got 5\)"),
        ({"cod": "K1"}, r"cod is no field .*Did you mean 'code'"),
        ({"scor": 1.0}, r"scor is no field .*Did you mean 'score'"),
    ],
)
def test_feedback_with_a_slip_is_refused(desk, said, refusal):
    here = desk()
    request, _ = here.ask("bell")
    with pytest.raises(ArgumentTypeError, match=refusal):
        here.server.feedback(request, **said)


def test_feedback_may_name_what_was_answered_or_what_a_trusted_row_has(desk):
    class Asks(dspy.Module):
        def __init__(self):
            super().__init__()
            self.desk = DESK

        def forward(self, question):
            return dspy.Prediction(codes=self.desk(question=question).code)

    row = dspy.Example(question="code for cup?", coder="ada").with_inputs("question")
    setup = desk().live._setup
    server = make(
        program=Asks(), trusted=[row], lm=setup.lm, log_dir=setup.home, uri=setup.uri
    ).serve()
    server(question="Number 1: code for cup?", request_id="a")
    assert server.feedback("a", codes="K2", coder="ada")
    server.close(0.05)


def test_a_version_that_is_not_on_trial_is_neither_approved_nor_rejected(desk):
    here = desk(approve="human")
    with pytest.raises(ArgumentValueError, match=r"On trial: none\. Proposed so far: none"):
        here.live.approve(2)
    here.label(*GOODS)
    assert "propose" in actions(here.live.tick())
    for say in (here.live.approve, here.remake().reject):
        with pytest.raises(ArgumentValueError, match=r"9\)\. On trial: version 2"):
            say(9)
    here.live.reject(2, who="bob")
    here.live.tick()
    with pytest.raises(ArgumentValueError, match=r"On trial: none\. Proposed so far: 2"):
        here.live.approve(2)


def test_a_store_lies_beside_the_file_that_names_it(tmp_path):
    assert _located("sqlite:///mlflow.db", tmp_path) == f"sqlite:///{tmp_path / 'mlflow.db'}"
    for uri in (None, "http://localhost:5000", f"sqlite:///{tmp_path / 'elsewhere' / 'mlflow.db'}"):
        assert _located(uri, tmp_path / "configs") == uri


def test_a_store_that_is_not_the_servers_ends_no_trial(desk, monkeypatch):
    import mlflow

    from plugins.strategist.tests import prompts

    here = desk()
    here.label(*GOODS)
    here.live.tick()
    here.live.close()
    other = here.remake()
    with monkeypatch.context() as patch:
        patch.setattr(mlflow, "MlflowClient", prompts.Prompts().client)
        with pytest.raises(RegistryError, match=f"nothing is in production in {prompts.URI}"):
            other.tick()
    assert actions(other.decisions()) == ["learn", "propose"]
    other.close()
