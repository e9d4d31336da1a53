"""Studies of this project's own parts, as small as they go."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from combee_dspy.exceptions import ArgumentError
from studies import client, promises
from studies.__main__ import app


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
