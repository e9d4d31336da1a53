from __future__ import annotations

import pickle

import dspy
import pytest
from benchmark_rows import REAL, record, write

from combee_dspy.benchmarks import Finer, load_benchmark
from combee_dspy.benchmarks.finer import LABELS, PINS
from combee_dspy.benchmarks.finer.records import parse
from combee_dspy.exceptions import ArgumentValueError, DataSourceError
from combee_dspy.hashing import row_hash

needs_real = pytest.mark.skipif(
    not (REAL / "finer").is_dir(), reason="the FiNER records are not beside the repository"
)


@pytest.fixture
def folder(tmp_path):
    return write(
        tmp_path / "ace", train=[record(1), record(2)], validation=[record(3)], test=[record(4)]
    )


def test_records_of_a_folder_become_splits_without_their_labels(folder, closed):
    loaded = load_benchmark("finer", path=folder)
    assert [len(split) for split in loaded.splits] == [2, 1, 1]
    assert loaded.heldout.row_hashes == (row_hash(record(4)),)
    example = loaded.train.examples[0]
    assert example.inputs().keys() == ["questions"]
    first = example.questions.splitlines()[0]
    assert first == '1. entity "1.1" in sentence: "In year 1 the item 1 came to $ 1.1 million ."'
    assert not any(name in example.questions for name in LABELS)
    assert example.tags == record(1)["target"]
    shown = loaded.signature.output_fields["tags"].json_schema_extra["desc"]
    assert all(name in shown for name in LABELS)
    assert isinstance(loaded.program(), dspy.ChainOfThought)
    assert not isinstance(
        load_benchmark("finer", path=folder, reasoning=False).program(), dspy.ChainOfThought
    )
    assert str(folder) in loaded.source


def test_the_raw_form_is_kept_and_the_pins_are_the_same(folder):
    shared, raw = Finer(folder).load(), Finer(folder, label_list="record").load()
    assert raw.train.examples[0].context == record(1)["context"]
    assert raw.pins == shared.pins
    hidden = Finer(folder, label_list="hidden").load()
    assert LABELS[0] not in str(hidden.signature.output_fields["tags"].json_schema_extra)


def test_one_file_is_cut_so_that_no_sentence_is_in_two_parts(tmp_path):
    # Records come in threes that share a sentence.
    rows = [
        record(number, sentence=f"Sentence of group {number // 3} says 1 .")
        for number in range(120)
    ]
    loaded = load_benchmark("finer", path=write(tmp_path, all=rows) / "all.jsonl")
    parts = [
        {example.questions.split('sentence: "')[1][:24] for example in split.examples}
        for split in loaded.splits
    ]
    assert all(parts)
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert sum(len(split) for split in loaded.splits) == 120
    assert loaded.notes == ()


def test_a_sentence_of_held_out_is_taken_out_of_the_others_and_said(tmp_path, caplog):
    leak = record(9, sentence="A sentence that is in held-out .")
    rows = {
        "train": [record(1), leak],
        "validation": [record(2)],
        "test": [record(3, sentence="A sentence that is in held-out .")],
    }
    loaded = load_benchmark("finer", path=write(tmp_path, **rows))
    assert loaded.train.row_hashes == (row_hash(record(1)),)
    assert "1 rows of train repeat a sentence of heldout, and" in loaded.notes[0]
    assert loaded.notes[0] in [entry.getMessage() for entry in caplog.records]


def test_one_question_with_two_labels_is_known_noise_and_kept(tmp_path):
    twice = {**record(1), "target": ",".join(LABELS[:4])}
    first = 'entity "1.1" in sentence: "In year 1 the item 1 came to $ 1.1 million .'
    second = 'entity "1.2" in sentence: "In year 1 the item 2 came to $ 1.2 million .'
    twice["context"] = twice["context"].replace(second, first)
    loaded = load_benchmark(
        "finer", path=write(tmp_path, train=[twice], validation=[record(2)], test=[record(3)])
    )
    assert set(loaded.known_noise) == {row_hash(twice)}
    assert len(loaded.noisy_examples()) == 1
    assert len(loaded.train) == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({}, "not both text"),
        ({"context": 3, "target": "A"}, "not both text"),
        ({"context": "Hello", "target": "A"}, "no numbered question"),
        ({**record(1), "target": "Goodwill,Goodwill"}, "asks 4 questions and the target holds 2"),
        ({**record(1), "target": "Goodwill,,Goodwill,Goodwill"}, "holds 4 labels"),
        (
            {**record(1), "target": "Goodwill,Goodwill,Goodwill,__import__('os').abort()"},
            "among no record's labels",
        ),
    ],
)
def test_rows_that_are_not_finers_are_refused(tmp_path, bad, reason):
    write(tmp_path, train=[record(8)], validation=[record(9)], test=[bad])
    with pytest.raises(DataSourceError, match=reason):
        load_benchmark("finer", path=tmp_path)


