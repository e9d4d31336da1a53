"""Errors say what they are about, and come out of another process as they went in."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from combee_dspy import exceptions
from combee_dspy.exceptions import CombeeError

GIVEN = {
    "ArgumentError": ("trainset", [1] * 500, "is too long", "Cut it."),
    "ArgumentTypeError": ("trainset", 3, "is no list", "Give a list."),
    "ArgumentValueError": ("trainset", {}, "is {empty}", "Give rows."),
    "EmptyTrainsetError": ((),),
    "UnknownStrategyError": ("operator", "spin", ["rewrite", "insert"]),
    "SplitOverlapError": ("heldout", "trainset", 3),
    "HeldoutMovedError": ("has changed", {"a": "b"}, "Give it back."),
    "PluginError": ("operator", "spin", "spinner", "no module"),
    "MissingDistributionError": ("combee bench", "combee-bench"),
    "JournalMismatchError": ("runs/a", ["metric was bb and is cc", "seed was 1 and is 2"]),
    "JournalDamagedError": ("runs/a", "page 7 is torn"),
    "JournalHeldError": ("runs/a", "process 12"),
    "LMUnreachableError": ("task", "some/model", "401"),
    "InfrastructureError": (2, 5, "503"),
    "CalibrationFailedError": ("kappa 0.1",),
    "TooManyFailuresError": ("8 of 8 calls raised", "ValueError: no", "Look at it"),
    "JudgeVerdictError": (3, "no number"),
    "TaskCancelledError": ("task-1",),
    "RefusedError": ("a static batch without a reason", "nobody could check it", "Say why."),
    "NotPlainFileError": ("runs/a/report.html", "is a link, not a plain file", "Remove it."),
    "TraceSourceError": ("logs.jsonl", "it is not there", "Fetch it."),
    "TraceFieldError": ("logs.jsonl", "is no score", "Name it.", "score", '{"score": "?"}'),
    "DataSourceError": ("formula", "rows.jsonl", "it is not there", "Fetch it."),
}
KINDS = [
    one
    for one in vars(exceptions).values()
    if isinstance(one, type) and issubclass(one, CombeeError)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_in_another_process(kind: type[CombeeError]) -> None:
    error = kind(*GIVEN.get(kind.__name__, ("something happened",)))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("name", GIVEN)
def test_an_error_says_what_it_was_given(name: str) -> None:
    given = GIVEN[name]
    error = getattr(exceptions, name)(*given)
    for part in given:
        said = (
            part
            if isinstance(part, list) and part and isinstance(part[0], str)
            else [str(part)[:100]]
        )
        assert all(one in str(error) for one in said)


def test_the_tree_names_every_error() -> None:
    assert exceptions.__doc__
    assert [kind.__name__ for kind in KINDS if f" {kind.__name__}" not in exceptions.__doc__] == []


def test_no_message_recommends_to_leave_the_record_of_held_out_looks_behind() -> None:
    # Another log_dir, name or trainset would be a way around a held-out set that may not move.
    evasion = re.compile(
        r"(another|other|new|fresh|different) (log_dir|study|trainset)|(log_dir|study) of its own"
        r"|(delete|remove) (the|its) (log_dir|journal|receipts)",
        re.IGNORECASE,
    )
    advice = re.compile(r"\b(give|take|use|choose|name|set|delete|remove)\b[^.\n]*", re.IGNORECASE)
    found = [
        f"{path}: {sentence[0]}"
        for folder in ("combee_dspy", "plugins")
        for path in sorted((Path(__file__).parents[2] / folder).rglob("*.py"))
        for sentence in advice.finditer(path.read_text(encoding="utf-8"))
        if evasion.search(sentence[0])
    ]
    assert found == []
