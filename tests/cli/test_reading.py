"""The file of ``combee run``: what it may hold, and what is said where it cannot be used."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import dspy
import pytest
import yaml
from dspy.utils import DummyLM

from combee_dspy import Budget, Combee, Costs, Diversity, Guards, Heldout, Price, Search, Validation
from combee_dspy.cli._plan import plan_run
from combee_dspy.cli.run import run
from combee_dspy.controllers import Static
from combee_dspy.diversity import Restart, Temperature
from combee_dspy.exceptions import ArgumentError, ArgumentValueError
from combee_dspy.operators import FewShotSwap, Insert
from combee_dspy.stopping import AnyOf, Patience
from combee_dspy.tracking import Progress

MINI = {
    "benchmark": {"name": "formula-mini", "params": {"train": 12, "validation": 6, "heldout": 6}}
}
LEAST: dict[str, Any] = {"data": MINI, "lms": {"task": "embedded"}, "budget": {"seconds": 9}}

EVERYTHING = """
data: {train: rows.jsonl, validation: other.csv, heldout: held.json, inputs: [q]}
lms:
  task: {model: openai/m, temperature: 1.0}
  proposer: {model: openai/n, api_key_env: THEIR_KEY}
program: their_task:Program
metric: their_task:metric
adapter: json
seed: 7
num_threads: 3
auto: light
budget:
  {rollouts: 9, calls: 8, tokens: 7, dollars: 6, seconds: 5, gpu_seconds: 4, epochs: 3, updates: 2}
strategies:
  artifact: instruction
  aggregator: {name: parallel-scan, params: {copies: 3}}
  operators: [insert, few-shot-swap]
  controller: {name: static, params: {size: 2, reason: a test}}
  executor: asyncio
  stopping: [{name: patience, params: {updates: 5}}]
search: {staleness: 0, children: 2, screen: 5, weigher: trusting, keep: pareto, replay: old}
validation:
  {draws: 2, probe: false,
   calibration: {reference: "their_task:metric", share: 0.5}}
guards: {max_tokens: 500, keep: [Answer.], max_copied_words: 9}
diversity:
  {embedder: char-ngrams, threshold: 0.9, recent: 8,
   temperature: {start: 0.9}, restart: {}}
heldout: {target: 0.4, power: 0.5, confidence: 0.9, discordance: 0.5}
costs: {prices: {openai/m: {prompt: 1, completion: 2}}, gpus: {task: 8}}
tracker: progress
cache: shared.sqlite
log_dir: runs/today
skip_perfect_score: false
use_merge: false
perfect_score: 2.0
gepa_kwargs: {frontier_type: instance}
output: learned.json
"""

TASK = """
import dspy
class Program(dspy.Module):
    def __init__(self):
        super().__init__()
        self.answer = dspy.Predict(dspy.Signature('q -> a', 'Answer.'))
ready = Program()
def make(): return Program()
def needy(x): return Program()
class Box: inner = ready
number = 3
def metric(gold, pred, trace=None, pred_name=None, pred_trace=None): return float(gold.a == pred.a)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("THEIR_KEY", "a-key-of-theirs")
    Path("their_task.py").write_text(TASK)
    Path("rows.jsonl").write_text(
        '{"q": "é\u2028x", "a": "1"}\n\n{"q": "y", "a": "2"}\n', encoding="utf-8"
    )
    Path("other.csv").write_text('\ufeffq,a\n"v",1\nw,2\n', encoding="utf-8")
    Path("held.json").write_text('[{"q": "s", "a": "1"}, {"q": "t", "a": "2"}]', encoding="utf-8")
    yield tmp_path
    import sys

    sys.modules.pop("their_task", None)


def planned(folder, text):
    return plan_run(yaml.safe_load(text), folder)


