from __future__ import annotations

import json
from concurrent.futures import wait

import dspy
import pytest

from combee_dspy.bench.capacity import CapacityOptions, CapacityRow, Phase, capacity_code, run_capacity
from combee_dspy.cli import main
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import pooled
from combee_dspy.lms.simulated import LatencyLaw, SimulatedConfig, SimulatedService
from combee_dspy.rollouts import AdaptiveLimit, Threads, patient
from combee_dspy.rollouts.scheduling import Scheduler


@pytest.mark.parametrize("client", ["plain", "pooled"])
@pytest.mark.parametrize("mode", ["reject", "changing"])
def test_no_rollout_fails_and_the_ceiling_is_kept(mode, client):
    options = CapacityOptions(
        modes=(mode,), clients=(client,), slots=6, rollouts=80, seconds=1.0, time_scale=0.02, ceiling=16
    )

    (row,) = run_capacity(options)

    assert row.failed == 0
    assert 0 < row.peak <= 16
    assert row.rejected > 0
    assert max(limit for _, limit, _ in row.limits) <= 16
    assert "rejected" in {reason for _, _, reason in row.limits}
    assert [phase.slots for phase in row.phases] == ([6] if mode == "reject" else [6, 3])
    json.dumps(row.to_dict())


def test_service_that_queues_rejects_nothing():
    options = CapacityOptions(modes=("queue",), clients=("plain",), slots=4, rollouts=40, time_scale=0.01, ceiling=16)

    (row,) = run_capacity(options)

    assert (row.failed, row.rejected) == (0, 0)


@pytest.mark.parametrize("client", ["plain", "pooled"])
def test_limit_hears_of_every_rejection_of_the_service_and_no_call_is_bought_twice(client):
    config = SimulatedConfig(slots=3, reject_when_full=True, time_scale=0.02, latency=LatencyLaw(ttft=1.0))
    limit = AdaptiveLimit(12, 12)
    with SimulatedService(config) as service:
        if client == "plain":
            lm = patient(service.lm(num_retries=0))
        else:
            lm = patient(pooled("simulated", api_base=service.api_base, api_key="simulated", cache=False))
        session = Scheduler(Threads().start(12), limit=limit)
        program = dspy.Predict("question -> answer")
        with dspy.context(lm=lm):
            questions = [f"Number {number}?" for number in range(24)]
            futures = [session.submit(lambda text: program(question=text), text) for text in questions]
            wait(futures)
        session.close()
        stats = service.stats()

    assert all(future.result().answer for future in futures)
    assert limit.rejections == stats.by_status["rate_limited"].calls > 0
    assert stats.by_status["ok"].calls == 24
    assert limit.current() < 12


def test_command_prints_a_table_and_writes_a_record(tmp_path, capsys):
    file = tmp_path / "capacity.json"
    arguments = ["--modes", "queue", "--clients", "plain", "--slots", "4", "--rollouts", "40", "--time-scale", "0.01"]

    with pytest.raises(SystemExit) as ended:
        main(["bench", "capacity", *arguments, "--json", str(file)])

    assert ended.value.code == 0
    record = json.loads(file.read_text(encoding="utf-8"))
    assert record["simulated"] is True
    assert record["options"]["slots"] == 4
    assert record["rows"][0]["failed"] == 0
    assert "| queue | plain | 4 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong", [{"modes": ("other",)}, {"clients": ()}, {"rollouts": 3}, {"slots": 1}, {"time_scale": 0.0}]
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ArgumentValueError):
        run_capacity(CapacityOptions(**wrong))


def test_only_a_failure_or_a_capacity_that_was_missed_is_an_error():
    def row(mode: str, in_flight: float, failed: int = 0) -> CapacityRow:
        return CapacityRow(mode, "plain", (Phase(37, in_flight, 30.0, 2, 16.0, 18.0),), failed, 2, 50, 60.0, ())

    assert capacity_code([row("reject", 35.0), row("queue", 60.0)]) == 0
    assert capacity_code([row("reject", 41.0)]) == 1
    assert capacity_code([row("queue", 37.0, failed=1)]) == 1


@pytest.mark.parametrize(("first", "then"), [(1, 6), (6, 1)])
def test_service_can_be_given_other_slots_while_it_runs(first, then):
    config = SimulatedConfig(slots=first, reject_when_full=first < then, time_scale=0.05, latency=LatencyLaw(ttft=1.0))
    with SimulatedService(config) as service:
        with pytest.raises(ArgumentValueError):
            service.resize(0)
        service.resize(then)
        session = Threads().start(6)
        with dspy.context(lm=service.lm(num_retries=0)):
            program = dspy.Predict("question -> answer")
            futures = [session.submit(lambda n: program(question=f"Number {n}?"), n) for n in range(6)]
            assert all(future.result().answer for future in futures)
        session.close()
        stats = service.stats()

    assert stats.peak_in_flight <= then
