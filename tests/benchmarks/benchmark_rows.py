"""Records of Formula's and FiNER's forms, made up for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from combee_dspy.benchmarks.finer import LABELS

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def label(number: int) -> str:
    return LABELS[number % len(LABELS)]


def record(
    number: int, *, sentence: str | None = None, labels: str = ",".join(LABELS)
) -> dict[str, str]:
    """A record of four questions, in FinLoRA's words."""
    asked = [
        (
            f"{number}.{place}",
            sentence or f"In year {number} the item {place} came to $ {number}.{place} million .",
        )
        for place in range(1, 5)
    ]
    questions = "\n".join(
        f'{place}. What is best tag for entity "{entity}" in sentence: "{text}?"'
        for place, (entity, text) in enumerate(asked, 1)
    )
    context = (
        f"You are XBRL expert.  Here is a list of US GAAP tags options: ,{labels}. Answer the"
        " following 4 independent questions by providing only  4 US GAAP tags answers in the order"
        " of the questions. Each answer must be saperated by a comma (,).  Provide nothing else."
        f" \n{questions}\nOutput US GAAP tags:"
    )
    return {"context": context, "target": ",".join(label(number + place) for place in range(4))}


def formula_row(number: int) -> dict[str, str]:
    """A row of Formula."""
    context = (
        "Use formula Ratio to answer the question. Formula: R = A / B, Explanation: A: Ask: B:"
        " Bid. "
        f'Question: "Assets are ${number}. Find it.". Answer:'
    )
    return {"context": context, "target": f"{number}.0"}


def write(folder: Path, **splits: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    return folder
