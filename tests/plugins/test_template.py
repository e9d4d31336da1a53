"""The template lives outside the package, is found by name, and passes its own tests."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from combee_dspy import registry
from combee_dspy.cli._scaffold import render_plugin
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lesson
from combee_dspy.testing.doubles import ScriptedPredict, context, reflections

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "plugins" / "template"


def written(folder):
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache"} & set(path.parts)
    }


def test_it_is_found_by_name_from_a_distribution_of_its_own():
    (entry,) = [entry for entry in registry.installed() if entry.name == "template"]
    assert (entry.kind, entry.distribution, entry.problem) == ("aggregator", "combee-dspy-template", None)
    assert entry.version == metadata.version("combee-dspy-template")
    built = registry.resolve("aggregator", "template")
    assert type(built).__module__ == "combee_template._strategy"
    assert not Path(sys.modules["combee_template"].__file__).is_relative_to(ROOT / "combee_dspy")


def test_its_own_tests_pass():
    done = subprocess.run(  # noqa: S603 - this interpreter and a fixed path
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(TEMPLATE), str(TEMPLATE)],
        cwd=TEMPLATE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_it_is_what_the_command_writes():
    assert written(TEMPLATE) == render_plugin("template", "aggregator"), (
        "plugins/template and combee_dspy/cli/_plugin_template have drifted apart: change both"
    )


def test_its_conformance_test_has_five_lines():
    text = (TEMPLATE / "tests" / "test_conformance.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) == 5


def test_it_asks_once_per_chunk_and_keeps_every_lesson_with_its_sources():
    predict = ScriptedPredict()
    learned = registry.build("aggregator", "template", {"size": 3}).aggregate(reflections(7), context(predict))
    assert [len(call.inputs["examples_with_feedback"]) for call in predict.calls] == [3, 3, 1]
    assert [lesson.sources for lesson in learned.lessons] == [(0, 1, 2)] * 2 + [(3, 4, 5)] * 2 + [(6,)] * 2
    assert all(isinstance(lesson, Lesson) for lesson in learned.lessons)


def test_a_size_below_one_is_refused_by_name():
    with pytest.raises(ArgumentValueError) as caught:
        registry.build("aggregator", "template", {"size": 0}).aggregate((), context())
    assert caught.value.argument == "size"
