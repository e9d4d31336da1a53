"""From a run to production and back, by commands alone."""

from __future__ import annotations

import json

import dspy
import pytest

pytest.importorskip("mlflow")

from combee_strategist.canary import CanaryProgram, Serving
from plugins.strategist.tests.canaries import PROGRAM, ask, compiled, lm_for, metric


@pytest.mark.slow
def test_publish_status_promote_and_rollback(shell, tmp_path, mlflow_store):
    run = compiled(tmp_path / "run", heldout=True)
    # A score on rows that were learned from or chosen by promotes nothing, and terms that try
    # nothing are no canary.
    trained = compiled(tmp_path / "trained", heldout=False)
    code, _, err = shell("publish", trained, "--name", "qa", "--registry", mlflow_store)
    assert code == 2
    assert "no held-out receipt" in err
    for wrong in (("--pairs", "0"), ("--epsilon", "1"), ("--hours", "-1")):
        assert shell("publish", run, "--name", "qa", "--registry", mlflow_store, *wrong)[0] == 2
    terms = ["--epsilon", "0.2", "--pairs", "20", "--hours", "0", "--who", "ada"]
    code, _, err = shell("publish", run, "--name", "qa", "--registry", mlflow_store, *terms)
    assert (code, "a canary of 0 hours without a reason on record" in err) == (2, True)
    terms += ["--why", "a test has no day to wait"]
    code, out, err = shell("publish", run, "--name", "qa", "--registry", mlflow_store, *terms)
    assert code == 0, err
    assert "version 2 is the challenger" in out
    given = ["--registry", mlflow_store]
    code, _, err = shell("canary", "promote", "qa", *given)
    assert code == 2
    assert "0 of 20 pairs are scored" in err
    with dspy.context(lm=lm_for(lambda: "right"), adapter=dspy.ChatAdapter()):
        # The folder is the one that commands look into by themselves.
        program = CanaryProgram(
            "qa", PROGRAM, judge=metric, uri=mlflow_store, serving=Serving(shadow=1.0, ttl=3600.0)
        )
        ask(program, 40)
        program.close()
    code, out, _ = shell("canary", "status", "qa", *given)
    assert code == 0
    assert "may be promoted  yes" in out
    assert "epsilon 0.2" in out
    assert "v2 shadow" in out
    code, out, err = shell(
        "canary", "status", "qa", "--json", "--output", tmp_path / "page.html", *given
    )
    found = json.loads(out)
    assert "40 of 20" in (tmp_path / "page.html").read_text()
    assert (found["pairs"], found["difference"], found["challenger"]) == (40, 1.0, 2)
    code, out, _ = shell("canary", "promote", "qa", *given, "--why", "better")
    assert (code, "version 2 is in production" in out) == (0, True)
    code, out, _ = shell("canary", "rollback", "qa", *given, "--why", "complaints")
    assert (code, "version 1 is in production" in out) == (0, True)
    code, out, _ = shell("canary", "status", "qa", *given)
    assert "no: no challenger is on trial" in out
    assert "complaints" in out
    assert json.loads(shell("canary", "status", "qa", "--json", *given)[1])["difference"] is None
    code, _, err = shell("canary", "rollback", "qa", "--challenger", *given)
    assert (code, "has no challenger" in err) == (2, True)
