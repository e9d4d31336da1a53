"""Callers see the version that serves, whatever the other one does; and every shadow is accounted
for.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import dspy
import pytest

from combee_dspy import Privacy
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.traces import JournalTraces
from combee_dspy.tracking import overview, rollouts, runs, write_report
from combee_strategist.canary import CanaryPlan, CanaryProgram, promote, rollback, status
from combee_strategist.exceptions import RegistryError
from plugins.strategist.tests.canaries import PROGRAM, QUICK, ask, lm_for, metric


def serving(lm):
    return dspy.context(lm=lm, adapter=dspy.ChatAdapter())


def raises():
    raise ValueError("the challenger is broken")


def journal(program):
    return program._recorder._journal.path


def test_callers_get_the_incumbent_and_both_are_scored(published, server, tmp_path):
    registry = published()
    with serving(lm_for(lambda: "right")):
        program = server(registry)
        assert program.versions == (1, 2)
        assert ask(program, 30) == ["wrong"] * 30
        program.close()
    assert program.counts() == {"sampled": 30, "answered": 30, "scored": 30}
    found = status(registry, tmp_path / "serving")
    assert (found.pairs, found.difference) == (30, 1.0)
    sides = {
        one["version"]: (one["requests"], one["errors"], one["score"]) for one in found.versions
    }
    assert sides == {"v1 serving": (30, 0, 0.0), "v2 shadow": (30, 0, 30.0)}
    assert all(one["tokens"] > 0 for one in found.versions)
    assert found.shadows["answered"] == 30
    assert {row["role"] for row in overview(journal(program))[0]["costs"]} == {"serving"}


def test_a_challenger_that_raises_hangs_and_floods_is_seen_by_no_caller(published, server):
    stop = threading.Event()
    hung = iter(range(10_000))

    def moody():
        number = next(hung)
        if number % 2:
            raise ValueError("broken")
        stop.wait(20)
        return "late"

    registry = published()
    with serving(lm_for(moody)):
        program = server(registry, serving={"timeout": 0.1, "workers": 2, "queue": 4})
        with ThreadPoolExecutor(4) as callers:
            import contextvars

            asked = [
                callers.submit(contextvars.copy_context().run, ask, program, 10, start)
                for start in range(0, 40, 10)
            ]
            assert [one for done in asked for one in done.result()] == ["wrong"] * 40

        async def several():
            found = await asyncio.gather(
                *(program.acall(question="How long?", request_id=f"a{n}") for n in range(40))
            )
            return [one.answer for one in found]

        assert asyncio.run(several()) == ["wrong"] * 40
        end = time.monotonic() + 10
        while not program.counts().get("timed out") and time.monotonic() < end:
            time.sleep(0.01)
        stop.set()
        assert program._pool.idle(10)
        assert program._scorers.idle(10)
        found = program.counts()
        program.close()
    assert found["sampled"] == 80
    assert found["sampled"] == sum(
        found[one] for one in ("dropped", "answered", "raised", "timed out")
    )
    assert found["dropped"] > 0
    assert found["timed out"] > 0
    # A failure counts as a score of 0; what was dropped leaves no pair.
    assert found["scored"] == found["raised"] + found["timed out"] + found["answered"]


def test_what_waits_when_the_server_closes_is_counted_too(published, server):
    stop = threading.Event()
    registry = published()
    with serving(lm_for(lambda: str(stop.wait(20)))):
        program = server(registry, serving={"workers": 1, "queue": 10})
        ask(program, 8)
        program.close(0.05)
        stop.set()
    found = program.counts()
    # One was running: it has no outcome yet.
    assert (found["sampled"], found["dropped"]) == (8, 7)


def test_an_answer_of_the_users_own_kind_reaches_the_caller(published, mlflow_store, tmp_path):
    class Ordered(dspy.Predict):
        def forward(self, **given):
            return SimpleNamespace(items=["a kettle", super().forward(**given).answer])

    with serving(lm_for(lambda: "right")):
        program = CanaryProgram(
            published().name,
            Ordered("question -> answer"),
            judge=lambda *given: 1.0,
            log_dir=tmp_path,
            uri=mlflow_store,
        )
        assert program(question="What was bought?").items == ["a kettle", "wrong"]
        program.close()


def test_the_incumbents_error_is_the_callers(published, server):
    with serving(lm_for(lambda: "right", raises)):
        program = server(published())
        with pytest.raises(Exception, match="the challenger is broken"):
            ask(program, 1)


def test_shares_are_sticky(published, server):
    with serving(lm_for(lambda: "right")):
        program = server(published(), serving={"shadow": 0.3})
        ask(program, 100)
        assert program._pool.idle(10)
        first = program.counts()["sampled"]
        assert 15 < first < 45
        ask(program, 100)
        assert program._pool.idle(10)
        assert program.counts()["sampled"] == 2 * first


def test_no_shadow_runs_where_no_share_is_given_and_the_caller_keeps_its_trace(published, server):
    with serving(lm_for(lambda: "right")):
        quiet, loud = server(published(), serving={"shadow": 0.0}), server(published())
        ask(quiet, 10)
        assert quiet.counts() == {}
        with dspy.context(trace=[]), dspy.track_usage() as usage:
            ask(loud, 1)
            assert loud._pool.idle(10)
            assert len(dspy.settings.trace) == 1
        assert loud.counts()["answered"] == 1
        assert len(next(iter(usage.usage_data.values()))) == 1


def test_a_share_of_requests_is_answered_by_the_challenger_where_it_is_asked_for(
    published, server, tmp_path
):
    registry = published()
    with serving(lm_for(lambda: "right")):
        program = server(registry, serving={"live": 0.5})
        answers = ask(program, 60)
        program.close()
    assert 15 < answers.count("right") < 45
    # Who answered first changes nothing about a pair.
    found = status(registry, tmp_path / "serving")
    assert (found.pairs, found.difference) == (60, 1.0)


def test_a_live_challenger_that_fails_is_followed_by_the_incumbent_and_counts_as_failed(
    published, server, tmp_path
):
    registry = published()
    with serving(lm_for(raises, lambda: "right")):
        program = server(registry, serving={"live": 1.0})
        assert ask(program, 20) == ["right"] * 20
        program.close()
    assert program.counts() == {"sampled": 20, "raised": 20, "scored": 20}
    assert status(registry, tmp_path / "serving").difference == -1.0


def test_labels_that_come_later_score_what_waits_for_them(published, server, tmp_path):
    registry = published()
    with serving(lm_for(lambda: "right")):
        program = server(registry, judged=False, serving={"labels": 5})
        for number in range(8):
            ask(program, 1, number)
            assert program._pool.idle(10)  # one pushed out without its shadow is no pair
        assert "scored" not in program.counts()
        assert [program.feedback(f"r{n}", label="wrong") for n in range(8)] == [False] * 3 + [
            True
        ] * 5
        assert not program.feedback("r7", label="wrong")
        assert not program.feedback("unknown", label="wrong")
        program.close()
    assert program.counts()["scored"] == 5
    assert program.counts()["pushed out"] == 3
    assert program.counts()["labels without a request"] == 5
    assert status(registry, tmp_path / "serving").difference == -1.0


def test_a_judge_is_asked_where_labels_do_not_come(published, server, monkeypatch):
    monkeypatch.setattr("combee_strategist.canary._serving._LABEL_SECONDS", 0.0)
    asked = []

    def judge(gold, pred, *more):
        asked.append(gold.toDict())
        return 1.0

    with serving(lm_for(lambda: "right")):
        program = server(published(), judged=False, metric=metric, judge=judge)
        ask(program, 3)
        program.close()
    assert len(asked) == 6
    assert set(asked[0]) == {"question"}


@pytest.mark.parametrize("value", [float("nan"), 7.0, "good"])
def test_a_score_that_cannot_be_compared_is_counted_and_used_for_nothing(
    published, server, tmp_path, value
):
    registry = published()
    with serving(lm_for(lambda: "right")):
        program = server(registry, judged=False, metric=None, judge=lambda *given: value)
        ask(program, 3)
        program.close()
    assert program.counts()["not scored"] == 3
    assert status(registry, tmp_path / "serving").pairs == 0


def test_a_running_server_follows_the_alias_and_the_same_id_counts_once(
    published, server, tmp_path
):
    registry = published()
    with serving(lm_for(lambda: "right")):
        program, other = server(registry), server(registry, serving={"ttl": 0.01})
        for one in (program, other):
            ask(one, 40)
            assert one._pool.idle(10)
        for one in (program, other):
            one._recorder.tell()
        # Journals are read while servers write to them.
        while status(registry, tmp_path / "serving").pairs < 40:
            pass
        assert promote(registry, tmp_path / "serving").pairs == 40
        assert ask(program, 1) == ["wrong"]
        program.refresh()
        assert program.versions == (2, None)
        assert ask(program, 1) == ["right"]
        rollback(registry)
        program.refresh()
        assert ask(program, 1) == ["wrong"]
        # The other one looks by itself.
        while other.versions != (1, None):
            pass


def test_a_registry_that_is_gone_changes_nothing_for_callers(published, server, monkeypatch):
    with serving(lm_for(lambda: "right")):
        program = server(published())

        def down(*given):
            raise RegistryError("qa", "connection refused")

        monkeypatch.setattr(program._registry, "at", down)
        with pytest.raises(RegistryError):
            program.refresh()
        assert ask(program, 2) == ["wrong"] * 2


def test_a_challenger_whose_errors_breach_the_bound_is_withdrawn(published, server):
    registry = published(CanaryPlan(epsilon=0.2, window=20, errors=0.2))
    with serving(lm_for(raises)):
        program = server(registry)
        ask(program, 4)
        assert program._pool.idle(10)
        program.refresh()
        assert registry.at("challenger") == 2  # too few to tell
        ask(program, 10, start=10)
        assert program._pool.idle(10)
        program.refresh()
    last = registry.audit()[-1]
    assert (last["action"], last["from"], last["who"]) == ("withdraw", 2, "combee (automatic)")
    assert "14 of the last 14 requests failed" in last["why"]
    assert (registry.at("production"), registry.at("challenger")) == (1, None)


def test_a_challenger_that_fails_where_the_incumbent_fails_too_stays(published, server):
    registry = published(CanaryPlan(epsilon=0.2, window=20, errors=0.2))
    with serving(lm_for(raises, raises)):
        program = server(registry)
        for n in range(20):
            with pytest.raises(Exception, match="broken"):
                ask(program, 1, start=n)
        assert program._pool.idle(10)
        program.refresh()
    assert registry.at("challenger") == 2


@pytest.mark.parametrize("breach", ["errors", "score"])
def test_a_promoted_version_that_breaches_a_bound_is_rolled_back_once(
    published, server, tmp_path, breach
):
    registry = published(CanaryPlan(epsilon=0.2, pairs=20, hours=0, window=20, score=0.5))
    turned = []

    def answer():
        return "right" if not turned else raises() if breach == "errors" else "wrong"

    with serving(lm_for(answer)):
        program = server(registry)
        ask(program, 40)
        program.close()
        promote(registry, tmp_path / "serving")
        program = server(registry)
        turned.append(True)
        for n in range(30):
            if breach == "errors":
                with pytest.raises(Exception, match="broken"):
                    ask(program, 1, start=n)
            else:
                ask(program, 1, start=n)
        assert program._pool.idle(10)
        program.refresh()
        program.refresh()
        assert registry.at("production") == 1
        moves = [line for line in registry.audit() if line["action"] == "rollback"]
        assert [(one["from"], one["to"], one["who"]) for one in moves] == [
            (2, 1, "combee (automatic)")
        ]
        # What the run began with was never promoted: no bound takes it back.
        ask(program, 30)
        assert program._pool.idle(10)
        program.refresh()
        assert registry.at("production") == 1


def test_a_challenger_that_was_edited_is_not_tried(published, server, caplog):
    registry = published()
    registry._client.set_prompt_version_tag(registry.name, 2, "mlflow.prompt.text", "{}")
    with serving(lm_for(lambda: "right")):
        program = server(registry)
        assert program.versions == (1, None)
    assert "not as it was published" in caplog.text


def test_labels_may_come_after_a_restart_or_to_another_server_where_texts_are_kept(
    published, server, tmp_path
):
    registry = published()
    with serving(lm_for(lambda: "right")):
        first = server(registry, judged=False, privacy=Privacy(texts="all"))
        other = server(registry, judged=False, privacy=Privacy(texts="all"))
        ask(first, 5)
        assert first._pool.idle(10)
        assert first.feedback("r0", label="wrong")
        asyncio.run(first._recorder._log.written())
        assert other.feedback("r1", label="wrong")
        other._recorder.lookups.idle(10)
        assert other._scorers.idle(10)
        first.close()
        assert other.feedback("r2", label="right")
        assert other.feedback("nobody's", label="right")
        other.close()
        quiet = server(registry, judged=False)
        assert not quiet.feedback("r3", label="right")
    assert other.counts() == {"scored": 2, "labels without a request": 1}
    found = status(registry, tmp_path / "serving")
    assert (found.pairs, found.difference) == (3, pytest.approx(-1 / 3))
    assert {one["version"]: one["requests"] for one in found.versions} == {
        "v1 serving": 5,
        "v2 shadow": 5,
    }


def test_labels_of_unknown_requests_push_nobody_out(published, server):
    with serving(lm_for(lambda: "right")):
        program = server(
            published(), judged=False, privacy=Privacy(texts="all"), serving={"labels": 20}
        )
        ask(program, 20)
        assert program._pool.idle(10)
        refused = sum(
            not program.feedback(f"nobody's {number}", label="right") for number in range(20_000)
        )
        assert all(program.feedback(f"r{number}", label="right") for number in range(20))
        assert program._scorers.idle(10)
        counts = program.counts()
    assert counts["scored"] == 20
    assert counts["labels refused"] == refused > 10_000


def test_shadows_that_hang_keep_no_pair_from_being_scored(published, server):
    go, stop, asked = threading.Event(), threading.Event(), iter(range(10))

    def slow():
        (stop if next(asked) else go).wait(30)
        return "right"

    with serving(lm_for(slow)):
        program = server(published(), serving={"workers": 1, "timeout": 30.0})
        ask(program, 2)
        go.set()
        end = time.monotonic() + 10
        while not program.counts().get("scored") and time.monotonic() < end:
            time.sleep(0.01)
        found = program.counts()
        stop.set()
    assert found == {"sampled": 2, "answered": 1, "scored": 1}


def test_hours_are_those_of_the_requests_not_of_their_labels(published, server, tmp_path):
    registry = published()
    with serving(lm_for(lambda: "right")):
        program = server(registry, judged=False)
        ask(program, 2)
        assert program._pool.idle(10)
        next(iter(program._recorder._waiting.values())).answers[0].started -= 7200
        for n in range(2):
            program.feedback(f"r{n}", label="right")
        program.close()
    assert status(registry, tmp_path / "serving").hours == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize("texts", ["hashes", "redacted", "all"])
def test_texts_of_requests_are_kept_as_configured(published, server, texts):
    key = "sk-" + "canary0123456789abcdef"
    said = f"Write to ana@example.com, please. {key}"
    with serving(lm_for(lambda: "right", lambda: said)):
        program = server(published(), privacy=Privacy(texts=texts))
        program(question=said, request_id="ana@example.com")
        program.close()
    with closing(sqlite3.connect(journal(program))) as connection:
        rows = connection.execute("SELECT value, example, data FROM effect, event").fetchall()
    kept = str(rows)
    assert ("ana@example.com" in kept) is (texts == "all")
    assert ("[email], please" in kept) is (texts == "redacted")
    assert key not in kept
    assert len(rollouts(journal(program))) == 2


def test_a_servers_journal_is_read_as_a_runs(published, server, tmp_path):
    with serving(lm_for(lambda: "right")):
        program = server(published())
        ask(program, 3)
        program.close()
    (one,) = runs(journal(program))
    assert (one["state"], one["rollouts"]) == ("finished", 6)
    page = write_report(journal(program), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "shadow" in page


@pytest.mark.parametrize("texts", ["redacted", "hashes"])
def test_what_was_served_is_traces_where_its_texts_are_kept(texts, published, server):
    with serving(lm_for(lambda: "right")):
        program = server(published(), privacy=Privacy(texts=texts))
        ask(program, 2)
        program.close()
    source = JournalTraces(str(journal(program)))
    if texts == "hashes":
        with pytest.raises(ArgumentValueError, match="keeps hashes alone"):
            next(source.read())
    else:
        traces = sorted(
            (trace.inputs["question"], trace.prompt, trace.score) for trace in source.read()
        )
        assert traces == [
            (f"How long is {number}?", version, score)
            for number in range(2)
            for version, score in (("v1", 0.0), ("v2", 1.0))
        ]


def test_what_is_no_program_is_refused_and_so_is_a_name_that_nobody_published(
    published, mlflow_store
):
    with pytest.raises(ArgumentTypeError, match="no DSPy program"):
        CanaryProgram("qa", "question -> answer", uri=mlflow_store)  # type: ignore[arg-type]
    with pytest.raises(RegistryError, match="nothing is in production"):
        CanaryProgram("nobody", PROGRAM, uri=mlflow_store)
    with pytest.raises(RegistryError, match="has components"):
        CanaryProgram(
            published(QUICK).name, dspy.ReAct("question -> answer", tools=[]), uri=mlflow_store
        )


def test_prometheus_counts_what_the_server_counts(published, server):
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    with serving(lm_for(lambda: "right")):
        program = server(published(), prometheus=registry)
        ask(program, 5)
        program.close()
    text = prometheus.generate_latest(registry).decode()
    assert (
        f'combee_request_seconds_count{{program="{program._name}",purpose="shadow",version="2"}} 5.0'
        in text
    )
    assert f'combee_shadows_total{{outcome="answered",program="{program._name}"}} 5.0' in text
