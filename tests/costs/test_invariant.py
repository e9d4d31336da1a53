"""Invariant: the ledger equals the service's own counters, by role, whatever the threads do."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMError

from combee_dspy.costs import Ledger, LedgerRecorder, LMCall, role_scope

ROLES = ("task", "reflector", "proposer", "evaluator")
CALLS = 2_000


def _texts() -> list[tuple[str, str]]:
    stream = random.Random(11)
    texts = []
    for index in range(CALLS):
        role = stream.choice(ROLES)
        # 40 % repeat an earlier text of the same role, so that DSPy's cache answers some of them.
        number = stream.randrange(40) if stream.random() < 0.4 else 1_000 + index
        kind = stream.choices(("", " fail", " flaky"), (0.9, 0.05, 0.05))[0]
        texts.append((role, f"role={role} n={number}{kind}"))
    return texts


@pytest.mark.usefixtures("fresh_cache")
def test_ledger_equals_the_service_over_2000_calls_in_16_threads(service: Any) -> None:
    lm = dspy.LM("openai/gpt-4o-mini", engine=service, cache=True, num_retries=1)
    heard: list[LMCall] = []
    ledger = Ledger(listeners=[heard.append])
    texts = _texts()

    def call(role: str, text: str) -> None:
        with role_scope(role):  # type: ignore[arg-type]  # drawn from ROLES
            try:
                lm(text)
            except LMError:
                assert "fail" in text

    with LedgerRecorder(ledger).installed(), ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(copy_context().run, call, *item) for item in texts]:
            future.result()

    totals = ledger.snapshot()
    assert totals.total.calls == CALLS == len(heard)
    assert {call.call_id for call in heard} == {call.call_id for call in heard if call.call_id}
    assert len({call.call_id for call in heard}) == CALLS
    for role in ROLES:
        counts = totals.by_role[role]
        assert counts.calls == sum(1 for name, _ in texts if name == role)
        assert counts.errors == service.refused[role]
        assert counts.cached == counts.calls - service.answered[role] - service.refused[role]
        assert counts.prompt_tokens == service.prompt[role]
        assert counts.completion_tokens == service.completion[role]
        assert counts.unpriced == 0
        expected = (service.prompt[role] * 0.15 + service.completion[role] * 0.6) / 1_000_000
        assert counts.dollars == pytest.approx(expected, abs=1e-12)
        assert counts == totals.by_model[role, "openai/gpt-4o-mini"]
    assert totals.total.cached > 100
    assert totals.total.errors > 50
    assert service.attempts > sum(service.answered.values()) + sum(service.refused.values())
    assert 1 <= totals.total.peak <= 16
    assert sum(call.prompt_tokens for call in heard) == totals.total.prompt_tokens
