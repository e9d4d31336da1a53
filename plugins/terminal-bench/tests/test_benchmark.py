from __future__ import annotations

import logging
import re

import dspy
import pytest
from combee_dspy import Combee, Validation, registry
from combee_dspy.exceptions import (
    ArgumentError,
    ArgumentValueError,
    DataSourceError,
    InfrastructureError,
)
from combee_dspy.testing import ScriptedLM, as_chat
from tasks_made import make_task

from combee_terminal_bench import TerminalBench, harbor_python, read_tasks


def act(request):
    """An agent that does what it is told, and adds the checksum only where its instructions say
    so.
    """
    text = re.findall(r"Write the text '(.*?)' into", request.last)[-1]
    code = f"echo '{text}' > /app/report.txt"
    if "sha256sum < FILE" in request.system:
        code += "; sha256sum < /app/report.txt > /app/report.txt.sha256"
    return as_chat({"code": code, "finished": True, "summary": "Written."})


def propose(request):
    """A proposer that passes on the rules that it reads in the feedback."""
    rules = list(dict.fromkeys(re.findall(r"Rule: (.*?sha256sum < FILE)", request.text)))
    if "new_instruction" in request.text:
        return as_chat({"new_instruction": "Carry out the task.\n" + "\n".join(rules)})
    return as_chat({"lessons": rules})


def test_it_is_found_by_name():
    assert registry.build("benchmark", "terminal-bench") == TerminalBench()


def test_it_comes_from_this_distribution_and_loads():
    found = [entry for entry in registry.installed() if entry.name == "terminal-bench"]
    expected = [("benchmark", "combee-dspy-terminal-bench", None)]
    assert [(entry.kind, entry.distribution, entry.problem) for entry in found] == expected


def test_an_agent_passes_after_combee_has_taught_it_the_missing_step(bench):
    benchmark = bench.load()
    agent, proposer = ScriptedLM(act, model="scripted/agent"), ScriptedLM(propose, model="scripted/proposer")
    with dspy.context(lm=agent, adapter=dspy.ChatAdapter()):
        taught = Combee(
            benchmark.metric,
            reflection_lm=proposer,
            reflection_minibatch_size=3,
            operators=["insert"],
            max_metric_calls=12,
            num_threads=2,
            validation=Validation(probe=False),
        ).compile(
            benchmark.program(),
            trainset=list(benchmark.train.examples),
            valset=list(benchmark.validation.examples),
            heldout=list(benchmark.heldout.examples),
        )
    report = taught.combee_report
    assert (report.seed_score, report.best_score) == (0.0, 1.0)
    assert "sha256sum < FILE" in dict(taught.named_predictors())["agent.act"].signature.instructions
    assert (report.heldout.before, report.heldout.after) == (0.0, 1.0)


def test_a_wrong_answers_feedback_says_what_was_done_and_what_the_verifier_said(bench):
    benchmark = bench.load()
    example = benchmark.train.examples[0]
    with dspy.context(lm=ScriptedLM(act), adapter=dspy.ChatAdapter()):
        judged = benchmark.metric(example, benchmark.program()(**example.inputs()))
    assert judged.score == 0.0
    assert "report.txt.sha256 is missing" in judged.feedback
    assert "echo '2 squared is 4' > /app/report.txt" in judged.feedback


def test_a_hung_task_ends_a_run_as_infrastructure_and_is_never_a_score(tmp_path):
    for name in ("a", "b", "c"):
        make_task(tmp_path, name, "Write the text 'x' into the air.", test="#!/bin/bash\nsleep 6543\n")
    bench = TerminalBench(
        str(tmp_path),
        train=["a"],
        validation=["b"],
        heldout=["c"],
        environment="namespace",
        workers=1,
        agent="code",
        max_iters=1,
        evaluate_timeout=2,
    )
    benchmark = bench.load()
    program = benchmark.program()
    lm = ScriptedLM(act)
    with (
        dspy.context(lm=lm, adapter=dspy.ChatAdapter()),
        pytest.raises(InfrastructureError, match="took more than 2 s"),
    ):
        Combee(
            benchmark.metric,
            reflection_lm=lm,
            max_metric_calls=4,
            num_threads=1,
            validation=Validation(probe=False),
        ).compile(
            program,
            trainset=list(benchmark.train.examples),
            valset=list(benchmark.validation.examples),
        )
    # Tried three times; the one seat may have taken the next rollout before the run had heard of
    # it.
    assert program.pool.stats.faults in ({"timeout": 3}, {"timeout": 6})


