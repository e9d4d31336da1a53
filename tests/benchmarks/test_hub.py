"""Data sets of the hub: read by ``datasets`` from a local copy in the hub's layout; from the hub
where it answers.
"""

from __future__ import annotations

import math
import socket
from pathlib import Path

import dspy
import pytest
import yaml

from combee_dspy.benchmarks import Hub, _network, load_benchmark
from combee_dspy.cli._config import RunConfig
from combee_dspy.exceptions import ArgumentError, DataSourceError

EXAMPLES = Path(__file__).parents[2] / "examples" / "benchmarks"
SUMS = {
    "fields": {"question": "problem"},
    "label": "solution",
    "pattern": r"####\s*(\S+)",
    "compare": "number",
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    import datasets

    for name in ("HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH"):
        monkeypatch.setattr(datasets.config, name, str(tmp_path / "cache"))


def sums(count: int, first: int = 0) -> list[dict]:
    return [
        {"problem": f"{n} + 1?", "solution": f"{n} plus 1 is {n + 1}\n#### {n + 1}"}
        for n in range(first, first + count)
    ]


def layout(folder: Path, **splits: list[dict]) -> Path:
    """Write parquet files as the hub lays them out, one a split."""
    import datasets

    for split, rows in splits.items():
        table = datasets.Dataset.from_list(rows)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        table.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def test_a_local_copy_in_the_hubs_layout_is_read_without_a_network(tmp_path, closed):
    folder = layout(tmp_path / "sums", train=sums(10), test=sums(4, 50))
    splits = {"train": "train[:80%]", "validation": "train[80%:]", "heldout": "test"}
    loaded = load_benchmark("hub", path=str(folder), splits=splits, **SUMS)
    assert [len(split) for split in loaded.splits] == [8, 2, 4]
    assert loaded.train.examples[3].inputs().toDict() == {"question": "3 + 1?"}
    assert loaded.heldout.examples[0].answer == "51"
    assert loaded.metric(loaded.heldout.examples[0], dspy.Prediction(answer="51.0")).score == 1.0
    assert loaded.comparable is None
    again = load_benchmark("hub", path=str(folder), splits=splits, pin=loaded.pins, **SUMS)
    assert again.pins == loaded.pins


def test_classes_by_name_make_a_choice(tmp_path):
    import datasets

    kinds = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["card", "cash"])}
    )
    for split, first in (("train", 0), ("validation", 10), ("test", 20)):
        rows = datasets.Dataset.from_list(
            [{"text": f"say {first + n}", "label": n % 2} for n in range(4)], features=kinds
        )
        (tmp_path / "data").mkdir(exist_ok=True)
        rows.to_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    bench = Hub(
        tmp_path,
        fields={"message": "text"},
        label="label",
        answer="intent",
        choices=True,
        reasoning=False,
    )
    loaded = bench.load()
    assert set(loaded.signature.output_fields["intent"].annotation.__args__) == {"card", "cash"}
    metric, row = loaded.metric, loaded.train.examples[1]
    assert metric(row, dspy.Prediction(intent="Cash")).score == 1.0
    wrong = metric(row, dspy.Prediction(intent="card"))
    assert wrong.score == 0.0
    assert "'cash'" in wrong.feedback
    assert metric(row, dspy.Prediction()).score == 0.0


def test_nested_columns_are_given_as_json(tmp_path):
    rows = [
        {"question": f"q{n}", "context": {"title": [f"t{n}"]}, "answer": "The answer!"}
        for n in range(3)
    ]
    folder = layout(tmp_path, train=rows[:1], validation=rows[1:2], test=rows[2:])
    loaded = Hub(folder, fields={"context": "context", "question": "question"}).load()
    assert loaded.train.examples[0].context == '{"title": ["t0"]}'
    assert loaded.metric(loaded.train.examples[0], dspy.Prediction(answer="answer")).score == 1.0
    assert (
        0
        < loaded.tolerant_metric(
            loaded.train.examples[0], dspy.Prediction(answer="an answer maybe")
        ).score
        < 1
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"problem": "p", "solution": "no mark"}, "holds no answer"),
        ({"problem": "p", "solution": None}, "holds no answer"),
        ({"problem": "p", "solution": "#### many"}, "not a finite number"),
        ({"problem": "p", "solution": "#### 1e999"}, "not a finite number"),
        ({"problem": "p", "solution": "#### nan"}, "not a finite number"),
        ({"problem": "  ", "solution": "#### 1"}, "is empty"),
        ({"problem": b"\xff\x00", "solution": "#### 1"}, "is no text"),
        ({"problem": math.nan, "solution": "#### 1"}, "is no text"),
        ({"solution": "#### 1", "other\x1b[31m": "x"}, "no column 'problem'"),
        ({"problem": "p"}, "no column 'solution'"),
    ],
)
def test_hostile_rows_are_refused_by_what_is_wrong(row, said):
    assert said in Hub(**SUMS).problem(row)


@pytest.mark.parametrize("choices", [False, True])
@pytest.mark.parametrize(
    ("answer", "right"), [(None, "A"), ("", "A"), ("an", "A"), ("B", "A"), ("a", "?")]
)
def test_an_answer_of_which_articles_and_marks_leave_nothing_is_compared_as_it_is(
    tmp_path, choices, answer, right
):
    rows = [{"question": f"q{n}", "answer": right} for n in range(3)]
    folder = layout(tmp_path, train=rows[:1], validation=rows[1:2], test=rows[2:])
    loaded = Hub(folder, choices=choices).load()
    row = loaded.train.examples[0]
    for metric in (loaded.metric, loaded.tolerant_metric):
        assert metric(row, dspy.Prediction(answer=answer)).score == 0.0
        assert metric(row, dspy.Prediction(answer=f" {right.lower()} ")).score == 1.0


