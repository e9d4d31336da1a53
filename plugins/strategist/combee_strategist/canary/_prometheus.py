"""Counters and histograms for Prometheus: the extra ``prometheus``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from combee_dspy.exceptions import MissingDistributionError
from combee_strategist.canary._pairs import Answer

__all__ = ["observer"]


def observer(
    name: str, registry: Any, counts: Callable[[], Mapping[str, int]]
) -> Callable[[Answer], None]:
    """Return what is told of each answer; ``registry`` is what a server's ``/metrics`` shows."""
    try:
        from prometheus_client import Counter, Histogram
        from prometheus_client.core import CounterMetricFamily
    except ImportError as error:
        raise MissingDistributionError(
            "CanaryProgram(prometheus=…)", "combee-strategist[prometheus]"
        ) from error
    labels = ("program", "version", "purpose")
    seconds = Histogram(
        "combee_request_seconds", "Seconds of one version's answer.", labels, registry=registry
    )
    errors = Counter("combee_request_errors", "Answers that failed.", labels, registry=registry)
    tokens = Counter("combee_request_tokens", "Tokens in and out.", labels, registry=registry)
    dollars = Counter(
        "combee_request_dollars", "Dollars, as far as prices are known.", labels, registry=registry
    )

    class Shadows:
        """What became of shadows, read when somebody asks."""

        def collect(self) -> Iterator[Any]:
            family = CounterMetricFamily(
                "combee_shadows", "What became of shadows.", labels=("program", "outcome")
            )
            for outcome, count in counts().items():
                family.add_metric((name, outcome), count)
            yield family

    registry.register(Shadows())

    def observe(answer: Answer) -> None:
        of = (name, str(answer.version), answer.purpose)
        seconds.labels(*of).observe(answer.seconds)
        errors.labels(*of).inc(answer.error is not None)
        tokens.labels(*of).inc(
            sum(call.prompt_tokens + call.completion_tokens for call in answer.usage)
        )
        dollars.labels(*of).inc(sum(call.dollars or 0.0 for call in answer.usage))

    return observe
