from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmark_rows import REAL, formula_row, record, write

from combee_dspy.benchmarks import load_benchmark
from combee_dspy.cli import main
from combee_dspy.cli._config import read_config
from combee_dspy.cli._plan import plan_run
from combee_dspy.costs import PriceTable
from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = sorted((EXAMPLES / "models").glob("*.yaml"))


@pytest.fixture
def shell(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_all_benchmarks_are_listed_without_reading_a_row(shell, closed):
    code, out, _ = shell("benchmarks", "--json")
    listed = {item["benchmark"]: item for item in json.loads(out)}
    assert code == 0
    assert {"finer", "formula", "formula-mini"} <= set(listed)
    for item in listed.values():
        assert {"licence", "size", "sources", "here", "citation"} <= set(item)
    assert listed["formula-mini"]["here"].startswith("yes")
    assert listed["finer"]["here"].startswith("no")
    assert "CC-BY-SA-4.0" in listed["finer"]["licence"]
    code, out, _ = shell("benchmarks")
    assert code == 0
    assert "nlpaueb/finer-139@100fd7b3f61c" in out


def test_one_benchmark_is_read_and_shown(shell, tmp_path):
    path = write(tmp_path / "rows", train=[record(1), record(2)], validation=[record(3)], test=[record(4)])
    code, out, _ = shell("benchmarks", "finer", "--path", str(path), "--param", "train=1", "--json")
    (found,) = json.loads(out)
    assert code == 0
    assert found["rows"] == {"train": 1, "validation": 1, "heldout": 1}
    assert found["digests"] == load_benchmark("finer", path=path, train=1).pins
    assert "slice" in found["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("benchmarks", "finer"), "no path is given"),
        (("benchmarks", "finer", "--path", "absent"), "no such file"),
        (("benchmarks", "fine"), "Installed"),
        (("benchmarks", "--path", "x"), "NAME"),
        (("benchmarks", "finer", "--param", "train"), "name=value"),
        (("benchmarks", "finer", "--param", "rows=3"), "rows"),
    ],
)
def test_bad_input_is_one_line(shell, arguments, said):
    code, _, err = shell(*arguments)
    assert code != 0
    assert said in err


def settings(name: str, path: Path, **more: Any) -> dict[str, Any]:
    """The example's configuration, on other rows and small."""
    found = yaml.safe_load((EXAMPLES / "benchmarks" / f"run_{name}.yaml").read_text(encoding="utf-8"))
    found["data"]["benchmark"]["params"].update(path=str(path), **more)
    found["log_dir"] = "log"
    found["output"] = "learned.json"
    return found


