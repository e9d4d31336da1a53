"""Fingerprints change with what a result depends on, and with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pydantic
import pytest

from combee_dspy.rollouts import (
    RolloutKey,
    call_fingerprint,
    program_fingerprint,
    scorer_fingerprint,
    setting_fingerprint,
)
from combee_dspy.testing._scripted_lm import ScriptedLM


def _code(source: str, name: str = "metric", **space: Any) -> Any:
    module = types.ModuleType("users_own_code")
    vars(module).update(space)
    exec(source, vars(module))  # noqa: S102 - code that differs in one place
    return vars(module)[name]


METRIC = """
LIMIT = 3
def helper(text):
    return text.strip(){change}
def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    # a comment{comment}
    return len(helper(pred.answer)) < LIMIT
"""


def test_a_scorer_counts_with_all_the_code_it_reaches() -> None:
    base = scorer_fingerprint(_code(METRIC.format(change="", comment="")))
    assert scorer_fingerprint(_code(METRIC.format(change="", comment=" that says more"))) == base
    assert scorer_fingerprint(_code(METRIC.format(change=".lower()", comment=""))) != base
    assert scorer_fingerprint(_code(METRIC.format(change="", comment="").replace("LIMIT = 3", "LIMIT = 4"))) != base


def test_what_a_scorer_does_not_use_does_not_count() -> None:
    source = METRIC.format(change="", comment="")
    other = source + "\ndef unused():\n    return 1\nanswer = 5\n"
    assert scorer_fingerprint(_code(source)) == scorer_fingerprint(_code(other))


def _closing(limit: Any) -> Callable[..., Any]:
    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        return limit

    return metric


class Scorer:
    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.lock = threading.Lock()

    def __call__(self, gold: Any, pred: Any) -> float:
        return self.weight

    def score(self, gold: Any, pred: Any) -> float:
        return self.weight


class Recursive:
    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.me = self


def test_parameters_and_state_of_a_scorer_count() -> None:
    import functools

    makers: list[Callable[[Any], Any]] = [
        _closing,
        Scorer,
        lambda value: Scorer(value).score,
        lambda value: functools.partial(Scorer(1.0), value),
        Recursive,
        lambda value: functools.lru_cache(_closing(value)),
        lambda value: [_closing(1), {"a": {value}}],
    ]
    seen = set()
    for make in makers:
        one, same, other = (scorer_fingerprint(make(value)) for value in (1.0, 1.0, 2.0))
        assert one == same != other
        seen |= {one, other}
    assert len(seen) == 2 * len(makers)


def test_an_identity_that_is_said_stands_for_the_whole() -> None:
    class Counting:
        cache_identity = "counts calls, scores the same"

        def __init__(self) -> None:
            self.calls = 0

    one, other = Counting(), Counting()
    other.calls = 5
    assert scorer_fingerprint(one) == scorer_fingerprint(other)
    other.cache_identity = "something else"
    assert scorer_fingerprint(one) != scorer_fingerprint(other)


class Place(pydantic.BaseModel):
    name: str = pydantic.Field(description="a name")


def _tool(change: str = "") -> Any:
    return _code(f"def tool(x: str) -> str:\n    'Look up.'\n    return x + {change!r}\n", "tool")


def test_everything_a_program_holds_counts() -> None:
    def base() -> Any:
        return dspy.ReAct("question -> answer", tools=[_tool()], max_iters=3)

    def extract(program: Any) -> Any:
        return program.extract.predict

    def described(program: Any) -> None:
        extract(program).signature = extract(program).signature.with_updated_fields("answer", desc="short")

    def typed(program: Any) -> None:
        extract(program).signature = extract(program).signature.with_updated_fields("answer", type_=Place)

    def frozen(program: Any) -> None:
        program.extract._compiled = True
        described(program)

    changes: list[Callable[[Any], Any]] = [
        lambda program: setattr(program, "max_iters", 4),
        lambda program: setattr(extract(program), "demos", [dspy.Example(question="q", answer="a")]),
        lambda program: extract(program).config.update(temperature=0.5),
        lambda program: setattr(extract(program), "lm", dspy.LM("openai/other")),
        lambda program: setattr(program, "note", {"k": [1, 2]}),
        described,
        typed,
    ]
    found = [program_fingerprint(base())]
    for change in changes:
        program = base()
        change(program)
        found.append(program_fingerprint(program))
    found.append(program_fingerprint(dspy.ReAct("question -> answer", tools=[_tool("!")], max_iters=3)))
    assert len(set(found)) == len(found)
    compiled = base()
    frozen(compiled)
    assert program_fingerprint(compiled) == found[6]


def test_what_is_passing_does_not_count() -> None:
    program = dspy.ChainOfThought("question -> answer")
    before = program_fingerprint(program)
    assert program_fingerprint(dspy.ChainOfThought("question -> answer")) == before
    assert program_fingerprint(program.deepcopy()) == before
    program.predict.traces = [1]
    program.combee_report = object()
    program.history.append(1)
    assert program_fingerprint(program) == before


def _setting(**kwargs: Any) -> str:
    with dspy.context(**kwargs):
        return setting_fingerprint("scorer", 0.0)


def test_lms_count_with_everything_but_credentials() -> None:
    def lm(**kwargs: Any) -> Any:
        return dspy.LM("openai/m", **{"api_base": "http://gpu:8000/v1", "temperature": 0.3, **kwargs})

    base = _setting(lm=lm(api_key="sk-one-1234567890"))
    same = [
        lm(api_key="sk-other-1234567890"),
        lm(headers={"Authorization": "Bearer abcdef123456"}),
        lm(cache=False, num_retries=9),
        lm(aws_secret_access_key="abcdefgh12345678"),
    ]
    assert {_setting(lm=one) for one in same} == {base}
    changed = [
        lm(temperature=0.4),
        lm(max_tokens=10),
        lm(top_p=0.5),
        lm(api_base="http://gpu:8001/v1"),
        lm(rollout_id=3),
        dspy.LM("openai/n", api_base="http://gpu:8000/v1", temperature=0.3),
        ScriptedLM(lambda request: "", model="openai/m", temperature=0.3),
    ]
    found = {_setting(lm=one) for one in changed}
    assert len(found | {base}) == len(changed) + 1


def test_an_lm_that_names_its_endpoint_may_move() -> None:
    def lm(port: int, **kwargs: Any) -> Any:
        made = dspy.LM("openai/m", api_base=f"http://127.0.0.1:{port}/v1", **kwargs)
        made.cache_identity = "my server"
        return made

    assert _setting(lm=lm(1)) == _setting(lm=lm(2))
    assert _setting(lm=lm(1)) != _setting(lm=lm(1, temperature=0.5))


def test_adapters_count_with_their_parameters() -> None:
    class Own(dspy.ChatAdapter):
        pass

    adapters = [None, dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.ChatAdapter(use_json_adapter_fallback=False), Own()]
    assert len({_setting(adapter=adapter) for adapter in adapters}) == len(adapters)
    assert _setting(adapter=dspy.ChatAdapter()) == _setting(adapter=dspy.ChatAdapter())


def test_requests_count_with_fields_inputs_and_temperature() -> None:
    signature = dspy.Signature("question -> answer", "Answer.")
    lm, adapter = dspy.LM("openai/m"), dspy.ChatAdapter()
    base = call_fingerprint(signature, {"question": "q"}, lm, adapter)
    assert call_fingerprint(dspy.Signature("question -> answer", "Answer."), {"question": "q"}, lm, adapter) == base
    others = [
        call_fingerprint(signature.with_instructions("Answer!"), {"question": "q"}, lm, adapter),
        call_fingerprint(signature.with_updated_fields("answer", desc="d"), {"question": "q"}, lm, adapter),
        call_fingerprint(signature, {"question": "r"}, lm, adapter),
        call_fingerprint(signature, {"question": "q"}, lm.copy(max_tokens=3), adapter),
        call_fingerprint(signature, {"question": "q"}, lm, dspy.JSONAdapter()),
        call_fingerprint(signature, {"question": "q"}, lm, adapter, 0.5),
    ]
    assert len({base, *others}) == 7


def test_keys_tell_rows_inputs_and_replicates_apart() -> None:
    keys = [
        RolloutKey("p", "s", "r"),
        RolloutKey("q", "s", "r"),
        RolloutKey("p", "t", "r"),
        RolloutKey("p", "s", "u"),
        RolloutKey("p", "s", "r", "question"),
        RolloutKey("p", "s", "r", replicate=1),
    ]
    assert len({key.digest for key in keys}) == len(keys)


SCRIPT = """
import dspy
from combee_dspy.rollouts import program_fingerprint, scorer_fingerprint
from users_program import Program, metric
print(program_fingerprint(Program()), scorer_fingerprint(metric))
"""

PROGRAM = """
import dspy, re
WORDS = {"a", "b", "c", "some", "more"}
class Program(dspy.Module):
    def __init__(self):
        super().__init__()
        self.step = dspy.ChainOfThought("question -> answer: list[str]")
        self.words = WORDS
    def forward(self, question):
        return self.step(question=[one for one in question if one in {"x", "y", "z"}])
def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return bool(re.match("a", pred.answer)) and pred.answer in WORDS
"""


@pytest.mark.parametrize("change", ["", "edited"])
def test_another_process_finds_the_same(tmp_path: Path, change: str) -> None:
    (tmp_path / "users_program.py").write_text(PROGRAM)

    def found(seed: str) -> str:
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(  # noqa: S603 - our own script
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
        )
        return done.stdout

    before = found("1")
    if change:
        (tmp_path / "users_program.py").write_text(PROGRAM.replace('"z"', '"w"').replace('"more"', '"less"'))
    assert (found("2") == before) is not bool(change)


def test_a_function_without_a_module_has_a_fingerprint():
    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        return 1.0

    metric.__module__ = None
    assert scorer_fingerprint(metric) == scorer_fingerprint(metric)
