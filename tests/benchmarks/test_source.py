from __future__ import annotations

import functools
import json
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import dspy
import pytest
from benchmark_rows import formula_row, write

from combee_dspy.benchmarks import Card, LoadedBenchmark, RecordBenchmark, RowSource, load_benchmark
from combee_dspy.benchmarks.numeric import AnswerNumber, exact_metric
from combee_dspy.exceptions import DataSourceError
from combee_dspy.strategies import parameters

COMMIT = "a" * 40
ROWS = {
    "train": [formula_row(1), formula_row(2)],
    "validation": [formula_row(3)],
    "test": [formula_row(4)],
}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def address(tmp_path, monkeypatch):
    """The address of a folder that holds the rows, with a cache of its own behind it."""
    import datasets

    for name in ("HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH", "EXTRACTED_DATASETS_PATH"):
        monkeypatch.setattr(datasets.config, name, str(tmp_path / "cache"))
    write(tmp_path / "served", **ROWS)
    handler = functools.partial(QuietHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class HubRows(list):
    """What ``datasets.load_dataset`` returns, as far as it is read."""

    features: ClassVar[dict[str, object]] = {}


def test_rows_come_over_http(tmp_path, address):
    loaded = load_benchmark("formula", path=address)
    assert address in loaded.source
    assert loaded.pins == load_benchmark("formula", path=tmp_path / "served").pins
    with pytest.raises(DataSourceError, match=f"{address}/absent"):
        load_benchmark("formula", path=f"{address}/absent")


@parameters
class Sums(RecordBenchmark):
    """A benchmark of one's own, over a data set of the hub with other names."""

    name: ClassVar[str] = "sums"
    card: ClassVar[Card | None] = Card(
        "Sums.", "MIT", "nobody", "six", ("hub someone/sums",), "equal as floats"
    )
    inputs: ClassVar[tuple[str, ...]] = ("question",)
    rows: ClassVar[RowSource] = RowSource(
        "sums",
        names={"train": "train[:80%]", "validation": "train[80%:]", "heldout": "dev"},
        subset="easy",
    )

    def load(self) -> LoadedBenchmark:
        reading = self.read()
        return LoadedBenchmark(
            self.name,
            self.name,
            reading.source,
            "MIT",
            "nobody",
            **reading.splits,
            signature=AnswerNumber,
            program=lambda: dspy.Predict(AnswerNumber),
            metric=exact_metric,
            notes=reading.notes,
        )


def test_any_data_set_of_the_hub_makes_a_benchmark(monkeypatch):
    import datasets

    asked = []

    def load(path, **options):
        asked.append((path, options["revision"], options["name"], options["split"]))
        rows = HubRows([{"question": f"{len(asked)} + 0?", "answer": str(len(asked)), "kind": 1}])
        rows.features = {"kind": datasets.ClassLabel(names=["hard", "easy"])}
        return rows

    monkeypatch.setattr("datasets.load_dataset", load)
    loaded = Sums("someone/sums", revision=COMMIT).load()
    assert f"hub someone/sums@{COMMIT}" in loaded.source
    assert asked == [
        ("someone/sums", COMMIT, "easy", split) for split in ("train[:80%]", "train[80%:]", "dev")
    ]
    example = loaded.heldout.examples[0]
    assert (dict(example.inputs()), example.answer, example.kind) == (
        {"question": "3 + 0?"},
        "3",
        "easy",
    )
    assert loaded.metric(example, dspy.Prediction(answer="3.0")).score == 1.0
    assert Sums("someone/sums", revision=COMMIT).availability().here is None


def test_a_list_and_lines_hold_the_same_rows(tmp_path):
    rows = [formula_row(number) for number in range(40)]
    (tmp_path / "list.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    (tmp_path / "lines.jsonl").write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8-sig")
    results = [
        load_benchmark("formula", path=tmp_path / name) for name in ("list.json", "lines.jsonl")
    ]
    assert results[0].pins == results[1].pins


def test_blank_lines_before_a_list_are_no_rows(tmp_path):
    (tmp_path / "list.json").write_text('\n \n[{"a": 1}, {"a": 2}]')
    rows = RowSource("x", tmp_path / "list.json").rows()["all"]
    assert list(rows) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("text", ['{"a": 1}\n\n{"a"}\n', '{"a": 1}\n\n[1]', '\n[{"a": 1},\n{"a"}]'])
def test_a_broken_row_is_named_by_its_line_in_the_file(tmp_path, text):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(DataSourceError, match="line 3"):
        list(RowSource("x", tmp_path / "rows.jsonl").rows()["all"])


def test_where_rows_are_is_told_without_reading_them(tmp_path, closed):
    write(tmp_path, train=[{}], validation=[{}], test=[{}])
    assert RowSource("x", tmp_path).availability().here is True
    assert RowSource("x", tmp_path, hub=True).availability().here is True
    (tmp_path / "test.jsonl").unlink()
    missing = RowSource("x", tmp_path).availability()
    assert missing.here is False
    assert "test.jsonl" in missing.where
    for path in (None, tmp_path / "absent", "no id", "owner/name"):
        assert RowSource("x", path).availability().here is False
    assert RowSource("x", "https://example.org/rows.jsonl").availability().here is None
