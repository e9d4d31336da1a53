"""What is published stays as it was, and every change is told; killed at any point, one version
serves.
"""

from __future__ import annotations

import hashlib
import json

import pytest

from combee_dspy.exceptions import ArgumentValueError, RefusedError
from combee_strategist.canary import (
    CanaryPlan,
    Registry,
    promote,
    publish,
    rollback,
    status,
    withdraw,
)
from combee_strategist.exceptions import PromotionRefusedError, RegistryError
from plugins.strategist.tests.canaries import LESSON, QUICK, ask, compiled, lm_for


class KilledError(BaseException):
    """The process is gone."""


def test_the_first_publication_registers_both_programs(published):
    registry = published()
    assert (registry.at("production"), registry.at("challenger")) == (1, 2)
    before, after = registry.version(1), registry.version(2)
    assert LESSON not in str(before.texts)
    assert LESSON in str(after.texts)
    assert before.receipt is None
    assert after.receipt["difference"]["after"] == 1.0
    assert after.receipt["stage"] == "read"
    assert after.plan.epsilon == 0.2
    assert after.plan.target == after.receipt["difference"]["before"] == 0.0
    first, second = registry.audit()
    assert (second["who"], second["why"], second["action"], second["to"]) == (
        "ada",
        "for a test",
        "publish",
        2,
    )
    assert first["to"] == 1


def test_a_run_without_a_held_out_receipt_is_refused(tmp_path, mlflow_store):
    folder = compiled(tmp_path / "run", heldout=False)
    with pytest.raises(ArgumentValueError, match="no held-out receipt"):
        publish(folder, "never", uri=mlflow_store)
    assert Registry("never", mlflow_store).at("challenger") is None


def test_a_second_challenger_waits_for_the_first(published, learned, mlflow_store):
    registry = published()
    with pytest.raises(ArgumentValueError, match="has a challenger already"):
        publish(learned, registry.name, QUICK, uri=mlflow_store, why="for a test")
    assert withdraw(registry, why="another one") == 2
    assert publish(learned, registry.name, QUICK, uri=mlflow_store, why="for a test") == 3


def written_over(registry, **terms):
    """Write over a published document by MLflow's own client, and return its new SHA-256."""
    document = json.loads(registry._client.get_prompt_version(registry.name, 2).template)
    text = json.dumps({**document, "plan": {**document["plan"], **terms}})
    registry._client.set_prompt_version_tag(registry.name, 2, "mlflow.prompt.text", text)
    return hashlib.sha256(text.encode()).hexdigest()


def audit_line(registry):
    """Return key and value of the tag that says what was published as the challenger."""
    tags = registry._client.get_prompt(registry.name).tags.items()
    return next((key, json.loads(text)) for key, text in tags if '"to": 2' in text)


@pytest.mark.parametrize("way", ["text", "line gone", "line added"])
def test_what_mlflows_client_has_written_over_is_refused(published, way):
    registry = published()
    digest = written_over(registry, epsilon=0.9)
    key, line = audit_line(registry)
    if way == "line gone":
        registry._client.delete_prompt_tag(registry.name, key)
    if way == "line added":
        registry._client.set_prompt_tag(
            registry.name, f"{key}x", json.dumps({**line, "sha256": digest})
        )
    for refused in (
        lambda: registry.version(2),
        lambda: status(registry),
        lambda: promote(registry),
    ):
        with pytest.raises(RegistryError, match="not as it was published"):
            refused()


def test_terms_that_were_written_over_audit_line_and_all_have_no_evidence(
    published, server, dspy_context, folder
):
    registry = ready(published, server, dspy_context, CanaryPlan(epsilon=0.2, pairs=500, hours=0))
    digest = written_over(registry, pairs=20)
    key, line = audit_line(registry)
    registry._client.set_prompt_tag(registry.name, key, json.dumps({**line, "sha256": digest}))
    with pytest.raises(PromotionRefusedError, match="0 of 20 pairs are scored"):
        promote(registry, folder)


def test_an_alias_that_was_moved_past_the_audit_is_told(published):
    registry = published()
    assert status(registry).missing[0].startswith("0 of 20 pairs")
    registry._client.set_prompt_alias(registry.name, "production", 2)
    assert (
        status(registry).missing[0] == "version 2 is in production, and no audit line put it there"
    )
    with pytest.raises(PromotionRefusedError, match="no audit line"):
        promote(registry)


def test_no_argument_of_promote_moves_epsilon(published):
    with pytest.raises(TypeError):
        promote(published(), epsilon=0.5)


def ready(published, server, dspy_context, plan=QUICK):
    registry = published(plan)
    with dspy_context(lm_for(lambda: "right")):
        program = server(registry)
        ask(program, 60)
        program.close()
    return registry


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "serving"


@pytest.fixture
def dspy_context():
    import dspy

    return lambda lm: dspy.context(lm=lm, adapter=dspy.ChatAdapter())


