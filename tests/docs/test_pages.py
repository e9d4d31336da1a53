"""Every Python block and every `combee` command of the README and the site runs as it stands.

No model answers: `openai/...` is the simulated service here, at the address that OPENAI_API_BASE
names.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import pytest
import yaml

from combee_dspy import Budget, Combee, load_benchmark
from combee_dspy.cli import main
from combee_dspy.cli._reading import checked
from combee_dspy.testing import ScriptedLM, as_chat
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / ".claude" / "skills" / "combee-dspy" / "SKILL.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "how_to").glob("*.md")),
]
PAGES = [
    page for page in PAGES if page.name not in ("cli.md", "results.md")
]  # made by make docs; figures
BLOCK = re.compile(r"^```(python|bash|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What needs a network, a GPU, a key, a store, or somebody who types; other tests run what can be
# run.
ELSEWHERE = (
    "pip install",
    "make ",
    "export ",
    "vllm serve",
    "combee demo",
    "combee plan",
    "combee diagnose mlflow:",
    "combee learn --lm",
    "combee run examples/models",
    "combee benchmarks finer",
    "combee track replay",
    "combee publish",
    "combee canary",
    "combee live",
)


HALVES = {"first": slice(12), "second": slice(12, None)}


class Rows(NamedTuple):
    train: list[Any]
    validation: list[Any]
    heldout: list[Any]


def named(page):
    return str(page.relative_to(ROOT))


def blocks(page):
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(page):
    lines = (
        "\n".join(text for kind, text in blocks(page) if kind == "bash")
        .replace("\\\n", " ")
        .splitlines()
    )
    return [
        line.strip() for line in lines if line.strip() and not line.startswith(("#", *ELSEWHERE))
    ]


@pytest.fixture(scope="module")
def data():
    return load_benchmark(
        "formula-mini", task="compute", formulas=6, train=24, validation=24, heldout=24
    )


@pytest.fixture(scope="module")
def service(data):
    with SimulatedService(SimulatedConfig(time_scale=0.0), benchmark_task(data)) as running:
        yield running


@pytest.fixture
def reader(service, monkeypatch, tmp_path):
    """A user's machine: a folder, a key in the environment, and a service behind it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_BASE", service.api_base)
    monkeypatch.setenv("OPENAI_API_KEY", "any-word")
    monkeypatch.setenv("VLLM_API_KEY", "any-word")
    monkeypatch.setenv("COLUMNS", "100")
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    settings = dspy.settings.copy()
    yield tmp_path
    dspy.configure_cache()
    dspy.configure(**settings)


def names(data, service):
    """What the pages leave to the reader: a program, three sets, LMs."""
    train, validation, heldout = (list(split.examples) for split in data.splits)
    student = dspy.ChainOfThought(
        dspy.Signature("question -> answer", "Answer the question. Answer in English.")
    )
    right = {row.question: str(row.answer) for split in data.splits for row in split.examples}

    def judged(request):
        question = next(question for question in right if question in request.text)
        return as_chat(
            {"feedback": "Look again.", "score": float(f'"{right[question]}"' in request.text)}
        )

    def exact_match(gold, pred, trace=None, pred_name=None, pred_trace=None):
        return float(pred.answer == gold.answer)

    return {
        "dspy": dspy,
        "program": student,
        "student": student,
        "better": student,
        "exact_match": exact_match,
        "metric": exact_match,
        "train": train,
        "validation": validation,
        "heldout": heldout,
        "proposer_lm": service.lm(),
        "reflection_lm": service.lm(),
        "judge_lm": ScriptedLM(judged),
        "combee": Combee(
            exact_match,
            budget=Budget(rollouts=100),
            reflection_lm=service.lm(),
            log_dir="runs/tasks",
        ),
        "data": {
            name: Rows(*(rows[half] for rows in (train, validation, heldout)))
            for name, half in HALVES.items()
        },
    }


def each(pages, *slow):
    return [
        pytest.param(page, marks=pytest.mark.slow) if named(page) in slow else page
        for page in pages
    ]


@pytest.mark.parametrize(
    "page",
    each(
        [page for page in PAGES if any(kind == "python" for kind, _ in blocks(page))],
        "README.md",
        ".claude/skills/combee-dspy/SKILL.md",
        "docs/concepts.md",
        "docs/how_to/costs.md",
        "docs/how_to/live.md",
        "docs/how_to/mlflow.md",
        "docs/how_to/playbooks.md",
        "docs/how_to/tasks.md",
        "docs/how_to/traces.md",
    ),
    ids=named,
)
def test_the_python_of_a_page_runs(page, reader, data, service, request):
    here = names(data, service)
    is_logged = "autolog" in page.read_text(encoding="utf-8")
    if is_logged:
        # A context of DSPy's takes its callbacks over as they are when it is entered.
        request.getfixturevalue("autolog")()
    with dspy.context(lm=service.lm()):
        for kind, text in blocks(page):
            if kind == "python":
                exec(compile(text, str(page), "exec"), here)  # noqa: S102 - this repository's own pages
    if is_logged:
        pytest.importorskip("mlflow").set_tracking_uri(None)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_configurations_of_a_page_are_read(page):
    for kind, text in blocks(page):
        if kind == "yaml":
            checked(yaml.safe_load(text))


@pytest.fixture(scope="module")
def runs_of_the_pages(tmp_path_factory):
    """What the commands of the pages name: the quickstart's run.yaml, and two runs of it."""
    folder = tmp_path_factory.mktemp("runs")
    (text,) = (text for kind, text in blocks(ROOT / "docs" / "quickstart.md") if kind == "yaml")
    for name in ("serial", "file"):
        settings = yaml.safe_load(text) | {"log_dir": f"runs/{name}"}
        (folder / "run.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        assert combee("run", str(folder / "run.yaml")) == 0
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    logs = [
        {"question": f"What is {number} doubled?", "reply": "?", "right": str(2 * number)}
        for number in range(8)
    ]
    (folder / "logs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logs))
    (folder / "small.yaml").write_text(
        "{num_threads: 4, lms: {task: {model: simulated, slots: 4, time_scale: 0}}}"
    )
    return folder


def combee(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


@pytest.mark.parametrize(
    "page",
    each(
        [page for page in PAGES if commands(page)],
        "docs/how_to/benchmark.md",
        "docs/how_to/plan.md",
        "docs/quickstart.md",
    ),
    ids=named,
)
def test_the_commands_of_a_page_run(page, reader, runs_of_the_pages, capfd):
    shutil.copytree(runs_of_the_pages, reader, dirs_exist_ok=True)
    for line in commands(page):
        name, *arguments = shlex.split(line, comments=True)
        assert name == "combee", line
        # These end with 1 where they say no go, and that the claim is not ready.
        ends = (0, 1) if arguments[0] in ("diagnose", "verify") else (0,)
        assert combee(*arguments) in ends, (line, capfd.readouterr())
