from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from combee_dspy.lms.simulated import LatencyLaw, SimulatedConfig, SimulatedService

LAW = LatencyLaw(ttft=1.0, tokens_per_second=1e9, sigma=0.0)


@pytest.fixture(autouse=True)
def _no_price_table_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def test_the_log_holds_every_call_with_its_times_and_texts() -> None:
    config = SimulatedConfig(latency=LAW, slots=2, time_scale=0.05, log_calls=True)
    with SimulatedService(config) as service:
        lm = service.lm()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: lm(f"Question {number}?"), range(4)))
        calls = service.calls()
        stats = service.stats()
    assert len(calls) == stats.calls == 4
    assert sum(call.seconds for call in calls) == pytest.approx(stats.slot_busy_seconds)
    assert sum(call.completion_tokens for call in calls) == stats.completion_tokens
    assert min(call.arrived for call in calls) == 0.0
    for call in calls:
        assert call.arrived <= call.started <= call.ended
        # Timers never fire early, and a simulated second lasts as long as it says.
        assert call.ended - call.started >= call.seconds * 0.99
        assert call.messages[-1].text.startswith("Question ")
        assert call.text
    # Two slots: two calls waited for those before them.
    assert sorted(call.started - call.arrived for call in calls)[2] >= LAW.ttft * 0.5


def test_a_reset_forgets_the_log_and_without_the_setting_there_is_none() -> None:
    with SimulatedService(SimulatedConfig(time_scale=0.0, log_calls=True)) as service:
        service.lm()("Question?")
        assert len(service.calls()) == 1
        service.reset_stats()
        assert service.calls() == ()
    with SimulatedService(SimulatedConfig(time_scale=0.0)) as service:
        service.lm()("Question?")
        assert service.calls() == ()
