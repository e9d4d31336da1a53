"""The table of defaults on the results' pages names what the code has today."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from combee_dspy import Combee, Search
from combee_dspy.aggregators import ReferenceScan
from combee_dspy.artifacts import Instruction, Memory
from combee_dspy.guards import Guards
from combee_dspy.settings import Settings
from combee_dspy.weighers import Posterior

PAGE = Path(__file__).parents[2] / "docs" / "results" / "defaults.md"
ARGUMENTS = inspect.signature(Combee).parameters


@pytest.mark.parametrize(
    "default",
    [
        f'aggregator="{ARGUMENTS["aggregator"].default}"',
        f'artifact="{ARGUMENTS["artifact"].default}"',
        f"diversity={ARGUMENTS['diversity'].default}",
        f"num_threads={ARGUMENTS['num_threads'].default}",
        f'keep="{Settings.__dataclass_fields__["keep"].default}"',
        f'weigher="{Search().weigher}"',
        f"copies={ReferenceScan().copies}",
        f'placement="{ReferenceScan().placement}"',
        f"fan_in={ReferenceScan().fan_in}",
        f'view="{Instruction().view}"',
        f"budget_tokens={Memory().budget_tokens}",
        f"max_copied_words={Guards().max_copied_words}",
        f"sole={Posterior().sole}",
    ],
)
def test_the_table_names_the_default(default: str) -> None:
    first_cells = [
        line.split("|")[1] for line in PAGE.read_text("utf-8").splitlines() if "|" in line
    ]
    assert any(default in cell for cell in first_cells)
