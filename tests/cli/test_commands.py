from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import demo, exceptions
from combee_dspy.cli import ExitCode, main
from combee_dspy.cli._exit import exit_code_of, report
from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask

Shell = Callable[..., tuple[int, str, str]]
BENCHMARK = "data: {benchmark: {name: formula-mini, params: {train: 12, validation: 6, heldout: 6}}}\n"
SIMULATED = BENCHMARK + "lms: {task: {model: simulated, time_scale: 0}}\nbudget: {rollouts: 30}\nthreads: 4\n"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """Run ``combee`` in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        code = caught.value.code
        assert isinstance(code, int)
        return code, out, err

    yield run
    sys.modules.pop("their_cli_task", None)


def config(text: str) -> str:
    Path("run.yaml").write_text(text, encoding="utf-8")
    return "run.yaml"


def tree(root: type[BaseException]) -> Iterator[type[BaseException]]:
    # Tests and plugins may have made errors of their own by now.
    if root.__module__.startswith("combee_dspy"):
        yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_every_error_of_the_tree_has_a_code_of_its_own_branch() -> None:
    codes = {kind.__name__: exit_code_of(kind.__new__(kind)) for kind in tree(exceptions.CombeeError)}
    assert codes.pop("CombeeError") is ExitCode.UNEXPECTED
    assert ExitCode.UNEXPECTED not in codes.values()
    assert codes["SplitOverlapError"] is codes["UnknownStrategyError"] is codes["PluginError"] is ExitCode.BAD_INPUT
    assert codes["LMUnreachableError"] is codes["InfrastructureError"] is ExitCode.SERVICE
    assert codes["DataSourceError"] is ExitCode.DATA_SOURCE
    assert codes["LocalModelError"] is ExitCode.LOCAL_MODEL
    assert exit_code_of(KeyboardInterrupt()) is ExitCode.INTERRUPTED


def test_every_code_is_in_the_help_of_every_command(shell: Shell) -> None:
    for arguments in (["--help"], ["run", "--help"], ["demo", "--help"]):
        code, out, _ = shell(*arguments)
        assert code == 0
        listed = [line.split()[0] for line in out.split("Exit codes:")[1].split("\n\n")[0].splitlines() if line.strip()]
        assert listed == [str(one.value) for one in ExitCode]


def test_an_error_is_one_line_without_keys(capsys: pytest.CaptureFixture[str]) -> None:
    error = exceptions.LMUnreachableError("task", "m", "401\nfor sk-abcdefghijklmnop1234\x1b[2J")
    assert report(error) is ExitCode.SERVICE
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.startswith("error: the task LM 'm' did not answer")
    assert "sk-abc" not in line
    assert "\x1b" not in line


def test_a_key_at_the_end_of_an_errors_line_leaves_no_piece(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "Zq7w" + "x9Kd" * 9)
    report(ValueError("a" * 1_960 + " Zq7w" + "x9Kd" * 9 + " tail" * 20))
    assert "Zq7wx9" not in capsys.readouterr().err


def test_an_unexpected_error_names_its_class_and_the_way_to_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ZeroDivisionError("of sk-abcdefghijklmnop1234")
    except ZeroDivisionError as error:
        assert report(error) is ExitCode.UNEXPECTED
        short = capsys.readouterr().err
        report(error, debug=True)
    long = capsys.readouterr().err
    assert short.startswith("error: ZeroDivisionError: of ")
    assert "--debug" in short
    assert "Traceback" in long
    assert "sk-abc" not in short + long


def test_a_dry_run_shows_the_plan_and_buys_nothing(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell("run", config(SIMULATED + "output: out/learned.json\n"), "--dry-run")
    assert (code, err) == (0, "")
    assert "train 12, validation 6, heldout 6" in out
    assert "Union(" in out
    assert "task simulated" in out
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_a_run_learns_says_what_it_cost_and_saves_a_program(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell("run", config(SIMULATED + "output: out/learned.json\n"))
    assert code == 0, err
    lines = dict(line.split(None, 1) for line in out.splitlines())
    assert lines["validation"].count("→") == 1
    assert "n = 6)" in lines["held-out"]
    assert "calls" in lines["task"]
    assert "no language model" in lines["note"]
    assert "seed validation" in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["learned.json"]
    program = dspy.Predict("question -> formula")
    before = program.signature.instructions
    program.load(str(tmp_path / "out" / "learned.json"))
    assert program.signature.instructions != before


def test_simulated_formula_knows_the_formulas_that_its_questions_hide(shell: Shell, tmp_path: Path) -> None:
    for split, start in (("train", 0), ("validation", 20), ("test", 40)):
        rows = [
            {
                "context": f"Use formula {name} to answer the question. Formula: {name} = a / b, Explanation: a by b. "
                f'Question: "With {start + n} cases, what is the figure of the firm called X{start + n}?". Answer:',
                "target": f"{start + n}.5",
            }
            for n, name in enumerate(["Quick Ratio", "Gross Margin"] * 4)
        ]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    text = (
        f"data: {{benchmark: {{name: formula, params: {{path: '{tmp_path}'}}}}}}\n"
        "lms: {task: {model: simulated, time_scale: 0}}\nbudget: {rollouts: 60}\nthreads: 4\n"
        "strategies: {operators: [insert], controller: {name: static, params: {size: 8, reason: a test}}}\n"
        "output: learned.json\n"
    )
    code, _, err = shell("run", config(text))
    assert code == 0, err
    assert "[F01] Gross Margin" in (tmp_path / "learned.json").read_text(encoding="utf-8")


def test_your_own_program_files_and_service_run_and_no_key_is_written(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": f"What is word {n}?", "answer": f"w{n % 3}", "kind": f"k{n % 3}"} for n in range(18)]
    for name, part in (("train", rows[:8]), ("validation", rows[8:13]), ("heldout", rows[13:])):
        Path(f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in part), encoding="utf-8")
    Path("their_cli_task.py").write_text(
        "import dspy\n"
        "Program = lambda: dspy.Predict('question -> answer')\n"
        "def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):\n"
        "    return dspy.Prediction(score=float(gold.answer == pred.answer), feedback=gold.kind)\n"
    )
    monkeypatch.setenv("THEIR_KEY", "dummy-key-of-the-service")
    task = SimulatedTask.from_examples(
        [dspy.Example(row) for row in rows], "question", "answer", key_of=lambda row: row["kind"]
    )
    with SimulatedService(SimulatedConfig(time_scale=0.0), task) as service:
        text = f"""
