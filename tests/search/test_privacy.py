"""What of a run's texts is written, what the reflector is shown, and who ran what."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import dspy
import pytest
import yaml

from combee_dspy import Combee, Privacy, Validation, tracking
from combee_dspy.cli._config import RunConfig
from combee_dspy.exceptions import ArgumentError, JournalMismatchError
from combee_dspy.search._privacy import Texts
from combee_dspy.tracking import write_report
from tests.worlds import World, animal_of, events, gepa_metric, in_kind, metric, rows, task_answer

MAIL, PHONE, CARD, TICKET = (
    "ana.lopez@example.com",
    "+49 151 2345 6789",
    "4111 1111 1111 1111",
    "T-99812",
)
SECRETS = (MAIL, PHONE, CARD, TICKET)
REDACTED = Privacy(texts="redacted", patterns={"ticket": r"\bT-\d+"})
HASHES = Privacy(texts="hashes", patterns={"ticket": r"\bT-\d+"})


def telling(gold, pred, trace=None, pred_name=None, pred_trace=None):
    """The score of the world, with feedback that names a person."""
    verdict = metric(gold, pred)
    return dspy.Prediction(
        score=verdict.score, feedback=f"{verdict.feedback} Ask {MAIL} or {PHONE}, {CARD}, {TICKET}."
    )


class Chatty(dspy.Module):
    """Its predictor is given what must not be seen, and its answer may hold it too."""

    def __init__(self):
        super().__init__()
        self.answer = dspy.Predict("question, who -> answer")

    def forward(self, question):
        return self.answer(question=question, who={"mail": [MAIL], "phone": PHONE})


def compiled(folder: Path, world: World | None = None, **kwargs):
    world = world or World.made()
    arguments = {"metric": telling, "log_dir": folder, "max_metric_calls": 60, **kwargs}
    return world, world.compile(Chatty(), train=8, validation=6, heldout=4, **arguments)


def written(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def prompts(world: World) -> str:
    return "\n".join(str(request) for request in world.proposer_lm.requests)


def test_everything_is_written_and_shown_by_default(tmp_path):
    world, _ = compiled(tmp_path)
    assert all(secret.encode() in written(tmp_path) for secret in SECRETS)
    assert MAIL in prompts(world)


@pytest.mark.parametrize("privacy", [REDACTED, HASHES], ids=["redacted", "hashes"])
@pytest.mark.parametrize("artifact", ["instruction", "playbook"])
def test_no_personal_data_reaches_the_journal_or_the_reflector(tmp_path, privacy, artifact):
    # The scripted proposer knows nothing of playbooks: every call of its reflector fails.
    may_fail = Validation(stop_failures=2)
    world, program = compiled(
        tmp_path, privacy=privacy, artifact=artifact, validation_options=may_fail
    )
    assert [secret for secret in SECRETS if secret.encode() in written(tmp_path)] == []
    assert [secret for secret in SECRETS if secret in prompts(world)] == []
    assert "[email]" in prompts(world)
    assert "[ticket]" in prompts(world)
    # The program itself is given the rows as they are, and scored as it is.
    assert MAIL in str(world.task_lm.requests[-1])
    report = program.combee_report
    assert (
        artifact == "playbook" or report.best_score > report.seed_score
    )  # the scripted proposer curates nothing


def test_a_pattern_may_say_where_a_text_ends(tmp_path):
    compiled(tmp_path, privacy=Privacy(texts="redacted", patterns={"code": r"[A-Z]{3,}$"}))
    learned = "\n".join(
        text for candidate in tracking.candidates(tmp_path) for text in candidate["texts"].values()
    )
    assert "Rule: the word for dog is [code]" in learned
    assert not re.search(r"[A-Z]{3,}$", learned, re.MULTILINE)


def test_redaction_changes_no_score(tmp_path):
    plain, redacted = (
        compiled(tmp_path / str(n), privacy=privacy)[1]
        for n, privacy in enumerate((None, REDACTED))
    )
    assert plain.combee_report.seed_score == redacted.combee_report.seed_score


def test_a_redacted_run_goes_on_and_buys_nothing_again(tmp_path):
    world, first = compiled(tmp_path, privacy=REDACTED)
    asked = world.asked
    _, again = compiled(tmp_path, world, privacy=REDACTED)
    assert world.asked == asked
    assert again.combee_report.texts == first.combee_report.texts
    with pytest.raises(JournalMismatchError, match="privacy was"):
        compiled(tmp_path, world)


def test_no_metric_reads_redacted_answers() -> None:
    asked: list[str | None] = []

    @gepa_metric
    def noted(gold: Any, pred: Any, pred_name: str | None) -> Any:
        asked.append(pred_name)
        return metric(gold, pred)

    World.made().compile(metric=noted, privacy=Privacy(texts="redacted"), max_metric_calls=40)
    assert set(asked) == {None}, "feedback on one predictor would be on marks"


def test_hashes_alone_hold_no_text_of_a_rollout(tmp_path):
    compiled(tmp_path, privacy=HASHES)
    for row in rows(
        tmp_path, "SELECT kind, value, error FROM effect WHERE kind IN ('rollout', 'call')"
    ):
        value = json.loads(row["value"])
        texts = [
            value.get("inputs"),
            value.get("feedback"),
            *(value.get("prediction") or value.get("fields")).values(),
        ]
        assert all(re.fullmatch("hash:[0-9a-f]{16}", text) for text in texts if text)
    assert all(rollout["score"] is not None for rollout in tracking.rollouts(tmp_path, limit=None))
    assert "code word" not in str([rollout["feedback"] for rollout in tracking.rollouts(tmp_path)])
    assert tracking.candidates(tmp_path)[-1]["texts"]
    assert not events(tmp_path, "program"), "its demonstrations are rows"


def test_hashes_alone_hold_no_text_of_an_error(tmp_path, caplog):
    def failing(*args, **kwargs):
        raise ValueError(f"cannot propose for {kwargs['reflective_dataset']}")

    def broken(gold, pred, trace=None, pred_name=None, pred_trace=None):
        if int(gold.question.split()[1].rstrip(":")) % 2:
            raise RuntimeError(f"cannot score {gold.question}")
        return metric(gold, pred)

    for seed in range(3):  # the row that is tried first is another one
        compiled(
            tmp_path / str(seed),
            privacy=HASHES,
            metric=broken,
            instruction_proposer=failing,
            seed=seed,
        )
    everything = b"".join(written(tmp_path / str(seed)) for seed in range(3)) + caplog.text.encode()
    assert b"word for" not in everything
    assert b"on the first row that was tried: RuntimeError: hash:" in everything
    assert b"the proposer failed with ValueError: hash:" in everything


def test_the_same_text_has_another_hash_in_another_run(tmp_path):
    for name in ("a", "b"):
        compiled(tmp_path / name, privacy=HASHES)
    first, other = (
        {row["inputs"] for row in tracking.rollouts(tmp_path / name) if row["inputs"]}
        for name in "ab"
    )
    assert first
    assert not first & other


def test_hashes_alone_are_not_gone_on_from_and_the_reason_is_said(tmp_path):
    world, _ = compiled(tmp_path, privacy=HASHES)
    asked, before = world.asked, tracking.runs(tmp_path)
    with pytest.raises(JournalMismatchError, match="it kept hashes alone"):
        compiled(tmp_path, world, privacy=HASHES)
    assert world.asked == asked
    assert tracking.runs(tmp_path) == before


@pytest.mark.parametrize(
    "kwargs",
    [{"cache": "shared.sqlite"}, {"operators": ["few-shot-swap"]}, {"artifact": "memory"}],
)
def test_what_keeps_texts_is_refused_beside_hashes(kwargs):
    with pytest.raises(ArgumentError, match="keeps texts where hashes alone"):
        World.made().combee(privacy=HASHES, **kwargs)


def test_demonstrations_and_a_shared_cache_hold_marks(tmp_path):
    kwargs = {
        "privacy": REDACTED,
        "operators": ["few-shot-swap"],
        "cache": tmp_path / "cache.sqlite",
    }
    world, _ = compiled(tmp_path / "one", **kwargs)
    assert all(
        secret.encode() not in written(tmp_path / "one") + (tmp_path / "cache.sqlite").read_bytes()
        for secret in SECRETS
    )
    # What one run kept with marks, another does not take for the texts themselves.
    asked = world.asked
    compiled(tmp_path / "two", world, cache=tmp_path / "cache.sqlite")
    assert world.asked > asked
    assert MAIL.encode() in written(tmp_path / "two")


def test_who_ran_what_is_one_row_each_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("getpass.getuser", lambda: "ana")
    monkeypatch.setattr("platform.node", lambda: "box7")
    for _ in range(2):
        compiled(tmp_path)
    first, second = tracking.overview(tmp_path)[0]["audit"]
    assert (first["user"], first["host"], first["texts"]) == ("ana", "box7", "all")
    assert first["program"] == second["program"]
    assert first["at"] < second["at"]
    assert first["version"]
    assert first["commit"] is None or re.fullmatch("[0-9a-f]{40}(-dirty)?", first["commit"])
    write_report(tmp_path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Begun by ana on box7" in page
    assert "Went on by ana" in page


@pytest.mark.parametrize("who", ["hash", "none"])
def test_user_and_host_need_not_be_named(tmp_path, monkeypatch, who):
    monkeypatch.setattr("getpass.getuser", lambda: "ana-of-accounting")
    monkeypatch.setattr("platform.node", lambda: "box7-cellar")
    compiled(tmp_path, privacy=Privacy(who=who))
    assert b"ana-of-accounting" not in written(tmp_path)
    assert b"box7-cellar" not in written(tmp_path)
    (row,) = events(tmp_path, "audit")
    assert row["host"] is None
    assert bool(row["user"]) == (who == "hash")


@pytest.mark.parametrize(
    "params",
    [
        {"patterns": {"a": "b"}},
        {"texts": "redacted", "patterns": {"a": "("}},
        {"texts": "redacted", "patterns": {"a": "x*"}},
        {"texts": "redacted", "patterns": {"a b": "x"}},
        {"texts": "some"},
        {"who": "me"},
    ],
)
def test_settings_that_cannot_be_used_are_refused(params):
    with pytest.raises(ArgumentError, match="Privacy"):
        Privacy(**params)


def test_the_file_of_combee_run_sets_it():
    text = "privacy: {texts: redacted, who: hash, patterns: {ticket: 'T-[0-9]+'}}"
    arguments = RunConfig.model_validate(yaml.safe_load(text)).arguments()["privacy"]
    assert arguments == Privacy(texts="redacted", who="hash", patterns={"ticket": "T-[0-9]+"})
    combee = Combee(metric, auto="light", reflection_lm=World.made().proposer_lm, privacy=arguments)
    assert combee.settings.privacy is arguments


def test_examples_and_the_inputs_of_calls_are_marked_too():
    texts = Texts(REDACTED, str)
    row = dspy.Example(
        question=f"Who is {MAIL}?", extra={"to": (PHONE, 7)}, answer=TICKET
    ).with_inputs("question")
    masked = texts.example(row)
    assert masked.toDict() == {
        "question": "Who is [email]?",
        "extra": {"to": ("[phone]", 7)},
        "answer": "[ticket]",
    }
    assert masked.inputs().toDict() == {"question": "Who is [email]?"}
    assert (
        texts.values({"records": [{"Inputs": row}]})["records"][0]["Inputs"].question
        == "Who is [email]?"
    )


KEY, HEADER, PASSWORD = "sk-proj-abcDEF1234567890xyz", "tenant-Zq81kkQ0aaa", "S3cretPassw0rd"


def test_a_key_that_is_said_by_a_model_or_an_error_reaches_no_file_prompt_log_or_report(
    tmp_path, caplog
):
    address = f"https://user:{PASSWORD}@host/v1"

    def telling_keys(request):
        animal = animal_of(request.last)
        if animal == "fox":
            raise ValueError(
                f"{address} failed, headers {{'Authorization': 'Bearer {KEY}', 'X-Tenant':"
                f" '{HEADER}'}}"
            )
        if animal == "hen":
            return in_kind(request, {"answer": f"my key is {KEY}, my tenant {HEADER}"})
        return task_answer(request)

    def learning_keys(request):
        if "new_instruction" in request.text:
            return in_kind(request, {"new_instruction": f"Use {KEY}, {HEADER} and {address}."})
        return in_kind(request, {"lessons": [f"Rule: send {KEY} and {HEADER} to {address}"]})

    def broken(gold, pred, trace=None, pred_name=None, pred_trace=None):
        if animal_of(gold.question) == "bee":
            raise RuntimeError(f"no answer from {address} with api_key={KEY} {HEADER}")
        return metric(gold, pred)

    world = World.made(telling_keys, learning_keys)
    for lm in (world.task_lm, world.proposer_lm):
        lm.kwargs |= {"api_key": KEY, "extra_headers": {"X-Tenant": HEADER}}
    with caplog.at_level(logging.DEBUG):
        program = world.compile(
            log_dir=tmp_path,
            metric=broken,
            tracker="progress",
            reflection_minibatch_size=12,
            max_metric_calls=100,
            operators=["insert", "rewrite"],
            heldout=12,
        )
    write_report(tmp_path, tmp_path / "report.html")
    written_anywhere = written(tmp_path).decode("utf-8", "replace")
    assert "my key is [redacted], my tenant [redacted]" in written_anywhere
    for place in (
        written_anywhere,
        prompts(world),
        caplog.text,
        repr(program.combee_report),
        str(program.dump_state()),
    ):
        assert [key for key in (KEY, HEADER, PASSWORD) if key in place] == []
