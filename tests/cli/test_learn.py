"""``combee learn``: from a file to a book, and what it says where it cannot."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from combee_dspy.testing import ScriptedLM
from tests.traces.material import write_journal, write_json_lines, write_otlp
from tests.traces.test_learning import answer

LINES = [
    {"q": f"thing{letter}", "reply": {"text": "?"}, "note": f"The code of thing{letter} is x."}
    for letter in "abc"
]


@pytest.fixture
def reader(monkeypatch):
    lm = ScriptedLM(answer)
    monkeypatch.setattr("combee_dspy.cli._lms.make_lm", lambda *_: lm)
    return lm


def write_lines():
    Path("logs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    mapping = ("inputs.thing=q", "outputs.code=reply.text", "feedback=note")
    return ["logs.jsonl", *(part for field in mapping for part in ("--field", field))]


def test_a_book_is_printed_and_written(shell, reader):
    arguments = write_lines()
    Path("task.txt").write_text("Give the code.\n")
    code, out, err = shell(
        "learn", *arguments, "--lm", "openai/x", "--out", "learned", "--prompt", "task.txt"
    )
    assert code == 0, err
    assert out.startswith("not validated ")
    assert "- For thinga, the code is aaa. (1 trace)" in out
    assert "3 of 3 traces are read" in out
    assert sorted(path.name for path in Path("learned").iterdir()) == ["lessons.json", "prompt.md"]
    assert Path("learned/prompt.md").read_text().startswith("Give the code.\n\nLessons learned:")


def test_a_dry_run_says_what_would_be_read_and_asks_nobody(shell, reader):
    code, out, err = shell("learn", *write_lines(), "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("3 of 3 traces are read")
    assert not reader.requests


@pytest.mark.parametrize("kind", ["journal", "otlp"])
def test_a_journal_and_spans_are_known_by_what_they_hold(shell, kind, tmp_path):
    file = write_journal(Path("run")) if kind == "journal" else write_otlp(Path("spans.jsonl"))
    code, out, err = shell("learn", str(file), "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("3 of 3 traces are read")


def test_a_killed_run_goes_on(shell, reader):
    arguments = [*write_lines(), "--lm", "openai/x", "--log-dir", "log", "--out", "a"]
    shell("learn", *arguments)
    spent = len(reader.requests)
    shell("learn", *arguments, "--skill", "codes")
    assert len(reader.requests) == spent
    assert Path("a/codes/SKILL.md").is_file()


def test_the_journal_of_what_was_learned_can_be_looked_at(shell, reader):
    shell("learn", *write_lines(), "--lm", "openai/x", "--log-dir", "log")
    for command in (("show", "log"), ("runs", "."), ("report", "log")):
        code, _, err = shell(*command)
        assert code == 0, err
    (page,) = Path("log").glob("report*.html")
    assert "For thinga, the code is aaa." in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.jsonl", "--dry-run"], "is no file"),
        (["no-such-source", "--dry-run"], "source names no installed strategy"),
        (["logs.jsonl", "--field", "inputs"], "is not name=value"),
        (["logs.jsonl", "--field", "inputs=q", "--field", "inputs=r"], "a second value"),
        (["logs.jsonl", "--field", "inputs=q", "--field", "inputs.a=r"], "and a part of it"),
        (["logs.jsonl", "--field", "inputs.a=r", "--field", "inputs=q"], "and a part of it"),
        (["logs.jsonl", "--drop", "agent=bot", "--drop", "agent=probe"], "a second value"),
        (["logs.jsonl"], "--lm is missing"),
        (["logs.jsonl", "--field", "inputs=nothing", "--dry-run"], "holds no inputs"),
    ],
)
def test_what_cannot_be_used_is_one_line(shell, arguments, words):
    write_json_lines(Path("logs.jsonl"))
    code, _, err = shell("learn", *arguments)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["", "--prompt"])
def test_nothing_waits_for_a_pipe(shell, reader, option):
    os.mkfifo("pipe.jsonl")
    arguments = [*write_lines(), option, "pipe.jsonl"] if option else ["pipe.jsonl"]
    code, _, err = shell("learn", *arguments, "--lm", "openai/x")
    assert code == 2
    assert "is a named pipe, not a plain file" in err


def test_a_prompt_that_is_no_text_is_one_line(shell, reader):
    Path("prompt.txt").write_bytes(b"\xff\xfe")
    code, _, err = shell("learn", *write_lines(), "--lm", "openai/x", "--prompt", "prompt.txt")
    assert code == 2
    assert "error: --prompt cannot be read" in err
