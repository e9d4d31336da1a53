"""What the learner has decided, for a server's ``/metrics``: the extra ``prometheus``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from combee_strategist.live._records import LiveDecision

__all__ = ["LiveCollector"]


class LiveCollector:
    """Counts decisions when somebody asks; any process with the journals may show them.

    Args:
        name: The program's name in the registry.
        decisions: Returns all decisions so far.
    """

    def __init__(self, name: str, decisions: Callable[[], Sequence[LiveDecision]]) -> None:
        self._name, self._decisions = name, decisions

    def collect(self) -> Iterator[Any]:
        """Yield the counters, as ``prometheus_client`` asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        decisions = self._decisions()
        family = CounterMetricFamily(
            "combee_live_decisions", "Decisions by action.", labels=("program", "action")
        )
        for action, count in sorted(Counter(item.action for item in decisions).items()):
            family.add_metric((self._name, action), count)
        yield family
        moves = [item for item in decisions if item.action in ("propose", "promote", "withdraw")]
        open_trials = GaugeMetricFamily(
            "combee_live_open_trials", "Whether a version is on trial.", labels=("program",)
        )
        open_trials.add_metric((self._name,), bool(moves) and moves[-1].action == "propose")
        yield open_trials
