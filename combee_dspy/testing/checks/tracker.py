"""Checks for trackers: one follower a run, which reads its journal.

They follow short runs in a folder of their own, which is the working directory while a check runs,
and is thrown away. A tracker that talks to a service needs one: give it as a parameter.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.journal import Reader
from combee_dspy.testing._kit import attempt, expect
from combee_dspy.testing.doubles import ScriptedLM, ScriptedRequest, as_chat
from combee_dspy.tracking import Follower, Tracker

_KEY = "sk-" + "conformance0123456789abcdef"
_HOSTILE = "[bold]be exact[/bold] <script>alert(1)</script> \x1b[2J\u202e 答える 😀"
"""A text as a language model may write it."""

_CUTS = (
    """
    UPDATE run SET state = 'running', finished = NULL, result = NULL;
    DELETE FROM event;
    DELETE FROM effect WHERE id NOT IN (SELECT id FROM effect ORDER BY id LIMIT 3);
    """,
    "DELETE FROM effect; DELETE FROM usage;",
)
"""What makes a finished run's journal that of one in its first update, and then of one that has
done nothing.
"""


def _answer(request: ScriptedRequest) -> str:
    if "lessons" in request.system:
        return as_chat({"lessons": f'["{_HOSTILE}"]', "reasoning": _HOSTILE})
    return as_chat({"answer": f"{len(request.last) % 2} {_HOSTILE}"})


def _metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    if pred_name is None and gold.question.endswith("3?"):
        raise RuntimeError(f"401: incorrect API key provided: {_KEY}")
    return dspy.Prediction(score=float(pred.answer[:1] == gold.answer), feedback=_HOSTILE)


@contextlib.contextmanager
def _run() -> Iterator[tuple[Path, int]]:
    """Work in a folder of its own, with the journal of a short run that strains trackers."""
    from combee_dspy.combee import Combee
    from combee_dspy.options import Validation

    rows = [
        dspy.Example(question=f"{_HOSTILE} {n}?", answer=str(n % 2)).with_inputs("question")
        for n in range(14)
    ]
    with tempfile.TemporaryDirectory(prefix="combee-tracker-") as name, contextlib.chdir(name):
        lm = ScriptedLM(_answer)
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            program: Any = Combee(
                _metric,
                reflection_lm=lm,
                max_metric_calls=24,
                reflection_minibatch_size=4,
                num_threads=2,
                validation=Validation(probe=False),
                tracker=(),
                log_dir="journal",
            ).compile(
                dspy.Predict("question -> answer"),
                trainset=rows[:6],
                valset=rows[6:10],
                heldout=rows[10:],
            )
        path = Path(program.combee_report.journal)
        with Reader(path) as reader:
            number = reader.rows("SELECT id FROM run")[0]["id"]
        yield path, number


@contextlib.contextmanager
def _following(strategy: Tracker, path: Path, run: int) -> Iterator[Follower]:
    with Reader(path) as reader:
        follower = attempt(lambda: strategy.open(reader, run), "`open` returns a follower")
        right = isinstance(follower, Follower)
        expect(right, "a `combee_dspy.tracking.Follower` from `open`", f"{type(follower).__name__}")
        try:
            yield follower
        finally:
            attempt(
                follower.close,
                "`close` returns, whatever came before",
                "finish what was begun, and raise nothing",
            )
        sound = isinstance(follower.where, str) and "\n" not in follower.where
        wanted = "`where`, a text of one line that says how to look at what was recorded"
        expect(sound, wanted, f"{follower.where!r:.200}")


def _follow(follower: Follower) -> None:
    mend = (
        "pass over what it does not know; texts, predictions and costs may be anything, or missing"
    )
    for _ in range(2):
        attempt(follower.follow, "`follow` reads what is new, or nothing", mend)


def check_follows_a_whole_run(strategy: Tracker) -> None:
    """A tracker follows whole runs, several at once, and never raises."""
    attempt(strategy.check, "`check` passes where what it needs is installed")
    with (
        _run() as (path, run),
        _following(strategy, path, run) as first,
        _following(strategy, path, run) as second,
    ):
        expect(
            first is not second,
            "another follower from each `open`",
            "the same object twice",
            "keep none on self",
        )
        _follow(first)
        _follow(second)


def check_follows_a_run_from_its_beginning(strategy: Tracker) -> None:
    """A run may be interrupted before its first event, or in its first update."""
    with _run() as (path, run):
        for cut in _CUTS:
            with contextlib.closing(sqlite3.connect(path)) as journal:
                journal.executescript(cut)
            with _following(strategy, path, run) as follower:
                _follow(follower)


def check_keeps_keys_to_itself(strategy: Tracker) -> None:
    """Keys get into error messages and prompts, and from there into records that others read."""
    with _run() as (path, run):
        with _following(strategy, path, run) as follower:
            _follow(follower)
        # What it wrote elsewhere, such as to a service, cannot be seen from here.
        written = [path for path in sorted(Path.cwd().rglob("*")) if path.is_file()]
        holding = [
            str(path.relative_to(Path.cwd()))
            for path in written
            if _KEY.encode() in path.read_bytes()
        ]
    mend = "pass texts through combee_dspy.lms.redact.scrub before they are written"
    expect(
        not holding,
        "files without the key that an error message held",
        f"it is in {holding[:5]}",
        mend,
    )
