"""``combee run``: what it learns, says and saves."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path

import dspy
import pytest
import yaml

from combee_dspy.cli._plan import plan_run
from combee_dspy.lms import ChoiceAdapter, EmbeddedOptions

SIMULATED = """
data: {benchmark: {name: formula-mini, params: {train: 12, validation: 6, heldout: 6}}}
lms: {task: {model: simulated, time_scale: 0}}
budget: {rollouts: 30}
num_threads: 4
"""


def written(text):
    Path("run.yaml").write_text(text, encoding="utf-8")
    return "run.yaml"


def test_a_dry_run_shows_the_plan_and_buys_nothing(shell, tmp_path):
    code, out, err = shell("run", written(SIMULATED + "output: out/learned.json\n"), "--dry-run")
    assert (code, err) == (0, "")
    assert "train 12, validation 6, heldout 6" in out
    assert "ReferenceScan(" in out
    assert "task simulated" in out
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_a_dry_run_reckons_costs_and_names_prices_and_windows_that_are_missing(shell, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "none")
    models = (
        "lms: {task: {model: openai/gpt-4, api_key_env: SOME_KEY},"
        " proposer: {model: openai/nobodys, api_key_env: SOME_KEY}}\n"
    )
    config = SIMULATED.splitlines()[1] + f"\n{models}budget: {{rollouts: 60}}\n"
    code, out, err = shell("run", written(config), "--dry-run")
    assert code == 0, err
    out = " ".join(out.split())
    assert "rollouts about 60, and 12 of the held-out set" in out
    assert "tokens about task" in out
    assert re.search(r"dollars about \$\d+\.\d+ and what has no price", out)
    assert "no price is known for openai/nobodys (proposer): give costs.prices" in out
    small = config.replace("openai/nobodys", "openai/gpt-4")
    out = " ".join(shell("run", written(small), "--dry-run")[1].split())
    assert "openai/gpt-4 (proposer) takes 8,192 tokens and may be asked with about 24,000" in out
    assert "lower max_call_tokens of the aggregator" in out


def test_a_dry_run_reckons_a_judge_and_what_of_the_budget_ends_first(shell, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "none")
    Path("their_judge.py").write_text(
        "import dspy\n"
        "from combee_dspy.evaluation import Judge\n"
        "judge = Judge('Right?', lm=dspy.LM('openai/gpt-4o-mini', api_key='none'))\n"
    )
    lm = "{model: openai/gpt-4o, api_key_env: SOME_KEY}"
    config = f"{SIMULATED.splitlines()[1]}\nlms: {{task: {lm}}}\nmetric: their_judge:judge\n"

    def estimate(budget):
        code, out, err = shell("run", written(f"{config}budget: {budget}\n"), "--dry-run")
        assert code == 0, err
        out = " ".join(out.split())
        about = re.search(r"rollouts about (\d+),.*dollars about \$([\d.]+)", out)
        return out, int(about[1]), float(about[2])

    out, rollouts, whole = estimate("{rollouts: 200}")
    assert rollouts == 200
    assert re.search(r"evaluator [\d,]+ in, 63,600 out", out)
    assert "budget." not in out.split("assuming")[0]
    out, rollouts, dollars = estimate(f"{{rollouts: 200, dollars: {whole / 4}}}")
    assert "; budget.dollars ends it" in out
    # The reading of the held-out set is beside the search's budget.
    assert 40 < rollouts < 60
    assert whole / 5 < dollars < whole / 3
    assert "; budget.tokens ends it" in estimate("{rollouts: 200, tokens: 50000}")[0]


def test_a_dry_run_reckons_a_call_for_each_trajectory_of_a_playbook_alone(shell):
    def proposer(artifact):
        code, out, err = shell(
            "run", written(f"{SIMULATED}strategies: {{artifact: {artifact}}}\n"), "--dry-run"
        )
        assert code == 0, err
        return re.search(r"proposer ([\d,]+) in, ([\d,]+) out", " ".join(out.split())).groups()

    assert proposer("memory") == proposer("instruction") != proposer("playbook")


def test_a_run_learns_says_what_it_cost_and_saves_a_program(shell, tmp_path):
    code, out, err = shell("run", written(SIMULATED + "output: out/learned.json\nlog_dir: log\n"))
    assert code == 0, err
    lines = dict(line.split(None, 1) for line in out.splitlines())
    assert lines["validation"].count("→") == 1
    assert "n = 6: " in lines["held-out"]
    assert out.startswith("held-out "), "a loss there would be the first line"
    assert "task" in lines["calls"]
    assert "no language model" in lines["note"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["learned.json"]
    program = dspy.Predict("question -> formula")
    before = program.signature.instructions
    program.load(str(tmp_path / "out" / "learned.json"))
    assert program.signature.instructions != before
    # The same file again goes on where it ended, and has nothing left to buy.
    again = shell("run", "run.yaml")[1]
    assert [line for line in again.splitlines() if "spent" not in line] == [
        line for line in out.splitlines() if "spent" not in line
    ]


def test_your_own_program_files_and_service_run_and_no_key_is_written(shell, tmp_path, monkeypatch):
    from combee_simulator import SimulatedConfig, SimulatedService, SimulatedTask

    rows = [
        {"question": f"What is word {n}?", "answer": f"w{n % 3}", "kind": f"k{n % 3}"}
        for n in range(18)
    ]
    for name, part in (("train", rows[:8]), ("validation", rows[8:13]), ("heldout", rows[13:])):
        Path(f"{name}.jsonl").write_text(
            "\n".join(json.dumps(row) for row in part), encoding="utf-8"
        )
    Path("their_task.py").write_text(
        "import dspy\n"
        "Program = lambda: dspy.Predict('question -> answer')\n"
        "def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):\n"
        "    return dspy.Prediction(score=float(gold.answer == pred.answer), feedback=gold.kind)\n"
    )
    monkeypatch.setenv("THEIR_KEY", "dummy-key-of-the-service")
    examples = [dspy.Example(row) for row in rows]
    task = SimulatedTask.from_examples(
        examples, "question", "answer", key_of=lambda row: row["kind"]
    )
    with SimulatedService(SimulatedConfig(time_scale=0.0), task) as service:
        text = f"""
