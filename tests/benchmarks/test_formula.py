from __future__ import annotations

import dspy
import pytest
from benchmark_rows import REAL, formula_row, write

from combee_dspy.benchmarks import Formula, load_benchmark
from combee_dspy.benchmarks.formula import KNOWN_NOISE, PINS
from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    DataSourceError,
    UnknownStrategyError,
)
from combee_dspy.hashing import row_hash

needs_real = pytest.mark.skipif(
    not REAL.is_dir(), reason="the real records are not beside the repository"
)


def row(number: int, target: str = "2.0") -> dict[str, str]:
    return {**formula_row(number), "target": target}


@pytest.fixture
def folder(tmp_path):
    # A folder's name is no pattern.
    odd = tmp_path / "a[b]*c"
    return write(odd, train=[row(1), row(2)], validation=[row(3)], test=[row(4)])


def test_rows_of_a_folder_become_splits(folder, closed):
    loaded = load_benchmark("formula", path=folder)
    assert [len(split) for split in loaded.splits] == [2, 1, 1]
    assert loaded.heldout.row_hashes == (row_hash(row(4)),)
    example = loaded.train.examples[0]
    assert (example.question, example.answer) == ("Assets are $1. Find it.", "2.0")
    assert example.inputs().keys() == ["question"]
    assert loaded.notes == ()
    assert str(folder) in loaded.source
    assert isinstance(loaded.program(), dspy.ChainOfThought)
    assert loaded.metric(example, dspy.Prediction(answer="2")).score == 1.0


def test_the_formula_text_is_shown_on_request_and_the_pin_does_not_change(folder):
    hidden, shown = (
        load_benchmark("formula", path=folder),
        load_benchmark("formula", path=folder, formula_text=True),
    )
    assert shown.train.examples[0].question == row(1)["context"]
    assert "R = A / B" not in hidden.train.examples[0].question
    assert shown.pins == hidden.pins
    assert shown.train.example_ids != hidden.train.example_ids


def test_pinned_rows_load_and_other_rows_do_not(folder):
    pins = load_benchmark("formula", path=folder).pins
    assert load_benchmark("formula", path=folder, pin=pins).pins == pins
    write(folder, train=[row(2), row(1)])
    with pytest.raises(DataSourceError) as caught:
        load_benchmark("formula", path=folder, pin=pins)
    changed = load_benchmark("formula", path=folder).pins["train"]
    assert pins["train"] in str(caught.value)
    assert changed in str(caught.value)
    with pytest.raises(DataSourceError, match="'test'"):
        load_benchmark("formula", path=folder, pin={"test": "0"})


def test_held_out_rows_are_taken_out_of_the_others_and_said(tmp_path, caplog):
    rows = {
        "train": [row(1), row(4), row(3), row(1)],
        "validation": [row(3), row(4)],
        "test": [row(4)],
    }
    loaded = load_benchmark("formula", path=write(tmp_path, **rows))
    assert loaded.heldout.row_hashes == (row_hash(row(4)),)
    assert row_hash(row(4)) not in loaded.train.row_hashes + loaded.validation.row_hashes
    assert [len(split) for split in loaded.splits] == [3, 1, 1]
    assert len(loaded.notes) == 4
    assert "1 rows of train repeat a row of heldout, and" in loaded.notes[0]
    assert [record.getMessage() for record in caplog.records] == list(loaded.notes)


def test_one_file_is_cut_by_row_hash(tmp_path):
    rows = [row(number) for number in range(200)]
    write(tmp_path, all=rows, reversed=[*reversed(rows), row(0)])
    one = load_benchmark("formula", path=tmp_path / "all.jsonl")
    other = load_benchmark("formula", path=tmp_path / "reversed.jsonl")
    for left, right in zip(one.splits, other.splits, strict=True):
        assert set(left.row_hashes) == set(right.row_hashes)
    assert sum(len(split) for split in one.splits) == 200
    assert all(len(split) > 20 for split in one.splits)
    assert "60/20/20" in one.source