def test_choices_that_differ_in_a_mark_are_two(tmp_path):
    rows = [{"question": f"q{n}", "answer": "C++"} for n in range(3)]
    folder = layout(tmp_path, train=rows[:1], validation=rows[1:2], test=rows[2:])
    loaded = Hub(folder, choices=True).load()
    assert loaded.metric(loaded.train.examples[0], dspy.Prediction(answer="C")).score == 0.0


def test_yes_or_no_is_an_answer():
    bench = Hub(label="right", answer="right")
    row = {"question": "Is it?", "right": False}
    assert bench.problem(row) is None
    assert bench.to_example(row).right == "False"


def test_a_refusal_names_the_row(tmp_path):
    bad = {"problem": "p", "solution": "\x1b[31m no mark"}
    folder = layout(tmp_path, train=[*sums(2), bad], validation=sums(1, 3), test=sums(1, 5))
    with pytest.raises(DataSourceError, match="train row 3"):
        load_benchmark("hub", path=str(folder), **SUMS)


def test_no_code_of_a_data_set_runs(tmp_path):
    marker = tmp_path / "ran"
    folder = layout(tmp_path / "evil", train=sums(1), validation=sums(1, 3), test=sums(1, 6))
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    with pytest.raises(DataSourceError, match="scripts are no longer supported"):
        load_benchmark("hub", path=str(folder), **SUMS)
    assert not marker.exists()


def test_a_split_that_is_not_there_and_an_empty_folder_are_refused(tmp_path):
    folder = layout(tmp_path / "some", train=sums(2))
    for path in (folder, tmp_path / "nothing"):
        (tmp_path / "nothing").mkdir(exist_ok=True)
        with pytest.raises(DataSourceError, match="cannot be read") as refused:
            load_benchmark("hub", path=str(path), **SUMS)
        assert "JSON" not in str(refused.value)


@pytest.mark.parametrize(
    "params",
    [
        {"fields": {}},
        {"fields": {"a-b": "x"}},
        {"fields": {"answer": "x"}},
        {"pattern": "no group"},
        {"splits": {"train": "train"}},
        {"splits": {"train": "a", "validation": "b", "test": "c"}},
        {"compare": "number", "answer": "result"},
        {"compare": "number", "choices": True},
        {"fields": {"base": "x"}},
        {"fields": {"config": "x"}},
        {"answer": "base"},
        {"fields": {"reasoning": "x"}},
        {"answer": "reasoning"},
    ],
)
def test_settings_that_cannot_be_used_are_refused(params):
    with pytest.raises(ArgumentError):
        Hub(**params).load()


def test_a_pattern_that_is_no_expression_is_refused_with_the_reason():
    with pytest.raises(ArgumentError, match="unterminated subpattern"):
        Hub(pattern="(")


def test_an_input_is_called_reasoning_where_the_program_writes_none(tmp_path):
    rows = [{"question": f"q{n}", "answer": "a"} for n in range(3)]
    folder = layout(tmp_path, train=rows[:1], validation=rows[1:2], test=rows[2:])
    loaded = Hub(folder, fields={"reasoning": "question"}, reasoning=False).load()
    assert loaded.train.examples[0].inputs().toDict() == {"reasoning": "q0"}


def test_offline_is_respected_and_said(monkeypatch, closed):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataSourceError, match="someone/sums@"):
        Hub("someone/sums", "0" * 40).load()


@pytest.mark.parametrize("answers", [False, True])
def test_a_hub_that_does_not_answer_is_asked_once_and_then_the_cache(monkeypatch, answers):
    import datasets

    asked = []

    def load(*args, **options):
        asked.append(datasets.config.HF_HUB_OFFLINE)
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(_network, "_answers", lambda address: answers)
    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataSourceError) as refused:
        Hub("someone/sums", "0" * 40).load()
    assert asked == [not answers], "offline, datasets reads its cache and tries nothing again"
    assert not datasets.config.HF_HUB_OFFLINE
    assert "JSON" not in str(refused.value)
    if not answers:
        assert "https://huggingface.co does not answer" in str(refused.value)


def test_nobody_waits_for_a_name_that_cannot_be_looked_up(monkeypatch):
    monkeypatch.undo()
    assert not _network._answers("https://nobody.invalid")


@pytest.mark.parametrize(
    "file", sorted(EXAMPLES.glob("run_hub_*.yaml")), ids=lambda file: file.stem
)
def test_examples_name_a_commit_and_columns(file):
    config = RunConfig.model_validate(yaml.safe_load(file.read_text()))
    bench = Hub(**config.data.benchmark.params)
    assert bench.source.locate().revision == bench.revision


def _answers(host: str) -> bool:
    try:
        socket.create_connection((host, 443), timeout=3).close()
    except OSError:
        return False
    return True


@pytest.mark.network
def test_the_hub_itself():
    if not _answers("huggingface.co"):
        pytest.skip("huggingface.co does not answer: GSM8K was not read from the hub")
    params = yaml.safe_load((EXAMPLES / "run_hub_gsm8k.yaml").read_text())["data"]["benchmark"][
        "params"
    ]
    gsm8k = load_benchmark("hub", **params)
    assert [len(split) for split in gsm8k.splits] == [240, 60, 1_319]