program: their_cli_task:Program
metric: their_cli_task:metric
data: {{train: train.jsonl, validation: validation.jsonl, heldout: heldout.jsonl, inputs: [question]}}
lms:
  task: {{model: openai/simulated, api_base: "{service.api_base}", api_key_env: THEIR_KEY, cache: false}}
strategies: {{operators: [insert], controller: {{name: static, params: {{size: 4, reason: a test}}}}}}
budget: {{rollouts: 20}}
log_dir: checkpoints
output: learned.json
"""
        code, out, err = shell("run", config(text))
    assert code == 0, err
    assert "n = 5)" in out
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"learned.json", "run.yaml"} < {path.name for path in files}
    assert any("checkpoints" in path.parts for path in files)
    assert "dummy-key-of-the-service" not in out + err
    for path in files:
        assert b"dummy-key-of-the-service" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        (SIMULATED + "strategies: {aggregator: median}\n", 2, "Installed: "),
        (SIMULATED + "strategies: {aggregator: {name: parallel-scan, params: {copys: 2}}}\n", 2, "copys"),
        (SIMULATED + "tracker: ledger-book\n", 2, "tracker names no installed strategy"),
        (SIMULATED + "output: learned.pkl\n", 2, "output does not end in .json"),
        (SIMULATED + "bugdet: 3\n", 2, "Did you mean 'budget'?"),
        (SIMULATED.replace("formula-mini", "formule"), 2, "benchmark names no installed strategy"),
        (SIMULATED.replace("formula-mini, params: {train: 12, validation: 6, heldout: 6}", "formula"), 4, "no path"),
        (SIMULATED.replace("simulated, time_scale: 0", "openai/x, api_key_env: NOT_SET_ANYWHERE"), 2, "is not set"),
        (SIMULATED + "program: no_such_module_at_all:x\n", 2, "program cannot be imported"),
    ],
)
def test_bad_input_is_one_line_and_a_code(shell: Shell, text: str, code: int, part: str) -> None:
    got, out, err = shell("run", config(text), "--dry-run")
    assert got == code, err
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert part in err


def test_a_held_out_set_that_overlaps_is_refused_before_the_run(shell: Shell) -> None:
    Path("rows.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": "c", "answer": "d"}\n')
    Path("their_cli_task.py").write_text(
        "import dspy\n"
        "Program = dspy.Predict('question -> answer')\n"
        "def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):\n    return 1.0\n"
    )
    code, _, err = shell(
        "run",
        config(
            "program: their_cli_task:Program\nmetric: their_cli_task:metric\n"
            "data: {train: rows.jsonl, heldout: rows.jsonl, inputs: [question]}\n"
            "lms: {task: openai/none}\nbudget: {rollouts: 5}\n"
        ),
    )
    assert code == 2
    assert "heldout shares 2 rows" in err


def test_an_unreachable_service_is_found_before_anything_is_bought(shell: Shell, tmp_path: Path) -> None:
    text = BENCHMARK + (
        'lms: {task: {model: openai/x, api_base: "http://127.0.0.1:9/v1", options: {timeout: 2}, num_retries: 0}}\n'
        "budget: {rollouts: 30}\noutput: learned.json\n"
    )
    code, _, err = shell("run", config(text))
    assert code == 3
    assert "Nothing was spent" in err
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_debug_shows_the_traceback(shell: Shell) -> None:
    code, _, err = shell("run", config("data: 3\n"), "--debug")
    assert code == 2
    assert "Traceback" in err


@pytest.mark.parametrize("arguments", [["run"], ["demo", "--seed", "-1"], ["demo", "--nothing"], ["dance"]])
def test_wrong_usage_is_bad_input(shell: Shell, arguments: list[str]) -> None:
    assert shell(*arguments)[0] == 2


def test_the_version_is_shown(shell: Shell) -> None:
    from combee_dspy import __version__

    assert shell("--version") == (0, f"combee_dspy {__version__}\n", "")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for the demo: notes what it was asked."""
    found: list[Any] = []
    monkeypatch.setattr(demo, "run_demo", found.append)
    return found


