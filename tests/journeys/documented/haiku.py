"""getting-started/gepa-optimization: an agent with two tools, whose metric has feedback for
mistakes alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import dspy

from tests.journeys.documented.scene import Optimizer, Page, Scores, score, teach
from tests.journeys.minds import field, written
from tests.journeys.server import Asked, Server

SEASONS = ("spring", "summer", "autumn", "winter")


class HaikuBot(dspy.Signature):
    """Write a haiku."""

    location: str = dspy.InputField()
    season: str = dspy.InputField()
    mood: str = dspy.InputField()
    haiku: str = dspy.OutputField()


def wikipedia_search(query: str) -> list[str]:
    """Search for titles of pages."""
    return [f"{query} (town)"]


def get_wikipedia_page(title: str) -> str:
    """Get the text of a page."""
    return f"{title} has a harbour."


def haiku_metric(
    example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    if example.season.strip().lower() in prediction.haiku.lower():
        return dspy.Prediction(score=0.0, feedback="It names the season.")
    return dspy.Prediction(score=1.0, feedback=None)


def rows(first: int, count: int) -> list[dspy.Example]:
    return [
        dspy.Example(location=f"Port {n}", season=SEASONS[n % 4], mood="calm").with_inputs(
            "location", "season", "mood"
        )
        for n in range(first, first + count)
    ]


def mind(asked: Asked) -> str:
    if asked.model == "teacher":
        return teach(asked, "Never name the season.")
    season = field(asked, "season")
    taught = "Never name the season" in asked.system
    haiku = "Nets dry on the wall" if taught else f"{season} on the wall"
    if "next_tool_name" not in asked.system:
        return written(asked, {"reasoning": "Writing.", "haiku": haiku})
    name, arguments = "wikipedia_search", {"query": field(asked, "location")}
    if "[[ ## observation_0 ## ]]" in asked.last:
        name, arguments = "finish", {}
    return written(
        asked, {"next_thought": "Look.", "next_tool_name": name, "next_tool_args": arguments}
    )


def script(optimizer_class: Optimizer, server: Server) -> Scores:
    dspy.configure(lm=server.lm("student"))
    train, val = rows(0, 8), rows(100, 8)
    haiku_bot = dspy.ReAct(HaikuBot, tools=[wikipedia_search, get_wikipedia_page])
    optimizer = optimizer_class(
        metric=haiku_metric, reflection_lm=server.lm("teacher"), auto="light", num_threads=2
    )
    optimized_haiku_bot = optimizer.compile(haiku_bot, trainset=train, valset=val)
    with tempfile.TemporaryDirectory() as folder:
        optimized_haiku_bot.save(str(Path(folder) / "haiku.json"))
        loaded = dspy.ReAct(HaikuBot, tools=[wikipedia_search, get_wikipedia_page])
        loaded.load(str(Path(folder) / "haiku.json"))
    return Scores(score(haiku_bot, val, haiku_metric), score(loaded, val, haiku_metric))


PAGE = Page(script, mind)
