"""Rows, splits and hashes that results were measured on: they never change."""

from __future__ import annotations

import pytest
from benchmark_rows import REAL, formula_row, record, write

from combee_dspy.benchmarks import LoadedBenchmark, load_benchmark
from combee_dspy.hashing import digest_of

needs_real = pytest.mark.skipif(
    not REAL.is_dir(), reason="the real records are not beside the repository"
)


def digest(found: LoadedBenchmark) -> str:
    """One digest over the raw rows and the examples of all splits, in their order."""
    return digest_of(item for split in found.splits for item in (split.digest, *split.example_ids))[
        :16
    ]


@pytest.mark.parametrize(
    ("params", "golden"),
    [
        ({}, "943c8f00aa4ebc71"),
        ({"task": "compute"}, "8013ffa64e011c95"),
        (
            {"formulas": 6, "train": 60, "validation": 60, "heldout": 60, "seed": 1},
            "2981b4e00091e09f",
        ),
        ({"formulas": 28, "train": 600, "validation": 100, "heldout": 300}, "e879d06ec888f3a9"),
        (
            {
                "formulas": ("Quick Ratio", "Current Ratio"),
                "levels": (2,),
                "train": 5,
                "validation": 3,
                "heldout": 2,
            },
            "e34d0815865013e2",
        ),
        (
            {
                "task": "compute",
                "formulas": 7,
                "train": 25,
                "validation": 3,
                "heldout": 11,
                "seed": 3,
            },
            "1228957887247b45",
        ),
        (
            {"task": "compute", "levels": (3,), "train": 280, "validation": 28, "heldout": 28},
            "87062eb6ea937dbc",
        ),
    ],
)
def test_formula_mini(params, golden):
    assert digest(load_benchmark("formula-mini", **params)) == golden


@needs_real
@pytest.mark.parametrize(
    ("name", "below", "params", "golden"),
    [
        ("formula", "", {}, "dd70ccd85e5ff005"),
        (
            "formula",
            "",
            {"formula_text": True, "train": 24, "validation": 8, "heldout": 12},
            "997bbac039a4a4db",
        ),
        ("formula", "train.jsonl", {}, "99feb3fff10a4dea"),
        ("finer", "", {}, "f55ceb0f615fb0d5"),
        ("finer", "", {"label_list": "record", "train": 20}, "4bae4a13c51ef381"),
        ("finer", "train.jsonl", {}, "a767b558408b40c1"),
    ],
)
def test_real_records(name, below, params, golden):
    assert digest(load_benchmark(name, path=REAL / name / below, **params)) == golden


@pytest.mark.parametrize(
    ("name", "rows", "golden"),
    [
        ("formula", [formula_row(number) for number in range(200)], "2670e1339a46ae03"),
        (
            "finer",
            [record(n, sentence=f"Sentence of group {n // 3} says 1 .") for n in range(120)],
            "f0eca035e0c80a31",
        ),
    ],
)
def test_cuts_of_one_file(tmp_path, name, rows, golden):
    write(tmp_path, rows=rows)
    assert digest(load_benchmark(name, path=tmp_path / "rows.jsonl")) == golden