def test_the_demo_gets_what_was_asked(shell: Shell, asked: list[Any]) -> None:
    assert shell("demo")[0] == 0
    assert asked == [demo.DemoOptions()]
    arguments = "--lm openai/m --api-base http://h/v1 --api-key-env K --benchmark formula --path d --seed 4 --tokens 5"
    assert shell("demo", *arguments.split(), "--dollars", "0.5", "--no-mlflow")[0] == 0
    assert asked[1] == demo.DemoOptions(
        lm="openai/m",
        api_base="http://h/v1",
        api_key_env="K",
        benchmark="formula",
        path=Path("d"),
        seed=4,
        tokens=5,
        dollars=0.5,
        mlflow=False,
    )


def test_an_address_without_a_model_and_a_budget_of_nothing_are_refused(shell: Shell, asked: list[Any]) -> None:
    code, _, err = shell("demo", "--api-base", "http://h/v1")
    assert (code, "--lm" in err) == (2, True)
    code, _, err = shell("demo", "--rollouts", "0")
    assert (code, "--rollouts is not positive" in err) == (2, True)
    assert asked == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exceptions.LocalModelError("no wheel"), 5),
        (exceptions.DataSourceError("b", "s", "gone", "Look."), 4),
        (KeyboardInterrupt(), 130),
        (RuntimeError("odd"), 1),
    ],
)
def test_a_demo_that_fails_ends_with_the_errors_code(
    shell: Shell, asked: list[Any], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(demo, "run_demo", fail)
    got, _, err = shell("demo")
    assert got == code
    assert err.count("\n") == 1


def test_the_plugins_command_is_there(shell: Shell) -> None:
    code, out, _ = shell("plugins", "--json")
    assert code == 0
    assert {"tracker", "aggregator"} <= {entry["kind"] for entry in json.loads(out)}


def test_the_package_does_not_load_the_command_line_and_help_loads_no_dspy() -> None:
    code = (
        "import sys, combee_dspy\n"
        "bad = [name for name in ('combee_dspy.cli', 'typer', 'mlflow') if name in sys.modules]\n"
        "from combee_dspy.cli import app\n"
        "bad += [name for name in ('dspy', 'mlflow') if name in sys.modules]\n"
        "sys.exit(','.join(bad) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 - own
    assert (done.returncode, done.stderr) == (0, "")
