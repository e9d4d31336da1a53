"""Studies of this project's own parts, as small as they go."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from combee_dspy.exceptions import ArgumentError
from studies import client, promises
from studies.__main__ import app
from studies.unseen import tables


@pytest.mark.slow
def test_a_client_is_measured_against_a_service_that_answers_at_once() -> None:
    with client.instant_service() as api_base:
        for name in ("evaluate-plain", "threads-plain", "asyncio-pooled", "compile-pooled"):
            figures = client.measure(name, api_base, rollouts=20, workers=4)
            assert min(figures.values()) > 0, name
    with pytest.raises(ArgumentError, match="rows"):
        client.run(client.ClientOptions(rows=("nothing",)))


@pytest.mark.parametrize("name", ["client", "drift", "fortnight", "overhead", "promises", "served"])
def test_a_study_is_a_command(name: str) -> None:
    assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0


def test_the_page_has_the_rows_of_others_tasks_that_are_committed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(tables.__file__).with_name("results.jsonl")
    monkeypatch.setattr("sys.argv", ["tables", str(file)])
    tables.main()
    lines = capsys.readouterr().out.splitlines()
    page = (Path(__file__).parents[3] / "docs/results/quality.md").read_text(encoding="utf-8")
    drawn = [line for line in lines if " of 5 |" in line]
    assert len(drawn) >= 2
    for line in drawn:
        # Without the budget, which the page says once, and the seconds, which are the machine's.
        task, _, *rest = line.strip("| ").split(" | ")
        assert f"| {' | '.join((task, *rest[:-1]))} |" in page
    assert lines[-1].startswith(f"{len(drawn)} tasks, 300 rollouts: +")


@pytest.mark.parametrize("promise", promises.PROMISES.values(), ids=promises.PROMISES)
def test_a_promise_names_sizes_that_its_test_reads(promise: promises.Promise) -> None:
    source = (Path(__file__).parents[3] / promise.test).read_text(encoding="utf-8")
    for name in (*promise.sizes, *promise.fixed):
        assert f'size("{name}"' in source


@pytest.mark.slow
def test_a_promise_that_is_held_is_a_row_of_the_table() -> None:
    options = promises.PromisesOptions(only=("damage",), share=0.01)
    (row,) = promises.run(options)
    assert "7 passed" in row.outcome
    assert "times=4 effects=60" in row.command
    assert promises.table(options, [row]).count("\n") == 2