def test_every_option_reaches_combee(folder):
    plan = planned(folder, EVERYTHING)
    combee = plan.combee(DummyLM([]))
    task = plan.tasks[0].task
    assert [row.toDict() for row in task.trainset] == [
        {"q": "é\u2028x", "a": "1"},
        {"q": "y", "a": "2"},
    ]
    assert [list(row.inputs()) for row in task.valset] == [["q"], ["q"]]
    assert (task.heldout.target, task.heldout.power, len(task.heldout.rows)) == (0.4, 0.5, 2)
    settings = combee.settings
    budget = Budget(
        rollouts=9, calls=8, tokens=7, dollars=6, seconds=5, gpu_seconds=4, epochs=3, updates=2
    )
    temperature = Temperature(start=0.9)
    expected = {
        "operators": (Insert(), FewShotSwap()),
        "controller": Static(2, "a test"),
        "search": Search("pareto", 0, 2, 5, "trusting", str(folder / "old")),
        "guards": Guards(500, ("Answer.",), 9),
        "diversity": Diversity("char-ngrams", 0.9, 8, temperature, Restart()),
        "budget": AnyOf((budget, Patience(5))),
        "costs": Costs({"openai/m": Price(1, 2)}, {"task": 8}),
        "trackers": (Progress(),),
        "cache": folder / "shared.sqlite",
        "log_dir": str(folder / "runs/today"),
        "seed": 7,
        "num_threads": 3,
        "auto": "light",
        "perfect_score": 2.0,
        "skip_perfect_score": False,
    }
    assert {name: getattr(settings, name) for name in expected} == expected
    assert settings.aggregator.copies == 3
    assert settings.executor.name == "asyncio"
    assert settings.validation.calibration.reference is settings.metric
    assert (settings.validation.draws, settings.validation.probe) == (2, False)
    assert plan.tasks[0].output == folder / "learned.json"


def test_lessons_to_be_removed_reach_combee(folder):
    text = EVERYTHING.replace("operators: [insert, few-shot-swap]", "operators: [insert]")
    text = text.replace("max_copied_words: 9}", "removed: [Old line.]}")
    assert planned(folder, text).combee(DummyLM([])).settings.guards.removed == ("Old line.",)


def test_what_a_file_does_not_say_is_combees_default(folder):
    combee = planned(folder, yaml.safe_dump(LEAST)).combee(DummyLM([]))
    usual = Combee(
        lambda gold, pred, trace, name, more: 1.0,
        budget=Budget(seconds=9),
        reflection_lm=DummyLM([]),
    )
    left = {"metric", "reflection_lm"}
    settings, defaults = combee.get_params(), usual.get_params()
    assert {k: v for k, v in settings.items() if k not in left} == {
        k: v for k, v in defaults.items() if k not in left
    }


def test_there_is_a_key_for_every_argument_and_every_option(shell):
    schema = json.loads(shell("run", "--schema")[1])
    sections = schema["$defs"]
    keys = {*schema["properties"], *sections["StrategiesConfig"]["properties"]}
    no_keys = {"metric", "reflection_lm", "wandb_api_key", "elsewhere"}
    assert set(inspect.signature(Combee).parameters) - no_keys <= keys
    for option in (Search, Validation, Guards, Diversity, Budget, Costs):
        names = {field.name for field in dataclasses.fields(option)}
        assert set(sections[option.__name__]["properties"]) == names
    terms = {field.name for field in dataclasses.fields(Heldout)} - {"rows"}
    assert set(sections["HeldoutTerms"]["properties"]) == terms
    assert {"tasks", "at_once"} <= set(schema["properties"])
    limit = schema["properties"]["max_metric_calls"]
    assert (limit["description"], limit["default"]) == ("Budget in rollouts.", None)


def test_truth_values_turn_diversity_and_cache_off(folder):
    combee = planned(folder, yaml.safe_dump({**LEAST, "diversity": False, "cache": False})).combee(
        DummyLM([])
    )
    assert (combee.settings.diversity, combee.settings.cache) == (Diversity.off(), False)


def test_the_examples_of_the_help_are_read(folder):
    blocks = [
        block.removeprefix("\b\n")
        for block in inspect.getdoc(run).split("\n\n")
        if block.startswith("\b")
    ]
    from combee_dspy.cli._reading import checked

    whole, *others = [yaml.safe_load(text) for text in blocks]
    assert len(others) == 3
    checked(whole)
    for values in others:
        # Traces are shown by themselves.
        checked({**whole, **values} if "program" not in values else values)


