"""Fingerprints change with what a result depends on, and with nothing else."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import types
from typing import Any

import dspy

from combee_dspy.rollouts import fingerprint, fingerprints
from combee_dspy.rollouts._describer import Describer


def coded(source: str) -> Any:
    module = types.ModuleType("users_own_code")
    exec(source, vars(module))  # noqa: S102 - code that differs in one place
    return vars(module)["metric"]


def of_metric(metric: Any) -> str:
    return fingerprints(dspy.Predict("question -> answer"), metric)["metric"]


class PrivateSlot:
    __slots__ = ("__cache", "limit")

    def __init__(self, limit: int) -> None:
        self.limit, self.__cache = limit, 0


def test_descriptions_are_those_of_earlier_versions():
    settled = Describer(data=False)
    twice = functools.partial(json.dumps, json.dumps)
    assert settled.describe(twice) == ["json.dumps", [{"$again": 0}], {}]
    assert settled.describe(PrivateSlot(3))[1] == {"limit": "3"}


def of_program(program: dspy.Module) -> str:
    return fingerprints(program, len)["program"]


def test_what_holds_itself_can_be_described():
    def make_metric(limit: int) -> Any:
        registry: dict[str, Any] = {"limit": limit, "all": []}
        registry["all"].append(registry)
        return lambda gold, pred, *rest: registry

    program = dspy.Predict("a -> b")
    first, same, other = (fingerprint(program, make_metric(limit)) for limit in (1, 1, 2))
    assert first == same != other
    assert of_metric(make_metric(1)) == of_metric(make_metric(2))


class Chooses(dspy.Module):
    """Holds its LM where no predictor of its own has it."""

    def __init__(self, model: str, way: str) -> None:
        super().__init__()
        part = dspy.ChainOfThought("question -> answer")
        if way == "frozen":
            part.set_lm(dspy.LM(model))
            part._compiled = True
        else:
            self.chosen = dspy.LM(model)
        self.part = part


def test_lms_that_no_open_predictor_has_count():
    for way in ("frozen", "attribute"):
        first, same, other = (fingerprints(Chooses(f"openai/{name}", way), len) for name in "aab")
        assert first == same
        assert [name for name in first if first[name] != other[name]] == ["lms"]


def test_a_number_that_a_metric_reads_counts_and_one_that_it_assigns_does_not():
    source = (
        "tolerance, calls = {}, {}\ndef metric(gold, pred, *rest):\n    global calls\n"
        "    calls += 1\n    return abs(gold - pred) < tolerance\n"
    )
    first, later, other = (
        of_metric(coded(source.format(*numbers))) for numbers in ((0.1, 0), (0.1, 7), (0.2, 0))
    )
    assert first == later != other


def test_an_lm_that_a_metric_names_counts():
    source = (
        "import dspy\njudge = dspy.LM('openai/{}')\ndef metric(gold, pred, *rest):\n    return"
        " judge('right?')\n"
    )
    first, same, other = (of_metric(coded(source.format(name))) for name in "aab")

    assert first == same != other


class Program(dspy.Module):
    def __init__(
        self,
        instructions: str = "Answer.",
        demos: Any = (),
        width: int = 2,
        description: str = "short",
    ) -> None:
        super().__init__()
        signature = dspy.Signature("question -> answer", instructions).with_updated_fields(
            "answer", desc=description
        )
        self.parts = {"first": dspy.Predict(signature), "rest": dspy.ChainOfThought("a -> b")}
        self.parts["first"].demos = list(demos)
        self.width = width

    def forward(self, question: str) -> Any:
        return self.parts["first"](question=question)


class Deeper(Program):
    def forward(self, question: str) -> Any:
        return super().forward(question + "?")


def test_program_counts_with_texts_demonstrations_settings_and_code():
    demo = dspy.Example(question="q", answer="a")
    programs = [
        Program(),
        Program("Answer briefly."),
        Program(demos=[demo]),
        Program(width=3),
        Program(description="long"),
        Deeper(),
    ]

    assert len({of_program(program) for program in programs}) == len(programs)
    assert of_program(Program()) == of_program(Program()) == of_program(Program().deepcopy())


def test_using_a_program_changes_nothing(scripted):
    program = Program()
    before = of_program(program)
    with dspy.context(lm=scripted()):
        program(question="q")

    assert of_program(program) == before


def of_lm(**kwargs: Any) -> str:
    with dspy.context(lm=dspy.LM("openai/m", **kwargs)):
        return fingerprints(Program(), len)["lms"]


def test_lm_counts_with_its_parameters_and_endpoint_and_never_with_its_key():
    assert of_lm(api_key="one-secret-key") == of_lm(api_key="another-secret") == of_lm()
    assert of_lm(extra_headers={"x": "secret"}) == of_lm()
    assert (
        len(
            {of_lm(), of_lm(temperature=0.5), of_lm(max_tokens=5), of_lm(api_base="http://other:1")}
        )
        == 4
    )


def test_lm_that_says_what_it_is_may_move():
    def moved(port: int) -> str:
        lm = dspy.LM("openai/m", api_base=f"http://127.0.0.1:{port}")
        lm.cache_identity = "simulated 7"
        with dspy.context(lm=lm):
            return fingerprints(Program(), len)["lms"]

    assert moved(1) == moved(2) != of_lm()


def test_predictors_own_lm_and_the_adapter_are_told_apart_from_the_program():
    program = Program()
    program.parts["first"].lm = dspy.LM("openai/other")
    before = fingerprints(Program(), len)
    with dspy.context(adapter=dspy.JSONAdapter()):
        after = fingerprints(program, len)

    assert [name for name in before if before[name] != after[name]] == ["lms", "adapter"]
    assert fingerprint(program, len) != fingerprint(program, len, 0.5)


def test_other_processes_with_other_hash_seeds_agree(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import dspy\n"
        "from combee_dspy.rollouts import fingerprint\n"
        "def metric(gold, pred, *rest): return pred.answer in {'yes', 'no', 'maybe'}\n"
        "print(fingerprint(dspy.ChainOfThought('question -> answer'), metric))\n"
    )

    command = [sys.executable, str(script)]
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    processes = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE) for env in environments]  # noqa: S603
    first, second = (process.communicate()[0] for process in processes)

    assert first == second != b""
