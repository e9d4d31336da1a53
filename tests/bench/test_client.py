from __future__ import annotations

import json
import urllib.request

import dspy
import pytest

from combee_dspy.bench import client, client_rows
from combee_dspy.bench.client import ClientOptions, ClientRow, client_record, run_client, table
from combee_dspy.bench.client_rows import ROWS, Measured, WrongAnswersError, measure
from combee_dspy.bench.client_service import instant_service
from combee_dspy.exceptions import ArgumentValueError, ServiceError


@pytest.fixture(scope="module")
def api_base():
    with instant_service() as base:
        yield base


def calls_of(api_base):
    with urllib.request.urlopen(api_base.replace("/v1", "/stats"), timeout=20) as answer:  # noqa: S310
        return json.load(answer)["calls"]


@pytest.mark.parametrize("name", ROWS)
def test_every_row_makes_the_calls_that_it_counts(name, api_base):
    before = calls_of(api_base)
    found = measure(name, api_base, 12, 3)
    assert calls_of(api_base) - before == 12 + 3  # the warm-up asks once a worker
    assert found.rollouts == 12
    assert found.cpu_seconds > 0
    assert [at for at, _ in found.memory] == [0, 12]
    assert all(size > 2**20 for _, size in found.memory)


def test_a_rollout_is_one_call_of_two_messages():
    with dspy.context(lm=dspy.utils.DummyLM([{"answer": "42"}])):
        client_rows._program()(question="q")
    assert [message["role"] for message in dspy.clients.base_lm.GLOBAL_HISTORY[-1]["messages"]] == ["system", "user"]


def test_wrong_answers_and_wrong_books_are_no_measurement(api_base, monkeypatch):
    monkeypatch.setattr(client_rows, "ANSWER", "another")
    with pytest.raises(WrongAnswersError, match="the lowest 0"):
        measure("evaluate-pooled", api_base, 4, 2)
    monkeypatch.undo()
    monkeypatch.setattr(client_rows.LedgerRecorder, "installed", lambda self: dspy.context())
    with pytest.raises(WrongAnswersError, match="in the books"):
        measure("threads-pooled", api_base, 4, 2)


def test_a_row_is_measured_in_a_process_of_its_own():
    (row,) = run_client(ClientOptions(rows=("client",), rollouts=5, workers=2, times=1))
    assert (row.name, row.rate) == ("client", row.lowest)
    assert row.rate > 0


def test_the_median_of_the_measurements_counts(monkeypatch):
    rates = iter([100.0, 300.0, 200.0, 50.0])
    measured = lambda *given: Measured(given[2], given[2] / next(rates), 1.0, ((0, 1), (given[2], 2)))  # noqa: E731
    monkeypatch.setattr(client, "_measured", measured)
    options = ClientOptions(rows=("threads-pooled",), rollouts=400, memory=1_000)
    row, watched = run_client(options)
    assert (row.rate, row.lowest, row.highest) == (200.0, 100.0, 300.0)
    assert row.cpu_ms == 1000 / 400
    assert watched.memory == ((0, 1), (1_000, 2))
    assert json.loads(json.dumps(client_record(options, [row, watched], "it")))["rows"][0]["lowest"] == 100.0


def test_growth_counts_once_dspys_history_is_full():
    memory = tuple((at, 10**8 + (0 if at > 10_000 else at) * 5_000 + at * 7) for at in range(0, 50_001, 2_500))
    row = ClientRow("threads-pooled", 1.0, 1.0, 1.0, 1.0, memory)
    assert row.growth == pytest.approx(7)
    assert "+7 bytes a rollout" in table([row])
    assert ClientRow("x", 1.0, 1.0, 1.0, 1.0, memory[:4]).growth is None


def test_the_table_compares_with_evaluate():
    rows = [ClientRow("evaluate-plain", 100.0, 5.0, 90.0, 110.0), ClientRow("threads-pooled", 450.0, 1.5, 400.0, 500.0)]
    assert "| Combee, threads, pooled | 450 | 400 to 500 | 1.50 | 4.50 × |" in table(rows)
    assert "×" not in table(rows[1:])


def test_a_process_that_fails_says_why():
    with pytest.raises(ServiceError, match=r"(?s)client could not be measured: .*refused"):
        client._measured("client", "http://127.0.0.1:1/v1", 1, 1)


@pytest.mark.parametrize("wrong", [{"rows": ("client", "nobody")}, {"rollouts": 0}, {"times": 0}, {"memory": -1}])
def test_options_that_cannot_be_are_refused(wrong):
    with pytest.raises(ArgumentValueError):
        ClientOptions(**wrong)
