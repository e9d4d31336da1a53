"""A service that refuses by chance, and is not full."""

from __future__ import annotations

import dspy
import pytest

from combee_dspy import Combee
from combee_simulator import FailureRates, LatencyLaw, SimulatedConfig, SimulatedService
from tests.worlds import GATES, events, gate_metric, gate_rows


@pytest.mark.slow
def test_a_third_of_requests_refused_by_chance_leaves_the_limit_where_it_began_or_above(tmp_path):
    config = SimulatedConfig(
        slots=256,
        latency=LatencyLaw(ttft=1.0, sigma=0.2),
        failures=FailureRates(rate_limited=0.3, retry_after=0.2),
        time_scale=0.02,
    )
    with SimulatedService(config, GATES) as service:
        lm = service.lm()
        combee = Combee(
            gate_metric, max_metric_calls=260, reflection_lm=lm, log_dir=tmp_path, tracker=()
        )
        with dspy.context(lm=lm):
            program = combee.compile(
                dspy.Predict("question -> answer"),
                trainset=gate_rows(0, 72),
                valset=gate_rows(72, 112),
            )
        refused = service.stats().by_status["rate_limited"].calls
    assert refused > 40
    assert program.combee_report.rollouts > 100
    limits = [one["limit"] for one in events(tmp_path, "limit")]
    assert limits[-1] >= 8, "the adaptive limit begins at eight"
