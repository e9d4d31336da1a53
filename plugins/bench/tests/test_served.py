"""A model served by ``Live`` from the first request on, with a scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest

from combee_dspy.testing import ScriptedLM
from plugins.bench.tests.test_real_study import _in_json
from studies.fortnight import served
from studies.fortnight.served import ServedOptions, run, table


@pytest.mark.slow
def test_what_a_model_is_taught_reaches_production(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def scripted(name: str, **where: object) -> tuple[ScriptedLM, None]:
        return ScriptedLM(_in_json, cache=False), None

    monkeypatch.setattr(served, "model_lm", scripted)
    options = ServedOptions(
        lm="openai/m", folder=tmp_path, requests=160, hours=40, labelled=0.6, slots=2
    )
    first, *blocks, last = run(options)
    assert sum(row.requests for row in blocks) == 160
    assert last.right > first.right + 40
    assert any("promote" in decision for row in blocks for decision in row.decisions)
    assert sum(row.labels[0] for row in blocks) > 40
    assert "| held-out |" in table(options, [first, *blocks, last])
    assert (tmp_path / "live.html").exists()
