"""Keys that answers, feedback and errors hold reach no file: journal, cache, page or JSON."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.testing import ScriptedRequest
from combee_dspy.tracking import rollouts, show, write_report
from tests.security.test_secret_corpus import SHAPED
from tests.worlds import World, metric, proposer_answer, task_answer

KINDS = ("jwt", "github", "slack bot", "gitlab", "rsa key", "key body", "openai", "npm")


def test_keys_reach_no_file(tmp_path: Path) -> None:
    rng = random.Random("files")
    keys = {kind: SHAPED[kind](rng) for kind in KINDS}
    pat = "".join(rng.choice("abcdef0123456789") for _ in range(40))
    spoken = iter([*keys.values(), f"X-GITHUB_PAT: {pat}"] * 100)

    def leaking(gold: Any, pred: Any, *more: Any) -> Any:
        score = metric(gold, pred)
        if gold.question.endswith("bee?"):
            raise ValueError(f"refused: {next(spoken)}")
        return dspy.Prediction(score=score.score, feedback=f"{score.feedback} {next(spoken)}")

    def answering(request: ScriptedRequest) -> str:
        return task_answer(request).replace("because", json.dumps(next(spoken))[1:-1])

    def reading(request: ScriptedRequest) -> str:
        return proposer_answer(request).replace("Rule:", f"{keys['jwt']} Rule:", 1)

    World.made(answering, reading).compile(
        dspy.ChainOfThought("question -> answer"),
        metric=leaking,
        log_dir=str(tmp_path / "run"),
        cache=str(tmp_path / "cache.sqlite"),
        max_metric_calls=60,
    )
    write_report(tmp_path / "run", tmp_path / "page.html")
    shown = json.dumps([rollouts(tmp_path / "run"), show(tmp_path / "run", "best")], default=str)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    held = b"\n".join([*files, shown.encode()])

    assert b"[redacted]" in held
    for kind, key in keys.items():
        middle = key.splitlines()[len(key.splitlines()) // 2]
        assert middle[len(middle) // 2 :].encode() not in held, kind
    assert pat.encode() not in held