program: their_task:Program
metric: their_task:metric
data:
  {{train: train.jsonl, validation: validation.jsonl, heldout: heldout.jsonl, inputs: [question]}}
lms:
  task:
    model: openai/simulated
    api_base: "{service.api_base}"
    api_key_env: THEIR_KEY
    cache: false
strategies:
  operators: [insert]
  controller: {{name: static, params: {{size: 4, reason: a test}}}}
budget: {{rollouts: 20}}
log_dir: log
output: learned.json
"""
        code, out, err = shell("run", written(text))
    assert code == 0, err
    assert "n = 5: " in out
    assert out.rstrip().endswith("report.html")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"learned.json", "journal.sqlite"} < {path.name for path in files}
    for content in ((out + err).encode(), *(path.read_bytes() for path in files)):
        assert b"dummy-key-of-the-service" not in content


def test_a_held_out_set_that_overlaps_is_refused_before_the_run(shell):
    Path("rows.jsonl").write_text(
        '{"question": "a", "answer": "b"}\n{"question": "c", "answer": "d"}\n'
    )
    Path("their_task.py").write_text(
        "import dspy\n"
        "Program = dspy.Predict('question -> answer')\n"
        "def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):\n    return 1.0\n"
    )
    text = (
        "program: their_task:Program\nmetric: their_task:metric\n"
        "data: {train: rows.jsonl, heldout: rows.jsonl, inputs: [question]}\n"
        "lms: {task: openai/none}\nbudget: {rollouts: 5}\n"
    )
    for more in ([], ["--dry-run"]):
        code, _, err = shell("run", written(text), *more)
        assert code == 2
        assert "heldout shares 2 rows" in err


def test_an_unreachable_service_is_found_before_anything_is_bought(shell, tmp_path):
    lm = (
        'lms: {task: {model: openai/x, api_base: "http://127.0.0.1:9/v1", options: {timeout: 2},'
        " num_retries: 0}}"
    )
    code, _, err = shell(
        "run", written(SIMULATED.replace("lms: {task: {model: simulated, time_scale: 0}}", lm))
    )
    assert code == 2
    assert "No more was bought than the first rows" in err
    assert err.count("\n") == 1


def test_the_simulated_model_says_how_it_is_installed_and_simulates_only_benchmarks(
    shell, monkeypatch
):
    rows = (
        "data: {train: rows.jsonl, inputs: [question]}\nprogram: dspy:Predict\nmetric:"
        " builtins:len\n"
    )
    Path("rows.jsonl").write_text('{"question": "a"}\n')
    Path("their_task.py").write_text("import dspy\nready = dspy.Predict('question -> answer')\n")
    text = (
        rows.replace("dspy:Predict", "their_task:ready")
        + "lms: {task: simulated}\nbudget: {rollouts: 3}\n"
    )
    assert "simulates only benchmarks" in shell("run", written(text))[2]
    monkeypatch.setitem(sys.modules, "combee_simulator.benchmarks", None)
    code, _, err = shell("run", written(SIMULATED))
    assert (code, "simulated" in err, "combee-simulator" in err) == (2, True, True)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    code, _, err = shell("run", written(SIMULATED))
    assert code == 2
    assert "the model 'simulated' needs combee-dspy[all], which is not installed" in err
    assert "from the root of a checkout: pip install . ./plugins/simulator" in err


TASKS = """
tasks:
  one: {}
  other:
    seed: 3
    data:
      benchmark:
        name: formula-mini
        params: {task: compute, formulas: 3, train: 9, validation: 6, heldout: 6}
