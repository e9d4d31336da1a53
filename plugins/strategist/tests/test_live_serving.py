"""What is served and said is on disk when the caller goes on; people are heard; one process learns."""

from __future__ import annotations

import asyncio

import dspy
import pytest

from combee_dspy import Privacy
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, JournalHeldError
from combee_dspy.files import append_plain
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.traces import JournalTraces
from combee_strategist.canary import RequestLabelled
from combee_strategist.live import Live
from plugins.strategist.tests.lives import DESK, GOODS, START, metric


def journals(desk):
    return sorted(desk.live._setup.requests.rglob("journal.sqlite"))


def labels(desk):
    found = []
    for path in journals(desk):
        with Reader(path) as reader:
            found += [entry.event for entry in RunHistory(reader).entries(RequestLabelled)]
    return found


def test_the_first_server_puts_the_program_into_production_and_the_second_does_not(desk):
    here = desk()
    assert here.server.versions == (1, None)
    second = here.remake().serve()
    assert second.versions == (1, None)
    second.close(0.05)
    (line,) = here.live._setup.registry().audit()
    assert (line["action"], line["to"]) == ("publish", 1)


def test_a_request_is_on_disk_before_its_caller_has_the_answer(desk):
    here = desk()

    async def ask():
        return await here.server.acall(question="Number 7: code for cup?", request_id="a")

    assert here.ask("bell")[1] == "unknown"
    assert asyncio.run(ask()).code == "unknown"
    (path,) = journals(here)
    first, second = JournalTraces(str(path)).read()
    assert (first.inputs["question"], first.outputs) == (
        "Number 0: code for bell?",
        {"code": "unknown"},
    )
    assert (second.time, second.prompt) == (START, "v1")


def test_labels_may_come_late_to_any_server_and_again(desk):
    here = desk()
    request, _ = here.ask("bell")
    here.clock.pass_hours(5)
    other = here.remake().serve()
    assert other.feedback(request, score=False, comment="No such code.")
    assert here.server.feedback(request, code="K1", trusted=True)
    assert not here.server.feedback(request)
    other.close(0.05)
    correction, thumb = labels(here)
    assert (thumb.score, thumb.comment, thumb.expected, thumb.at) == (
        0.0,
        "No such code.",
        {},
        START + 5 * 3600,
    )
    assert (correction.score, correction.expected, correction.trusted) == (
        None,
        {"code": "K1"},
        True,
    )
    assert thumb.request == correction.request


def test_a_score_beyond_its_range_is_refused(desk):
    here = desk()
    request, _ = here.ask("bell")
    with pytest.raises(ArgumentValueError, match="between 0 and 1"):
        here.server.feedback(request, score=5)
    assert labels(here) == []


def test_the_callers_own_trace_is_as_without(desk):
    here, trace = desk(), []
    with dspy.context(trace=trace):
        here.ask("bell")
    assert len(trace) == 1


def test_people_are_heard_once_from_any_process(desk):
    here = desk()
    here.label(*GOODS)
    here.live.tick()
    here.remake().approve(2, who="ada", why="read it")
    here.remake().remove("Be rude.", who="bob")
    first = here.live.tick()
    assert [(each.action, each.who, each.version, each.text) for each in first] == [
        ("approve", "ada", 2, ""),
        ("remove", "bob", None, "Be rude."),
    ]
    assert here.live.tick() == ()
    here.live.close()
    again = here.remake()
    assert again.tick() == ()
    assert again.decisions()[-2:] == first
    again.close()


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        '{"action": "promote", "why": "", "who": "ada", "version": 2}',
        '{"action": "approve", "why": "", "version": 2}',
        f'{{"action": "approve", "why": "", "who": "ada", "version": {10**30}}}',
    ],
    ids=["no JSON", "no answer", "nobody", "no version"],
)
def test_a_line_of_people_that_says_nothing_is_passed_over(desk, line):
    here = desk()
    append_plain(here.live._setup.home / "people.jsonl", f"{line}\n".encode())
    here.remake().remove("Be rude.", who="ada")
    assert [each.action for each in here.live.tick()] == ["skip", "remove"]


def test_one_process_learns(desk):
    here = desk()
    here.live.tick()
    with pytest.raises(JournalHeldError):
        here.remake().tick()


def test_what_cannot_work_is_refused_at_once(desk):
    here = desk()
    lm = here.lms[1]
    with pytest.raises(ArgumentTypeError, match="program"):
        Live("x", "no program", metric=metric, reflection_lm=lm)
    with pytest.raises(ArgumentTypeError, match="reflection_lm"):
        Live("x", DESK, metric=metric, reflection_lm="gpt")
    with pytest.raises(ArgumentValueError, match="hashes"):
        Live("x", DESK, metric=metric, reflection_lm=lm, privacy=Privacy(texts="hashes"))
    # Of another word than "human" nobody would be asked.
    with pytest.raises(ArgumentValueError, match="approve"):
        Live("x", DESK, metric=metric, reflection_lm=lm, approve="Human")
    row = {"question": "code for cup?", "code": "K2"}
    with pytest.raises(ArgumentTypeError, match=r"trusted\[0\]"):
        Live("x", DESK, metric=metric, reflection_lm=lm, trusted=[row])
    for example in (dspy.Example(row), dspy.Example(row).with_inputs()):
        with pytest.raises(ArgumentValueError, match="inputs"):
            Live("x", DESK, metric=metric, reflection_lm=lm, trusted=[example])


@pytest.fixture
def logged(autolog):
    """Before a context of DSPy's is entered: it takes callbacks over as they are then."""
    autolog()


def test_spans_of_mlflow_say_which_request_version_and_predictor(logged, desk, mlflow_store):
    import mlflow

    from combee_dspy.traces import MLflowTraces

    here = desk(uri=mlflow_store)
    mlflow.set_tracking_uri(mlflow_store)
    mlflow.set_experiment(here.live._setup.name)
    here.ask("bell")
    mlflow.flush_trace_async_logging()
    (trace,) = mlflow.search_traces(return_type="list")
    marks = {
        name: value
        for span in trace.data.spans
        for name, value in span.attributes.items()
        if name.startswith("combee.")
    }
    assert marks["combee.request"] == here.server._recorder.request("r0")
    assert (marks["combee.version"], marks["combee.component"]) == (1, "self")
    source = MLflowTraces(here.live._setup.name, mlflow_store)
    (recorded,) = source.read()
    assert recorded.calls[0].predictor == "self"
    mlflow.set_tracking_uri(None)