def test_promotion_and_rollback_leave_audit_lines(published, server, dspy_context, folder):
    registry = ready(published, server, dspy_context)
    found = promote(registry, folder, who="bea", why="it is better")
    assert (found.pairs, found.difference, found.missing) == (60, 1.0, ())
    assert found.low > 0.8
    assert registry.at("production") == 2
    # No journal and no run is needed any more.
    assert rollback(registry, who="cy", why="complaints") == 1
    assert (registry.at("production"), registry.at("challenger")) == (1, None)
    lines = [
        (one["action"], one["from"], one["to"], one["who"], one["carried_out"])
        for one in registry.audit()
    ]
    assert lines[2:] == [
        ("promote", 1, 2, "bea", True),
        ("rollback", 2, 1, "cy", True),
        ("withdraw", 2, None, "cy", True),
    ]
    with pytest.raises(ArgumentValueError, match="nothing in production that was promoted"):
        rollback(registry)


def test_what_was_rolled_back_is_not_promoted_by_its_old_evidence(
    published, server, dspy_context, folder
):
    registry = ready(published, server, dspy_context)
    promote(registry, folder)
    rollback(registry)
    registry._client.set_prompt_alias(registry.name, "challenger", 2)
    with pytest.raises(PromotionRefusedError, match="was rolled back"):
        promote(registry, folder)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_killed_in_a_promotion_one_version_serves_and_the_audit_tells_which(
    published, server, dspy_context, folder, monkeypatch, after
):
    registry = ready(published, server, dspy_context)
    writes = []
    for name in ("set_prompt_tag", "set_prompt_alias"):
        real = getattr(registry._client, name)

        def dies(*given, real=real):
            if len(writes) == after:
                raise KilledError
            writes.append(given)
            return real(*given)

        monkeypatch.setattr(registry._client, name, dies)
    if after < 2:
        with pytest.raises(KilledError):
            promote(registry, folder)
    else:
        promote(registry, folder)
    again = Registry(registry.name, registry._client.tracking_uri)
    assert again.at("production") == (2 if after == 2 else 1)
    moves = [line["carried_out"] for line in again.audit() if line["action"] == "promote"]
    assert moves == [[], [False], [True]][after]
    if after < 2:
        promote(again, folder)
        assert again.at("production") == 2
        assert [line["carried_out"] for line in again.audit() if line["action"] == "promote"][-1]


@pytest.mark.parametrize(
    "spoiled", ["promote", "publish 1", "publish 2", "all"], ids=lambda name: name.replace(" ", "-")
)
@pytest.mark.parametrize("text", ["{", '{"action": "promote"}'])
def test_a_spoiled_audit_line_keeps_nobody_from_rolling_back(
    published, server, dspy_context, folder, spoiled, text
):
    registry = ready(published, server, dspy_context)
    promote(registry, folder)
    for key, value in registry._client.get_prompt(registry.name).tags.items():
        line = json.loads(value) if key.startswith("combee.audit.") else {}
        if line and spoiled in ("all", line["action"], f"{line['action']} {line['to']}"):
            registry._client.set_prompt_tag(registry.name, key, text)

    assert rollback(registry, only=2) == 1
    assert registry.at("production") == 1
    assert registry.version(1).number == 1
    assert "unreadable" in {line["action"] for line in registry.audit()}


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (CanaryPlan(epsilon=0.2, pairs=500, hours=0), "60 of 500 pairs are scored"),
        (CanaryPlan(epsilon=0.2, pairs=20, hours=24), "0.00 of 24 hours have passed"),
        (CanaryPlan(epsilon=0.2, pairs=20, hours=0, target=1.0), None),
    ],
)
def test_a_promotion_says_what_is_missing(published, server, dspy_context, folder, plan, said):
    registry = ready(published, server, dspy_context, plan)
    if said is None:
        assert promote(registry, folder).heldout == 1.0
        return
    with pytest.raises(PromotionRefusedError) as caught:
        promote(registry, folder)
    assert caught.value.missing == (said,)
    assert registry.at("production") == 1


@pytest.mark.parametrize("receipt", [None, {"stage": "pinned", "difference": {"after": 1.0}}])
def test_a_version_without_a_held_out_receipt_is_not_promoted(published, receipt):
    registry = published()
    withdraw(registry)
    version = registry.version(2)
    document = json.loads(registry._client.get_prompt_version(registry.name, 2).template)
    assert version.receipt is not None
    # What a train score would be promoted by: figures that were read of no held-out set.
    registry.add({**document, "receipt": receipt}, "challenger", None, "by hand")
    with pytest.raises(PromotionRefusedError, match="no held-out receipt"):
        promote(registry)


def test_a_registry_that_does_not_answer_says_so():
    with pytest.raises(RegistryError, match="cannot be used"):
        Registry("qa", "http://127.0.0.1:9").at("production")


@pytest.mark.parametrize("why", ["", "quick", "now now now"])
def test_a_canary_of_six_minutes_needs_a_reason_on_record(learned, mlflow_store, why):
    plan = CanaryPlan(hours=0.1)
    with pytest.raises(RefusedError, match=r"a canary of 0\.1 hours without a reason on record"):
        publish(learned, "hurried", plan, uri=mlflow_store, why=why)
    assert Registry("hurried", mlflow_store).at("challenger") is None
    publish(learned, "hurried", plan, uri=mlflow_store, why="the service closes at noon")
    registry = Registry("hurried", mlflow_store)
    assert registry.audit()[-1]["why"] == "the service closes at noon"
    registry.withdraw(2, "ada", "the next case publishes it anew")