def run(shell: Any, config: dict[str, Any]) -> str:
    Path("run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    code, out, err = shell("run", "run.yaml")
    assert code == 0, err
    return out


def receipts() -> list[dict[str, Any]]:
    text = Path("log", "heldout_receipts.jsonl").read_text(encoding="utf-8")
    return [entry["receipt"] for line in text.splitlines() if (entry := json.loads(line))["kind"] == "read"]


def test_finer_is_learned_on_the_simulated_service_from_a_path_beside_the_file(shell):
    # Other numbers in each split, and the same labels: they come again after 139.
    splits = {"train": range(16), "validation": range(139, 145), "test": range(278, 286)}
    write(Path("rows"), **{name: [record(number) for number in numbers] for name, numbers in splits.items()})
    config = settings("finer", Path("rows"), train=16, validation=6, heldout=8)
    config["strategies"] = {
        "operators": ["insert"],
        "controller": {"name": "static", "params": {"size": 8, "reason": "a test"}},
    }
    config["budget"] = {"rollouts": 60}
    out = run(shell, config)
    assert "FiNER-139" in out
    assert "n = 8)" in out
    learned = Path("learned.json").read_text(encoding="utf-8")
    assert any(f"[{name}]" in learned for number in range(16) for name in record(number)["target"].split(","))
    assert [len(receipt["after"]) for receipt in receipts()] == [8]


@pytest.mark.parametrize("name", ["formula", "finer"])
def test_real_slices_run_and_held_out_is_scored_once(shell, name):
    if not (REAL / name).is_dir():
        pytest.skip(f"the {name} records are not beside the repository")
    out = run(shell, settings(name, REAL / name, train=24, validation=8, heldout=12) | {"budget": {"rollouts": 80}})
    assert "n = 12)" in out
    assert "slice: 12 of" in out
    assert len(receipts()) == 1


def test_a_known_answer_from_each_form_of_finer(tmp_path):
    path = write(tmp_path, train=[record(1)], validation=[record(2)], test=[record(3)])
    for label_list in ("shared", "record", "hidden"):
        found = load_benchmark("finer", path=path, label_list=label_list)
        task = SimulatedTask.from_benchmark(found)
        assert task.joiner == ","
        assert {question.target for question in task.questions[:4]} == set(record(1)["target"].split(","))
        with SimulatedService(
            SimulatedConfig(time_scale=0.0), SimulatedTask(task.questions, ("tags",), 1.0, ",")
        ) as up:
            import dspy

            with dspy.context(lm=up.lm()):
                example = found.train.examples[0]
                assert found.metric(example, found.program()(**example.inputs())).score == 1.0


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_a_models_configuration_loads_and_its_models_have_prices(path, monkeypatch):
    monkeypatch.setenv("TOGETHER_API_KEY", "x")
    monkeypatch.setenv("VLLM_API_KEY", "x")
    config = read_config(path)
    plan_run(config, path.parent)
    for _, lm in config.lms:
        assert PriceTable().price(lm.model) is not None
        assert lm.api_key_env


@pytest.mark.parametrize("path", [path for path in MODELS if path.name.startswith("vllm")], ids=lambda path: path.name)
def test_a_self_hosted_configuration_runs_against_a_server(shell, path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "dummy-key-of-the-server")
    params = {"task": "compute", "formulas": 3, "train": 9, "validation": 6, "heldout": 6}
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config |= {"log_dir": "log", "output": "learned.json", "budget": {"rollouts": 30}, "threads": 4}
    config["data"]["benchmark"]["params"] = params
    config["strategies"] = {"controller": {"name": "static", "params": {"size": 4, "reason": "a test"}}}
    task = SimulatedTask.from_benchmark(load_benchmark("formula-mini", **params), params=params)
    with SimulatedService(SimulatedConfig(time_scale=0.0), task) as service:
        for role in ("task", "proposer"):
            config["lms"][role] |= {"api_base": service.api_base, "cache": False}
        out = run(shell, config)
        assert service.stats().total.calls > 30
    assert "$0.0000" in out
    for file in Path().rglob("*"):
        assert not file.is_file() or b"dummy-key-of-the-server" not in file.read_bytes()


@pytest.mark.parametrize(
    "model",
    [
        "openai/deepseek-ai/DeepSeek-V3.1",
        "openai/accounts/fireworks/models/deepseek-v3p1",
        "openai/deepseek/deepseek-chat-v3.1",
        "openai/openai/gpt-oss-120b",
        "openai/accounts/fireworks/models/gpt-oss-120b",
    ],
)
def test_the_families_have_prices_under_their_usual_names(model):
    price = PriceTable().price(model)
    assert price is not None
    assert price.completion > price.prompt > 0


def test_formula_rows_of_both_of_finloras_forms_are_read(tmp_path):
    old = {
        "context": 'Use formula Ratio (R) to answer this question:  "What is $4 over $2?"\n with a numerical answer '
        "and with no explanations or other text. Answer:",
        "target": "2.0",
    }
    root = tmp_path / "data"
    write(root / "train", formula_train=[formula_row(number) for number in range(40)])
    write(root / "test", formula_test=[old])
    found = load_benchmark("formula", path=tmp_path)
    assert found.heldout.examples[0].question == "What is $4 over $2?"
    assert len(found.train) + len(found.validation) == 40
    assert "75/25" in found.source
    task = SimulatedTask.from_benchmark(found, params={"path": str(tmp_path)})
    assert {question.target for question in task.questions} >= {"2.0", "1.0"}
