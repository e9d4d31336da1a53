from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMError

from combee_dspy.costs import Ledger, LedgerRecorder, RolloutMeter, current_meter, role_scope, rollout_scope
from combee_dspy.records import Rollout


def _rollout() -> Rollout:
    return Rollout("id", None, None, (), 1.0)


class Twice(dspy.Module):
    """Asks twice in DSPy's own threads: a context variable of ours would not get there."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        run = dspy.Parallel(num_threads=2, disable_progress_bar=True)
        pairs = [(self.ask, dspy.Example(question=f"{question} n={n}").with_inputs("question")) for n in (1, 2)]
        return run(pairs)[0]


def test_each_rollout_gets_its_own_calls_whatever_threads_make_them(service: Any, lm: dspy.LM) -> None:
    ledger, program = Ledger(), Twice()

    def run(number: int) -> tuple[Any, str]:
        meter = RolloutMeter(submitted=1.0, started=3.5)
        with rollout_scope(meter), dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
            program(question=f"role=task n={number}")
            with role_scope("evaluator"):
                lm(f"role=evaluator n={number}")
        stamped = meter.stamp(_rollout(), score=0.5)
        assert (stamped.queue_seconds, stamped.score) == (2.5, 0.5)
        assert stamped.usage is not None
        return {usage.role: usage for usage in stamped.usage}, stamped.prompt_hash

    with LedgerRecorder(ledger).installed(), ThreadPoolExecutor(8) as pool:
        done = [future.result() for future in [pool.submit(copy_context().run, run, n) for n in range(24)]]
    for usage, _ in done:
        assert (usage["task"].calls, usage["evaluator"].calls) == (2, 1)
    for role in ("task", "evaluator"):
        counts = ledger.snapshot().by_role[role]
        assert sum(usage[role].prompt_tokens for usage, _ in done) == counts.prompt_tokens == service.prompt[role]
        assert sum(usage[role].completion_tokens for usage, _ in done) == service.completion[role]
    # Two calls at once hash the same in any order; other questions hash otherwise.
    hashes = [prompt for _, prompt in done]
    assert len(set(hashes)) == 24
    assert run_again(program, lm) == hashes[3]
    assert current_meter() is None


def run_again(program: Twice, lm: dspy.LM) -> str:
    meter = RolloutMeter()
    with LedgerRecorder(Ledger()).installed(), rollout_scope(meter), dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        program(question="role=task n=3")
    return meter.stamp(_rollout()).prompt_hash


@pytest.mark.usefixtures("fresh_cache")
def test_errors_and_cache_hits_are_the_rollouts_own(service: Any) -> None:
    lm = dspy.LM("openai/gpt-4o-mini", engine=service, cache=True, num_retries=0)
    meter = RolloutMeter()
    with LedgerRecorder(Ledger()).installed(), rollout_scope(meter):
        for text in ("role=task n=1", "role=task n=1", "role=task n=2 fail"):
            try:
                lm(text)
            except LMError:
                assert "fail" in text
    (usage,) = meter.usage()
    assert (usage.calls, usage.cached, usage.errors) == (3, 1, 1)
    assert usage.prompt_tokens == service.prompt["task"]
    assert usage.gpu_seconds is None


def test_gpu_seconds_are_shared_by_rollouts(service: Any, lm: dspy.LM) -> None:
    ledger = Ledger(gpus={"task": 4.0})
    meters = [RolloutMeter(), RolloutMeter()]
    with LedgerRecorder(ledger).installed():
        for meter in meters:
            with rollout_scope(meter):
                lm("role=task n=1")
    shares = [meter.usage()[0].gpu_seconds for meter in meters]
    assert all(share is not None and share > 0 for share in shares)
    assert sum(share for share in shares if share is not None) == pytest.approx(ledger.snapshot().total.gpu_seconds)


def test_every_lm_is_heard_of_once(lm: dspy.LM) -> None:
    outer: list[Any] = []
    inner: list[Any] = []
    with LedgerRecorder(Ledger(), outer.append).installed(), LedgerRecorder(Ledger(), inner.append).installed():
        lm("role=task n=1")
        lm("role=task n=2")
    assert outer == inner == [lm]