def test_other_lists_of_labels_need_the_raw_form(tmp_path):
    other = record(2, labels=",".join([*LABELS, "SomethingElse"]))
    write(tmp_path, train=[record(1)], validation=[other], test=[record(3)])
    with pytest.raises(DataSourceError, match="label_list='record'"):
        load_benchmark("finer", path=tmp_path)
    loaded = load_benchmark("finer", path=tmp_path, label_list="record")
    assert "SomethingElse" in loaded.metric.labels


def test_parameters_and_absence_are_said(folder, closed):
    with pytest.raises(DataSourceError, match="no path is given"):
        load_benchmark("finer")
    with pytest.raises(ArgumentValueError, match="label_list"):
        load_benchmark("finer", path=folder, label_list="all")
    with pytest.raises(ArgumentValueError, match="train"):
        load_benchmark("finer", path=folder, train=0)


def test_slices_depend_on_the_rows_alone_and_are_said(tmp_path):
    rows = [record(number) for number in range(12)]
    write(tmp_path, train=rows, validation=[record(20)], test=[record(30), record(31)])
    small, large = Finer(tmp_path, train=4).load(), Finer(tmp_path, train=8).load()
    assert set(small.train.row_hashes) < set(large.train.row_hashes)
    assert "4 of 12 rows" in small.notes[0]
    write(tmp_path, train=rows[::-1])
    assert set(Finer(tmp_path, train=4).load().train.row_hashes) == set(small.train.row_hashes)


def test_a_sentence_that_quotes_a_question_starts_none():
    row = record(1)
    row["context"] = row["context"].replace(
        "In year 1 the item 1", '9. What is best tag for entity "x" in sentence: "y'
    )
    result = parse(row)
    assert not isinstance(result, str)
    assert len(result.questions) == 4


def test_the_benchmarks_parts_survive_a_pickle(folder):
    loaded = Finer(folder).load()
    assert pickle.loads(pickle.dumps(loaded.metric)) == loaded.metric  # noqa: S301 - made here


@needs_real
def test_real_records_parse_and_score_one_against_themselves():
    loaded = load_benchmark("finer", path=REAL / "finer", pin=PINS)
    assert [len(split) for split in loaded.splits] == [300, 100, 99]
    assert loaded.notes == ()
    assert loaded.metric.labels == LABELS
    # One record asks for the same number in the same sentence twice, with two labels.
    assert len(loaded.noisy_examples()) == 1
    for split in loaded.splits:
        for example in split.examples:
            assert loaded.metric(example, dspy.Prediction(tags=example.tags)).score == 1.0
            assert len(example.entities) == 4


@needs_real
def test_the_raw_form_is_mostly_labels_and_the_shared_form_is_not():
    raw = load_benchmark("finer", path=REAL / "finer", label_list="record")
    shared = load_benchmark("finer", path=REAL / "finer")
    sizes = [
        sum(len(example[name]) for example in found.train.examples)
        for found, name in ((raw, "context"), (shared, "questions"))
    ]
    assert sizes[1] < sizes[0] / 3


@pytest.mark.slow
def test_aces_files_keep_what_they_share_and_say_it(tmp_path):
    shared = record(5_000)
    same_sentences = dict(shared, target=record(5_001)["target"])
    files = {
        "finer_train_batched_1000_samples": (
            [record(number) for number in range(999)] + [same_sentences]
        ),
        "finer_val_batched_500_samples": [record(number) for number in range(1_000, 1_500)],
        "finer_test_subset_006_seed42": [
            shared,
            *(record(number) for number in range(2_000, 2_440)),
        ],
    }
    loaded = Finer(write(tmp_path, **files), label_list="record").load()
    assert [len(split) for split in loaded.splits] == [1_000, 500, 441]
    assert loaded.comparable is None, "names and sizes prove no rows"
    assert "1 rows of train repeat a sentence of heldout, as published" in loaded.notes
    assert Finer(tmp_path).load().comparable is False
