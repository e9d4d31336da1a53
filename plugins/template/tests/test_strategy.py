import asyncio

import pytest
from combee_dspy import registry
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.testing import ScriptedAsk, arriving, context, reflections

from combee_template import Template


def test_it_comes_from_this_distribution_and_is_found_by_name():
    found = [entry for entry in registry.installed() if (entry.kind, entry.name) == ("aggregator", "template")]
    assert [(entry.distribution, entry.problem) for entry in found] == [("combee-dspy-template", None)]
    assert registry.build("aggregator", "template") == Template()


def test_it_asks_once_for_each_chunk_and_keeps_every_lesson_with_its_sources():
    ask = ScriptedAsk()

    async def learned():
        return await Template(size=3).aggregate(arriving(reflections(7)), context(ask))

    lessons = asyncio.run(learned()).lessons
    assert [len(call.inputs["examples_with_feedback"]) for call in ask.calls] == [3, 3, 1]
    assert [lesson.sources for lesson in lessons] == [(0, 1, 2)] * 2 + [(3, 4, 5)] * 2 + [(6,)] * 2


def test_a_size_below_one_is_refused_by_name():
    with pytest.raises(ArgumentValueError, match="size"):
        Template(size=0)