@pytest.mark.parametrize(
    ("change", "argument", "guess"),
    [
        ({"budgt": {}}, "budgt", "'budget'"),
        ({"data": {"benchmark": "formula-mini", "heldot": "x"}}, "data.heldot", "'heldout'"),
        ({"lms": {"task": {"modle": "m"}}}, "lms.task.modle", "'model'"),
        ({"budget": {"rollout": 3}}, "budget.rollout", "'rollouts'"),
        ({"diversity": {"restart": {"patienc": 1}}}, "diversity.restart.patienc", "'patience'"),
        (
            {"strategies": {"operators": [{"nam": "insert"}]}},
            "strategies.operators.0.nam",
            "'name'",
        ),
        (
            {"costs": {"prices": {"m": {"promt": 1, "completion": 1}}}},
            "costs.prices.m.promt",
            "'prompt'",
        ),
        ({"tasks": {"one": {"sede": 1}}}, "tasks.one.sede", "'seed'"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(folder, change, argument, guess):
    with pytest.raises(ArgumentValueError) as caught:
        planned(folder, yaml.safe_dump({**LEAST, **change})).combee(DummyLM([]))
    assert caught.value.argument == argument
    assert caught.value.remedy.startswith(f"Did you mean {guess}? Known keys: ")


@pytest.mark.parametrize(
    ("parameter", "remedy"),
    [("copys", r"Did you mean 'copies'\?"), ("zzz", "It takes copies, placement, .*window")],
)
def test_an_unknown_parameter_of_a_strategy_is_named_with_known_ones(folder, parameter, remedy):
    strategies = {"aggregator": {"name": "parallel-scan", "params": {parameter: 2}}}
    with pytest.raises(ArgumentError, match=rf"ParallelScan.{parameter} .* {remedy}"):
        planned(folder, yaml.safe_dump({**LEAST, "strategies": strategies})).combee(DummyLM([]))


def test_an_unknown_key_comes_first_with_the_number_of_other_problems(folder):
    with pytest.raises(ArgumentValueError) as caught:
        planned(folder, yaml.safe_dump({"zzz": 1, "data": {}, "seed": "many"}))
    assert caught.value.argument == "zzz"
    assert caught.value.remedy.startswith(
        "Known keys: adapter, add_format_failure_as_feedback, at_once, auto"
    )
    assert caught.value.remedy.endswith("(2 more to correct.)")


@pytest.mark.parametrize(
    "task",
    [
        {"model": "m", "api_key": "very-secret"},
        {"model": "m", "options": {"api_key": "very-secret"}},
    ],
)
def test_a_service_key_in_the_file_is_refused_and_not_repeated(folder, task):
    with pytest.raises(ArgumentValueError) as caught:
        planned(folder, yaml.safe_dump({**LEAST, "lms": {"task": task}}))
    assert "api_key_env" in str(caught.value)
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "argument", "part"),
    [
        ({"budget": {}}, "budget", "no limit"),
        ({"budget": {"tokens": -1}}, "budget.tokens", "greater than 0"),
        ({"data": {"train": "t.csv"}}, "data", "inputs"),
        ({"data": {"train": "rows.jsonl", "inputs": ["q"]}}, "program", "is missing"),
        ({"data": None}, "data", "is missing"),
        (
            {"lms": {"task": {"model": "embedded", "api_base": "http://x"}}},
            "lms.task",
            "takes no api_base",
        ),
        (
            {"lms": {"task": {"model": "embedded", "file": "none.gguf"}}},
            "lms.task.file",
            "is no file",
        ),
        ({"lms": {"task": {"model": "embedded", "sha256": "0" * 64}}}, "lms.task", "give file too"),
        ({"lms": {"task": {"model": "openai/m", "file": "m.gguf"}}}, "lms.task", "takes no file"),
        (
            {"lms": {"task": {"model": "openai/x", "api_key_env": "NOT_SET"}}},
            "lms.task.api_key_env",
            "is not set",
        ),
        ({"seed": "many"}, "seed", "integer"),
        ({"guards": {"keep": [" "]}}, "Guards.keep", "empty text"),
        ({"output": "learned.pkl"}, "output", ".json"),
        ({"program": "their_task"}, "program", "module:object"),
        ({"program": "no_such_module:x"}, "program", "ModuleNotFoundError"),
        ({"program": "their_task:needy"}, "program", "cannot be made without arguments"),
        ({"program": "their_task:number"}, "program", "cannot be called"),
        ({"strategies": {"aggregator": "median"}}, "aggregator", "names no installed strategy"),
        ({"tasks": {"one": {}, "two": {}}, "output": "x.json"}, "output", "written by two tasks"),
        ({"tasks": {"one": {"program": "x"}}}, "tasks.one: program", "module:object"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(folder, change, argument, part):
    with pytest.raises(ArgumentError) as caught:
        planned(folder, yaml.safe_dump({**LEAST, **change})).combee(DummyLM([]))
    assert caught.value.argument == argument
    assert part in str(caught.value)


@pytest.mark.parametrize("target", ["Program", "ready", "make", "Box.inner"])
def test_a_program_is_an_object_a_class_or_what_a_function_makes(folder, target):
    plan = planned(folder, yaml.safe_dump({**LEAST, "program": f"their_task:{target}"}))
    program = plan.tasks[0].task.student
    assert isinstance(program, dspy.Module)
    assert [name for name, _ in program.named_predictors()] == ["answer"]


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.parquet", "", "one of .jsonl, .json, .csv"),
        ("a.jsonl", '{"q": 1}\n{"q": ', "JSONDecodeError"),
        ("a.jsonl", '{"q": 1}\n{"p": 2}', "row 2 has fields ['p'], not q"),
        ("a.json", "3", "TypeError"),
        ("a.json", "[]", "no rows"),
        ("a.csv", "q,a\n", "no rows"),
        ("a.csv", "q,a\n1,2,3\n", "row 1 has fields"),
        ("none.json", None, "FileNotFoundError"),
    ],
)
def test_a_file_of_examples_that_cannot_be_used_is_named_with_the_row(
    shell, folder, name, text, part
):
    if text is not None:
        Path(name).write_text(text)
    data = {
        "data": {"train": name, "inputs": ["q"]},
        "program": "their_task:ready",
        "metric": "their_task:metric",
    }
    Path("run.yaml").write_text(yaml.safe_dump({**LEAST, **data}))
    code, _, err = shell("run", "run.yaml")
    assert code == 2
    assert "data.train" in err
    assert part in err


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("- a\n- b", "no mapping"),
        ("", "no mapping"),
        ("data: !!python/object/apply:os.system ['echo no']", "cannot be read as YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_one_line(shell, text, part):
    Path("run.yaml").write_text(text)
    code, out, err = shell("run", "run.yaml")
    assert (code, out) == (2, "")
    assert part in err.splitlines()[-1]
    assert err.count("error: ") == 1
    assert "nowhere.yaml" in shell("run", "nowhere.yaml")[2]
    assert "CONFIG.yaml is missing" in shell("run")[2]


def test_what_is_no_yaml_is_shown_with_a_caret_below_its_place(shell):
    Path("run.yaml").write_text("a: 1\ndata: [x, \x1b[2J\n  inputs: [q]\n")
    code, out, err = shell("run", "run.yaml")
    assert (code, out) == (2, "")
    assert "\x1b" not in err
    Path("run.yaml").write_text("a: 1\ndata: [x\n  inputs: [q]\n")
    line, caret, error = shell("run", "run.yaml")[2].splitlines()
    assert line[caret.index("^")] == ":"
    assert "cannot be read as YAML: line 3, column 9: expected ',' or ']'" in error


@pytest.mark.parametrize(
    "text", ["budget: {2027-13-99: 1}", "seed: 2027-02-30", '"[x]": 1', '"a[": {b: 1}']
)
def test_a_date_that_is_none_and_a_key_with_a_bracket_are_one_line(shell, tmp_path, text):
    (tmp_path / "run.yaml").write_text(
        f"data: {{benchmark: {{name: formula-mini}}}}\n{text}\n", encoding="utf-8"
    )
    code, out, err = shell("run", "run.yaml")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
