"""The template lives outside the package, is found by name, and is what the command writes."""

from __future__ import annotations

import asyncio
import sys
from importlib import metadata
from pathlib import Path

import pytest

from combee_dspy import registry
from combee_dspy.cli.plugins import render_plugin
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.testing import ScriptedAsk, arriving, context, reflections

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "plugins" / "template"


def written(folder):
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not {"__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache"} & set(path.parts)
    }


def test_it_is_found_by_name_from_a_distribution_of_its_own():
    (entry,) = [entry for entry in registry.installed() if entry.name == "template"]
    assert (entry.kind, entry.distribution, entry.problem) == (
        "aggregator",
        "combee-dspy-template",
        None,
    )
    assert entry.version == metadata.version("combee-dspy-template")
    built = registry.resolve("aggregator", "template")
    assert type(built).__module__ == "combee_template._strategy"
    assert not Path(sys.modules["combee_template"].__file__).is_relative_to(ROOT / "combee_dspy")


def test_it_is_what_the_command_writes():
    assert written(TEMPLATE) == render_plugin("template", "aggregator"), (
        "plugins/template and combee_dspy/cli/_templates have drifted apart: change both"
    )


def test_its_conformance_test_has_five_lines():
    text = (TEMPLATE / "tests" / "test_conformance.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) == 5


def test_it_asks_once_for_each_chunk_and_keeps_every_lesson_with_its_sources():
    ask = ScriptedAsk()

    async def learned():
        template = registry.build("aggregator", "template", {"size": 3})
        return await template.aggregate(arriving(reflections(7)), context(ask))

    lessons = asyncio.run(learned()).lessons
    assert [len(call.inputs["examples_with_feedback"]) for call in ask.calls] == [3, 3, 1]
    assert [lesson.sources for lesson in lessons] == [(0, 1, 2)] * 2 + [(3, 4, 5)] * 2 + [(6,)] * 2


def test_a_size_below_one_is_refused_by_name():
    with pytest.raises(ArgumentValueError, match="size"):
        registry.build("aggregator", "template", {"size": 0})
