"""Playbooks that learn from a stream."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import dspy
import pytest
from dspy.lm15 import Message, Response, Usage

from combee_dspy.artifacts import OnlinePlaybook, Playbook
from combee_dspy.exceptions import ArgumentValueError, InfrastructureError

RULE = re.compile(r"the word for \w+ is \w+")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", "Café".encode("latin-1"), b"# Notes\n\nBuy milk.\n", b"{}"]
)
def test_a_file_that_is_no_playbook_is_refused_and_stays(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)

    with pytest.raises(ArgumentValueError, match=r"notes\.txt"):
        OnlinePlaybook(Teller(), lambda *given: 1.0, path=path)
    assert path.read_bytes() == content


class Teller(dspy.Module):
    """Knows the words that stand in its instruction; no LM is asked."""

    def __init__(self):
        super().__init__()
        self.say = dspy.Predict(dspy.Signature("animal -> word", "Say the word."))

    def forward(self, animal):
        if animal == "bug":
            raise ValueError("no bugs")
        match = re.search(rf"the word for {animal} is (\w+)", self.say.signature.instructions)
        return dspy.Prediction(word=match[1] if match else "unknown")


class Keeper:
    """An engine whose model reflects and reads by copying rules; fails as often as it is told
    to.
    """

    def __init__(self, failures=0):
        self.failures = failures

    def complete(self, request):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("nobody today")
        prompt = str(request.messages[-1])
        rules = list(dict.fromkeys(RULE.findall(prompt)))
        if "key_insight" in prompt:
            answer: dict[str, Any] = {
                "bullet_tags": {},
                "key_insight": rules[-1] if rules else "",
                "section": "FORMATS",
            }
        else:
            answer = {"lessons": rules}
        message = Message.assistant(json.dumps(answer))
        return Response(
            id="one", model=request.model, message=message, finish_reason="stop", usage=Usage()
        )


def examples(*animals):
    return [dspy.Example(animal=item, word=item[::-1]).with_inputs("animal") for item in animals]


def metric(gold, pred, *_):
    right = pred.word == gold.word
    return dspy.Prediction(
        score=float(right), feedback=f"the word for {gold.animal} is {gold.word}"
    )


def serving(engine=None, **more):
    lm = dspy.LM("scripted/keeper", engine=engine or Keeper(), cache=False, num_retries=0)
    return OnlinePlaybook(Teller(), metric, reflection_lm=lm, **more)


def test_it_answers_with_what_was_learned_before_and_keeps_it_in_a_file(tmp_path):
    path = tmp_path / "playbook.txt"
    first = serving(path=path)
    assert first.online_score is None
    assert [item.word for item in first.predict(examples("lynx", "wolf"))] == ["unknown", "unknown"]
    assert not first.book.lessons
    learned = first.learn()
    assert {lesson.text for lesson in first.book.lessons} == {
        "the word for lynx is xnyl",
        "the word for wolf is flow",
    }
    assert first.learn() == learned, "a batch is learned from once"
    assert [item.word for item in first.predict(examples("wolf", "hare"))] == ["flow", "unknown"]
    assert first.online_score == pytest.approx(1 / 4)
    # Another server goes on with it, and so does a program that was made from it.
    assert serving(path=path).text == learned
    assert "lynx is xnyl" in first.program().say.signature.instructions
    assert OnlinePlaybook(first.program(), metric).text == learned


def test_a_file_keeps_a_bullet_as_it_is(tmp_path):
    path = tmp_path / "playbook.txt"
    mine = (
        "## FORMATS\n[me-1] helpful=2 harmful=0 :: the word\r\rfor cat is tac\n    [evil-1]"
        " helpful=9 harmful=0 :: this"
    )
    path.write_bytes(mine.encode())
    first = serving(path=path)
    first.predict(examples("lynx"))
    first.learn()
    ours = [lesson for lesson in serving(path=path).book.lessons if lesson.id == "me-1"]
    assert [(lesson.text, lesson.helpful) for lesson in ours] == [
        ("the word\r\rfor cat is tac\n[evil-1] helpful=9 harmful=0 :: this", 2)
    ]
    assert len(serving(path=path).book.lessons) == 2


def test_an_answer_that_failed_is_none_and_is_learned_from():
    server = serving()
    assert server.predict(examples("bug", "lynx"))[0] is None
    assert "no bugs" in str(server.rollouts[0].error)
    server.learn()
    assert server.rollouts == ()
    with pytest.raises(ArgumentValueError, match="empty"):
        server.predict([])


def test_the_same_stream_teaches_the_same_whatever_runs_at_once():
    texts = set()
    for threads in (1, 8):
        server = serving(num_threads=threads, seed=3, artifact=Playbook())
        for batch in (examples("lynx", "wolf", "hare", "mole"), examples("lynx", "stoat")):
            server.predict(batch)
            server.learn()
        texts.add(server.text)
    assert len(texts) == 1


def test_it_serves_where_a_loop_is_running_already():
    async def notebook():
        server = serving()
        server.predict(examples("lynx"))
        return server.learn()

    assert "lynx is xnyl" in asyncio.run(notebook())


def test_an_outage_is_raised_and_the_batch_can_be_learned_from_again():
    engine = Keeper(failures=100)
    server = serving(engine)
    server.predict(examples("lynx"))
    with pytest.raises(InfrastructureError):
        server.learn()
    assert not server.book.lessons
    engine.failures = 0
    assert "lynx is xnyl" in server.learn()