at_once: 2
output: out/{name}.json
log_dir: log
"""


def test_several_tasks_are_compiled_saved_and_shown(shell):
    code, out, err = shell("run", written(SIMULATED + TASKS))
    assert code == 0, err
    assert [line.split()[1] for line in out.splitlines() if line.startswith("task ")] == [
        "one",
        "other",
    ]
    assert out.count("\nheld-out") == 2
    assert {path.name for path in Path("out").iterdir()} == {"one.json", "other.json"}
    results = [json.loads(line) for line in shell("runs", "log", "--json")[1].splitlines()]
    assert [(row["name"], row["seed"]) for row in results] == [("one", 0), ("other", 3)]


def test_a_task_that_fails_leaves_the_others_their_programs(shell):
    # Its held-out rows cannot tell the improvement that is to be claimed.
    broken = TASKS.replace("seed: 3", "heldout: {target: 0.01}")
    code, out, err = shell("run", written(SIMULATED + broken))
    assert code == 2
    assert "held-out" in out
    assert err.startswith("error: other: target is finer")
    assert {path.name for path in Path("out").iterdir()} == {"one.json"}


def test_a_dry_run_shows_every_task(shell):
    code, out, err = shell("run", written(SIMULATED + TASKS), "--dry-run")
    assert code == 0, err
    assert "train 12, validation 6, heldout 6" in out
    assert "train 9, validation 6, heldout 6" in out
    assert "Nothing was bought" in out
    assert not Path("out").exists()


@pytest.mark.parametrize("file", ["a.gguf", ["a.gguf", "b.gguf"]])
def test_the_embedded_model_is_any_file_beside_the_runs_own(tmp_path, file):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    model = {"model": "embedded", "file": file, "sha256": "0" * 64, "slots": 3, "context": 1024}
    plan = plan_run({**yaml.safe_load(SIMULATED), "lms": {"task": model}}, tmp_path)
    with plan.lms() as lm_of:
        lm = lm_of(plan.tasks[0].lm)
    parts = tuple(str(tmp_path / name) for name in ([file] if isinstance(file, str) else file))
    assert lm.engine.options == EmbeddedOptions(parts, "0" * 64, 3, 1024)


@pytest.mark.parametrize(
    ("model", "named", "used"),
    [
        ("m", "chat", dspy.ChatAdapter),
        ("m", "choice", ChoiceAdapter),
        ("embedded", None, ChoiceAdapter),
        ("m", None, None),
    ],
)
def test_an_adapter_is_chosen_by_name(tmp_path, model, named, used):
    more = {"adapter": named} if named else {}
    (planned,) = plan_run(
        {**yaml.safe_load(SIMULATED), "lms": {"task": model}, **more}, tmp_path
    ).tasks
    assert type(planned.settings().get("adapter")) is (used or type(None))