def test_without_a_path_nothing_stands_in(closed):
    with pytest.raises(DataSourceError) as caught:
        load_benchmark("formula")
    for word in (
        "no path is given",
        "on no hub",
        "FinLoRA",
        "train.jsonl",
        "context",
        "target",
        "path=",
    ):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"context": row(1)["context"]}, "not both text"),
        ({"context": 3, "target": "2"}, "not both text"),
        ({"context": " ", "target": "2"}, "not both text"),
        (row(1, "n/a"), "not a finite number"),
        (row(1, "nan"), "not a finite number"),
        ({"context": "What is 1 + 1?", "target": "2"}, "formula_text=True"),
    ],
)
def test_rows_that_are_not_formulas_are_refused_with_their_place(tmp_path, bad, reason):
    write(tmp_path, train=[row(1)], validation=[row(2)], test=[bad])
    with pytest.raises(DataSourceError, match=reason) as caught:
        load_benchmark("formula", path=tmp_path)
    assert "test row 1" in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path, folder):
    with pytest.raises(DataSourceError, match="no such file or directory"):
        load_benchmark("formula", path=tmp_path / "absent")
    (folder / "validation.jsonl").unlink()
    with pytest.raises(DataSourceError, match=r"validation\.jsonl"):
        load_benchmark("formula", path=folder)
    (folder / "validation.jsonl").write_text("not json\n")
    with pytest.raises(DataSourceError, match="JSON"):
        load_benchmark("formula", path=folder)
    (folder / "validation.jsonl").write_text("[1]")
    with pytest.raises(DataSourceError, match="no JSON object"):
        load_benchmark("formula", path=folder)
    (folder / "validation.jsonl").write_text("")
    with pytest.raises(DataSourceError, match="validation split is empty"):
        load_benchmark("formula", path=folder)


def test_a_hub_id_needs_a_commit_and_a_folder_takes_none(folder):
    for revision in (None, "main"):
        with pytest.raises(ArgumentValueError, match="40-digit commit"):
            load_benchmark("formula", path="someone/formula", revision=revision)
    with pytest.raises(ArgumentValueError, match="hub id"):
        load_benchmark("formula", path=folder, revision="a" * 40)


def test_names_and_parameters_are_checked():
    with pytest.raises(UnknownStrategyError, match="formula-mini"):
        load_benchmark("formulas")
    with pytest.raises(ArgumentTypeError, match="folder"):
        load_benchmark("formula", folder="x")
    assert Formula(path="a") == Formula("a")
    with pytest.raises(ArgumentValueError, match="train"):
        Formula("a", train=0)


@needs_real
def test_real_rows_parse_and_score_one_against_themselves():
    loaded = load_benchmark("formula", path=REAL / "formula", pin=PINS)
    assert [len(split) for split in loaded.splits] == [500, 164, 136]
    assert loaded.notes == ()
    for split in loaded.splits:
        for example in split.examples:
            assert loaded.metric(example, dspy.Prediction(answer=example.answer)).score == 1.0
            assert "Explanation:" not in example.question
            assert not (example.question.startswith('"') and example.question.endswith('"'))


@needs_real
def test_known_noise_is_in_the_real_rows_and_kept():
    loaded = load_benchmark("formula", path=REAL / "formula")
    assert set(KNOWN_NOISE) <= set(loaded.validation.row_hashes)
    (example_id,) = loaded.noisy_examples()
    example = loaded.validation.examples[loaded.validation.example_ids.index(example_id)]
    assert example.answer == "1000000000.0"
    assert "500,000" in example.question


ACE = {"formula_train_subset_500": 500, "formula_val_subset_300": 300, "formula_test": 200}


def ace_files(folder, **sizes):
    """Files of ACE's names, with rows of our own making."""
    first, files = 0, {}
    for name, size in {**ACE, **sizes}.items():
        files[name] = [formula_row(first + number) for number in range(size)]
        first += size
    return write(folder, **files)


def test_aces_files_are_known_by_name_and_size_and_run_as_they_are(tmp_path):
    loaded = load_benchmark("formula", path=ace_files(tmp_path))
    assert [len(split) for split in loaded.splits] == [500, 300, 200]
    assert loaded.comparable is None, "these rows are made up: names and sizes prove nothing"
    assert "no row hashes of ACE's are known" in loaded.standing


@pytest.mark.parametrize(
    ("sizes", "params", "why"),
    [
        ({"formula_test": 199}, {}, "holds 199 rows, not ACE's 200"),
        ({}, {"heldout": 50}, "50 of the 200 rows of heldout are used"),
        ({}, {"formula_text": True}, "which ACE hides"),
    ],
)
def test_what_is_not_aces_is_not_called_comparable(tmp_path, sizes, params, why):
    loaded = load_benchmark("formula", path=ace_files(tmp_path, **sizes), **params)
    assert loaded.comparable is False
    assert why in loaded.standing


def test_a_cut_of_ones_own_is_not_called_comparable(tmp_path, monkeypatch):
    folder = write(
        tmp_path, train=[formula_row(1)], validation=[formula_row(2)], test=[formula_row(3)]
    )
    loaded = load_benchmark("formula", path=folder)
    assert (loaded.comparable, loaded.standing) == (
        False,
        "these are not ACE's own files, by their names",
    )
    monkeypatch.setattr(Formula, "own", loaded.pins)
    assert "this project's own cut" in load_benchmark("formula", path=folder).standing
    assert "not comparable with the paper" in Formula.card.size
