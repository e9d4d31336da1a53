from __future__ import annotations

import functools
import json
import socket
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import dspy
import pytest

from combee_dspy.benchmarks import Formula, benchmark_names, load_benchmark
from combee_dspy.benchmarks.formula import KNOWN_NOISE, PINS
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, DataSourceError, UnknownStrategyError
from combee_dspy.hashing import row_hash

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "formula"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the Formula records are not beside the repository")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def row(number: int, target: str = "2.0") -> dict[str, str]:
    context = (
        "Use formula Ratio to answer the question. Formula: R = A / B, Explanation: A: Ask: B: Bid. "
        f'Question: "Assets are ${number}. Find it.". Answer:'
    )
    return {"context": context, "target": target}


def write(folder: Path, **splits: list[dict[str, object]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in rows))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path, train=[row(1), row(2)], validation=[row(3)], test=[row(4)])


@pytest.fixture
def no_network(monkeypatch):
    tried: list[object] = []

    def refuse(*args, **kwargs):
        # Libraries swallow what is raised here, so it is written down too.
        tried.append(args)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert tried == []


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    import datasets

    for name in ("HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH", "EXTRACTED_DATASETS_PATH"):
        monkeypatch.setattr(datasets.config, name, str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)


def test_rows_of_a_folder_become_splits(folder, no_network):
    found = load_benchmark("formula", path=folder)
    assert [len(split) for split in found.splits] == [2, 1, 1]
    assert found.heldout.row_hashes == (row_hash(row(4)),)
    example = found.train.examples[0]
    assert (example.question, example.answer) == ("Assets are $1. Find it.", "2.0")
    assert example.inputs().keys() == ["question"]
    assert found.notes == ()
    assert str(folder) in found.source
    assert isinstance(found.program(), dspy.ChainOfThought)
    assert found.metric(example, dspy.Prediction(answer="2")).score == 1.0


def test_folder_names_are_no_patterns(tmp_path):
    odd = write(tmp_path / "a[b]*c", train=[row(1)], validation=[row(2)], test=[row(3)])
    assert len(load_benchmark("formula", path=odd).train) == 1


def test_the_formula_text_is_shown_on_request_and_the_pin_does_not_change(folder):
    hidden, shown = load_benchmark("formula", path=folder), load_benchmark("formula", path=folder, formula_text=True)
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
    rows = {"train": [row(1), row(4), row(3), row(1)], "validation": [row(3), row(4)], "test": [row(4)]}
    found = load_benchmark("formula", path=write(tmp_path, **rows))
    assert found.heldout.row_hashes == (row_hash(row(4)),)
    assert row_hash(row(4)) not in found.train.row_hashes + found.validation.row_hashes
    assert [len(split) for split in found.splits] == [3, 1, 1]
    assert len(found.notes) == 4
    assert "1 rows of train are in heldout" in found.notes[0]
    assert [record.getMessage() for record in caplog.records] == list(found.notes)


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


def test_rows_come_over_http(folder, own_cache):
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}"
            found = load_benchmark("formula", path=address)
            with pytest.raises(DataSourceError, match=address):
                load_benchmark("formula", path=f"{address}/absent")
        finally:
            server.shutdown()
            thread.join()
    assert found.pins == load_benchmark("formula", path=folder).pins
    assert address in found.source


def test_a_hub_id_is_read_at_its_commit(monkeypatch):
    import datasets

    asked = []

    def load(name, **options):
        asked.append((name, options["revision"], options["split"]))
        return [row(len(asked))]

    monkeypatch.setattr(datasets, "load_dataset", load)
    found = load_benchmark("formula", path="someone/formula", revision="a" * 40)
    assert asked == [("someone/formula", "a" * 40, split) for split in ("train", "validation", "test")]
    assert f"hub someone/formula@{'a' * 40}" in found.source


def test_without_a_path_nothing_stands_in(no_network):
    with pytest.raises(DataSourceError) as caught:
        load_benchmark("formula")
    for word in ("on no hub", "FinLoRA", "train.jsonl", "context", "target", "path="):
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
    (folder / "validation.jsonl").write_text("")
    with pytest.raises(DataSourceError):
        load_benchmark("formula", path=folder)


def test_a_hub_id_needs_a_commit_and_a_folder_takes_none(folder):
    for revision in (None, "main"):
        with pytest.raises(ArgumentValueError, match="40-digit commit"):
            load_benchmark("formula", path="someone/formula", revision=revision)
    with pytest.raises(ArgumentValueError, match="hub id"):
        load_benchmark("formula", path=folder, revision="a" * 40)


def test_a_local_read_leaves_the_settings_of_datasets_alone(folder):
    import datasets

    before = datasets.config.HF_UPDATE_DOWNLOAD_COUNTS, datasets.are_progress_bars_disabled()
    load_benchmark("formula", path=folder)
    assert (datasets.config.HF_UPDATE_DOWNLOAD_COUNTS, datasets.are_progress_bars_disabled()) == before


def test_names_and_parameters_are_checked():
    assert {"formula", "formula-mini"} <= set(benchmark_names())
    with pytest.raises(UnknownStrategyError, match="formula-mini"):
        load_benchmark("formulas")
    with pytest.raises(ArgumentTypeError, match="folder"):
        load_benchmark("formula", folder="x")
    assert Formula(path="a") == Formula("a")


@needs_real
def test_real_rows_parse_and_score_one_against_themselves():
    found = load_benchmark("formula", path=REAL, pin=PINS)
    assert [len(split) for split in found.splits] == [500, 164, 136]
    assert found.notes == ()
    for split in found.splits:
        for example in split.examples:
            assert found.metric(example, dspy.Prediction(answer=example.answer)).score == 1.0
            assert "Explanation:" not in example.question
            assert not (example.question.startswith('"') and example.question.endswith('"'))


@needs_real
def test_known_noise_is_in_the_real_rows_and_kept():
    found = load_benchmark("formula", path=REAL)
    assert set(KNOWN_NOISE) <= set(found.validation.row_hashes)
    (example_id,) = found.noisy_examples()
    example = found.validation.examples[found.validation.example_ids.index(example_id)]
    assert example.answer == "1000000000.0"
    assert "500,000" in example.question
