"""Faults, kills and soaking: each command on runs that take a moment."""

from __future__ import annotations

import io
import json
import multiprocessing
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from combee_bench import faults, kills, soak
from combee_bench.options import FaultsOptions, KillsOptions, SoakOptions
from combee_bench.spoiling import FAULTS
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts import _patient

SMALL: dict[str, Any] = {
    "examples": 8,
    "validation": 3,
    "heldout": 4,
    "workers": 4,
    "time_scale": 0.0,
}


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.01)


def shown(module: Any, options: Any, rows: Any) -> str:
    console = Console(width=300, file=io.StringIO())
    console.print(module.table(options, rows))
    return console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.slow
def test_faults_of_the_service_change_nothing_and_answers_of_a_model_are_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults, "_PATIENCE", 0.2)
    names = ("empty-object", "half-body", "empty-text", "dead")
    options = FaultsOptions(faults=names, **SMALL)
    alone, *rows = faults.run(options)
    assert faults.passed(options, [alone, *rows])
    assert [row.fault for row in rows] == list(names)
    for row in rows:
        assert (row.spoiled > 0, row.again > 0) == (True, row.fault != "empty-text")
        assert row.requests - row.spoiled == alone.requests or row.fault == "empty-text"
        assert (row.failed > 0) == (row.fault == "empty-text")
    assert "waited" in rows[-1].ended or "seconds have passed" in rows[-1].ended
    assert "empty-object" in shown(faults, options, [alone, *rows])


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("client", ["pooled", "asyncio"])
@pytest.mark.slow
def test_the_fast_client_goes_through_the_same(client: Any) -> None:
    options = FaultsOptions(faults=("message-null", "outage"), client=client, outage=0.1, **SMALL)
    rows = list(faults.run(options))
    assert faults.passed(options, rows)
    assert all(row.spoiled for row in rows[1:])


def test_a_fault_that_nobody_knows_is_named() -> None:
    with pytest.raises(ArgumentValueError, match="'fire'"):
        next(faults.run(FaultsOptions(faults=("fire",))))


def test_every_fault_of_the_list_is_there() -> None:
    assert {
        "429",
        "429-retry-after",
        "500",
        "503",
        "reset",
        "hang",
        "half-body",
        "drip",
        "nested-reply",
    } <= set(FAULTS)
    assert {"empty-text", "refusal", "1-mb", "50-mb", "nul", "another-language", "length"} <= set(
        FAULTS
    )


class Forked:
    """Stands for a process: one that is forked off has all that it would import."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=kills.child, args=(json.dumps(arguments),), daemon=True
        )
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        self._process.kill()

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_a_run_that_is_killed_ends_as_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "_started", Forked)
    options = KillsOptions(
        runs=("trunk", "commit"), kills=1, examples=8, validation=3, workers=2, time_scale=0.0
    )
    rows = list(kills.run(options))
    assert kills.passed(options, rows)
    # Of a run that is killed anywhere it may be too late; where the run itself dies it is not.
    assert [(row.run, row.kills) for row in rows[1:]] == [("commit", 1)]
    assert "in a commit" in shown(kills, options, rows)


@pytest.mark.slow
def test_what_a_process_holds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Here:
        """Stands for a process; does its work when its output is read."""

        def __init__(self, args: list[str], **_: Any) -> None:
            self.given, self.stdout = json.loads(args[-1]), self._lines()

        def _lines(self) -> Iterator[str]:
            with monkeypatch.context() as patched:
                patched.setattr(sys, "__stdout__", io.StringIO())
                soak._soaked(self.given)
                found = sys.__stdout__.getvalue()  # type: ignore[union-attr]  # a StringIO
            yield from found.splitlines()

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(soak, "_SIZES", {"train": 12, "validation": 3, "heldout": 1})
    monkeypatch.setattr(soak, "subprocess", SimpleNamespace(Popen=Here, PIPE=None))
    options = SoakOptions(rollouts=20, compiles=2, faults=0.0, workers=4)
    rows = list(soak.run(options))
    compiles = [row for row in rows if row.part == "compiles"]
    assert [row.done for row in compiles] == [1, 2]
    assert all(
        row.mib > 10 and row.handles > 3 and row.threads >= 1 and row.journal_mib > 0
        for row in compiles
    )
    assert "compiles" in shown(soak, options, rows)
