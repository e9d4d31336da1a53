"""What is published stays as it was, and every change is told; killed at any point, one version serves."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from combee_dspy.canary import CanaryPlan, Registry, promote, publish, rollback, status, withdraw
from combee_dspy.exceptions import ArgumentValueError, PromotionRefusedError, RegistryError
from tests.canary.conftest import LESSON, QUICK, ask, compiled, lm_for


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
    assert (second["who"], second["why"], second["action"], second["to"]) == ("ada", "for a test", "publish", 2)
    assert first["to"] == 1


def test_a_run_without_a_held_out_receipt_is_refused(tmp_path, store):
    folder = compiled(tmp_path / "run", heldout=False)
    with pytest.raises(ArgumentValueError, match="no held-out receipt"):
        publish(folder, "never", uri=store)
    assert Registry("never", store).at("challenger") is None


def test_a_second_challenger_waits_for_the_first(published, learned, store):
    registry = published()
    with pytest.raises(ArgumentValueError, match="has a challenger already"):
        publish(learned, registry.name, QUICK, uri=store)
    assert withdraw(registry, why="another one") == 2
    assert publish(learned, registry.name, QUICK, uri=store) == 3


def edited(store, sql, *values):
    with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as connection:
        assert connection.execute(sql, values).rowcount == 1
        connection.commit()


@pytest.mark.parametrize("also_the_tag", [False, True])
def test_epsilon_that_was_moved_in_the_database_is_noticed(published, store, also_the_tag):
    import hashlib

    registry = published()
    where = "name = ? AND version = '2' AND key ="
    with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as connection:
        sql = f"SELECT value FROM model_version_tags WHERE {where} 'mlflow.prompt.text'"  # noqa: S608 - constants
        text = connection.execute(sql, (registry.name,)).fetchone()[0]
    moved = text.replace('"epsilon": 0.2', '"epsilon": 0.9')
    assert moved != text
    update = f"UPDATE model_version_tags SET value = ? WHERE {where}"  # noqa: S608 - constants
    edited(store, f"{update} 'mlflow.prompt.text'", moved, registry.name)
    if also_the_tag:
        digest = hashlib.sha256(moved.encode()).hexdigest()
        edited(store, f"{update} 'combee.sha256'", digest, registry.name)
    for refused in (lambda: registry.version(2), lambda: status(registry), lambda: promote(registry)):
        with pytest.raises(RegistryError, match="not as it was published"):
            refused()


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
    lines = [(one["action"], one["from"], one["to"], one["who"], one["carried_out"]) for one in registry.audit()]
    assert lines[2:] == [
        ("promote", 1, 2, "bea", True),
        ("rollback", 2, 1, "cy", True),
        ("withdraw", 2, None, "cy", True),
    ]
    with pytest.raises(ArgumentValueError, match="nothing in production that was promoted"):
        rollback(registry)


def test_what_was_rolled_back_is_not_promoted_by_its_old_evidence(published, server, dspy_context, folder):
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
    ("plan", "said"),
    [
        (CanaryPlan(epsilon=0.2, pairs=500, hours=0), "60 pairs are scored of 500"),
        (CanaryPlan(epsilon=0.2, pairs=20, hours=24), "0.00 hours have passed of 24"),
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
