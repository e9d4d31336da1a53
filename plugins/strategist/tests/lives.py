"""A desk that answers with codes: callers whose rules may change, LMs in the process that know only
what the prompt tells them, and a clock that a test moves.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy.testing import ScriptedLM, ScriptedRequest
from combee_strategist.canary import CanaryPlan, Serving
from combee_strategist.live import Gate, Learning, Live, LiveProgram
from tests.worlds import in_kind

DESK = dspy.Predict(dspy.Signature("question -> code", "Answer with the code."))
GOODS = ("ant", "bell", "cup", "desk", "egg", "fan", "gate", "hat")
HOUR = 3600.0
START = 1_700_006_400.0  # midnight
_RULE = re.compile(r"the code for (\w+) is (\w+)")


def goods_of(question: object) -> str:
    return re.findall(r"code for (\w+)\?", str(question))[-1]


def metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    right = pred.code == gold.code
    rule = f"Rule: the code for {goods_of(gold.question)} is {gold.code}"
    return dspy.Prediction(score=float(right), feedback="" if right else f"Wrong. {rule}")


def desk_answer(request: ScriptedRequest) -> str:
    rules = dict(_RULE.findall(request.system))  # the last line wins
    return in_kind(request, {"code": rules.get(goods_of(request.last), "unknown")})


def reader_answer(request: ScriptedRequest) -> str:
    if "contradictory" in request.text:
        lines = re.findall(r"(\d+)[.:] .*?the code for (\w+) is (\w+)", request.last)
        rivals = [
            [int(first), int(second)]
            for (first, goods, code), (second, other, rival) in itertools.combinations(lines, 2)
            if goods == other and code != rival
        ]
        fields = {"same": [], "contradictory": rivals, "narrower": [], "empty": []}
        return in_kind(request, fields)
    rules = dict.fromkeys(re.findall(r"Rule: (the code for \w+ is \w+)", request.text))
    return in_kind(request, {"lessons": list(rules)})


@dataclass
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now

    def pass_hours(self, hours: float) -> None:
        self.now += hours * HOUR


@dataclass
class Desk:
    """A Live with callers.

    ``rules`` is what callers hold right now; ``request`` numbers requests.
    """

    live: Live
    clock: Clock
    rules: dict[str, str]
    server: LiveProgram
    remake: Callable[[], Live]
    lms: tuple[ScriptedLM, ScriptedLM]
    requests: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, goods: str) -> tuple[str, str]:
        """Ask for a code; return the request's id and the answer."""
        number = next(self.requests)
        request_id = f"r{number}"
        question = f"Number {number}: code for {goods}?"
        return request_id, self.server(question=question, request_id=request_id).code

    def label(self, *goods: str, trusted: bool = False, **codes: str) -> None:
        """Ask for each of these, and correct the answer; ``codes`` are wrong labels."""
        for name in goods:
            request_id, _ = self.ask(name)
            code = codes.get(name, self.rules[name])
            self.server.feedback(request_id, code=code, trusted=trusted)

    def settle(self) -> None:
        """Let shadows and scores end and be on disk, and servers look at the registry."""
        self.server.refresh()
        assert self.server._pool.idle(10)
        assert self.server._recorder.lookups.idle(10)
        self.server._score()
        assert self.server._scorers.idle(10)
        self.server._recorder.settle()


def trusted_rows(rules: dict[str, str], each: int = 1) -> list[dspy.Example]:
    return [
        dspy.Example(question=f"Row {n}: code for {goods}?", code=code).with_inputs("question")
        for goods, code in rules.items()
        for n in range(each)
    ]


_names = itertools.count()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Desk]]:
    """Make desks, which are closed at the end. Their versions are in memory, unless a test names a
    store of MLflow's.
    """
    mlflow = pytest.importorskip("mlflow")
    from plugins.strategist.tests import prompts

    in_memory = prompts.Prompts()
    desks: list[Desk] = []
    stack = dspy.context(lm=ScriptedLM(desk_answer, cache=False), adapter=dspy.ChatAdapter())

    def make(*, reader: Callable[[ScriptedRequest], str] = reader_answer, **more: Any) -> Desk:
        if "uri" not in more:
            monkeypatch.setattr(mlflow, "MlflowClient", in_memory.client)
        rules = {goods: f"K{n}" for n, goods in enumerate(GOODS)}
        clock, name = Clock(), f"desk{next(_names)}"
        lms = ScriptedLM(desk_answer, cache=False), ScriptedLM(reader, cache=False)
        arguments: dict[str, Any] = {
            "metric": metric,
            "lm": lms[0],
            "reflection_lm": lms[1],
            "trusted": trusted_rows(rules),
            "slices": lambda inputs: goods_of(inputs["question"]),
            "learning": Learning(least=4, num_threads=2),
            "gate": Gate(recent=2.0),
            "plan": CanaryPlan(epsilon=0.2, pairs=8, hours=2.0, window=20),
            "serving": Serving(shadow=1.0, ttl=3600.0, timeout=10.0, queue=1000),
            "log_dir": tmp_path / name,
            "uri": prompts.URI,
            "clock": clock,
            **more,
        }

        def remake() -> Live:
            return Live(name, DESK, **arguments)

        live = remake()
        desks.append(Desk(live, clock, rules, live.serve(), remake, lms))
        return desks[-1]

    with stack:
        yield make
        for each in desks:
            each.live.close()
            if not each.server._closed.is_set():
                each.server.close(0.05)