def test_a_stand_in_says_so(bench, caplog):
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        notes = bench.load().notes
    assert len(notes) == 1 and "no result on Terminal-Bench" in notes[0]
    assert notes[0] in caplog.text


def test_tasks_are_dealt_by_their_files(reports):
    first = TerminalBench(str(reports), environment="namespace").load()
    again = TerminalBench(str(reports), environment="namespace", pin=first.pins).load()
    assert first.pins == again.pins
    names = [example.task_id for split in first.splits for example in split.examples]
    assert sorted(names) == sorted(task.name for task in read_tasks(reports))
    with pytest.raises(DataSourceError, match="is pinned"):
        TerminalBench(str(reports), environment="namespace", pin={"train": "0" * 64}).load()


def test_a_changed_test_changes_the_row(tmp_path):
    task = make_task(tmp_path, "one", "Do.", test="#!/bin/bash\n")
    before = read_tasks(tmp_path)[0].row
    (task / "tests" / "test.sh").write_text("#!/bin/bash\ntrue\n")
    assert read_tasks(tmp_path)[0].row != before


def test_a_folder_as_harbor_leaves_it_is_found(tmp_path):
    make_task(tmp_path / "terminal-bench", "one", "Do.", test="#!/bin/bash\n")
    assert [task.name for task in read_tasks(tmp_path)] == ["one"]


def test_no_tasks_and_broken_tasks_are_named(tmp_path):
    with pytest.raises(DataSourceError, match="harbor download"):
        TerminalBench(str(tmp_path), environment="namespace").load()
    with pytest.raises(DataSourceError, match="no folder of tasks was named"):
        TerminalBench(environment="namespace").load()
    task = make_task(tmp_path, "one", "Do.", test="#!/bin/bash\n")
    (task / "task.toml").write_text("not = [toml")
    with pytest.raises(DataSourceError, match="'one'"):
        read_tasks(tmp_path)


def test_docker_is_asked_for_by_default_and_missed_by_name(reports, monkeypatch):
    monkeypatch.setattr("combee_terminal_bench._benchmark.docker_here", lambda: False)
    with pytest.raises(ArgumentValueError, match="no Docker engine"):
        TerminalBench(str(reports)).load()


def test_a_missing_harbor_is_named(monkeypatch):
    with pytest.raises(ArgumentValueError, match="combee terminal-bench setup"):
        harbor_python("/nowhere/python")


def test_availability_never_raises(reports, tmp_path):
    assert TerminalBench().availability().here is False
    assert TerminalBench(str(tmp_path / "none")).availability().here is False
    assert TerminalBench(str(reports), python="/nowhere/python").availability().here is False
    assert TerminalBench(str(reports)).availability().here is True


@pytest.mark.parametrize(
    ("params", "argument"),
    [
        ({"environment": "podman"}, "environment"),
        ({"agent": "plain"}, "agent"),
        ({"workers": 0}, "workers"),
        ({"workers": "all"}, "workers"),
        ({"max_iters": 0}, "max_iters"),
        ({"command_timeout": 0}, "command_timeout"),
        ({"open_timeout": 0}, "open_timeout"),
        ({"evaluate_timeout": "long"}, "evaluate_timeout"),
        ({"train": ["report-2"]}, "validation"),
        ({"train": ["nothing"], "validation": [], "heldout": []}, "train"),
        ({"train": ["report-2"], "validation": ["report-2"], "heldout": []}, "validation"),
    ],
)
def test_wrong_parameters_are_refused_by_name(reports, params, argument):
    with pytest.raises(ArgumentError) as caught:
        TerminalBench(str(reports), **{"environment": "namespace", **params}).load()
    assert caught.value.argument.rpartition(".")[2] == argument
