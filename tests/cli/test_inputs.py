from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import dspy
import pytest

from combee_dspy.cli._data import read_examples
from combee_dspy.cli._objects import load_metric, load_object, load_program, look_in
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, DataSourceError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = "their_cli_test_module"
    (tmp_path / f"{name}.py").write_text(
        "import dspy\n"
        "class Program(dspy.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.answer = dspy.Predict('question -> answer')\n"
        "ready = Program()\n"
        "def make():\n    return Program()\n"
        "def needy(x):\n    return Program()\n"
        "def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):\n    return 1.0\n"
        "class Box:\n    inner = ready\n"
        "number = 3\n"
    )
    (tmp_path / f"{name}_broken.py").write_text("raise RuntimeError('half done')\n")
    look_in(tmp_path)
    yield name
    for loaded in (name, f"{name}_broken"):
        sys.modules.pop(loaded, None)


@pytest.mark.parametrize("target", ["Program", "ready", "make", "Box.inner"])
def test_a_program_is_an_object_a_class_or_what_a_function_makes(module: str, target: str) -> None:
    program = load_program(f"{module}:{target}")
    assert isinstance(program, dspy.Module)
    assert [name for name, _ in program.named_predictors()] == ["answer"]


def test_an_object_is_taken_as_it_is_and_not_called(module: str) -> None:
    assert load_program(f"{module}:ready") is load_object("program", f"{module}:ready")


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("{}", "not of the form module:object"),
        (":x", "not of the form module:object"),
        ("no_such_module_here:x", "ModuleNotFoundError"),
        ("{}_broken:x", "RuntimeError: half done"),
        ("{}:Progam", "names nothing called 'Progam'"),
        ("{}:needy", "cannot be made without arguments"),
    ],
)
def test_what_cannot_be_loaded_is_said(module: str, target: str, part: str) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        load_program(target.format(module))
    assert caught.value.argument == "program"
    assert part in caught.value.problem


def test_another_kind_of_object_is_refused(module: str) -> None:
    with pytest.raises(ArgumentTypeError, match="no DSPy program but int"):
        load_program(f"{module}:number")
    with pytest.raises(ArgumentTypeError, match="not callable but int"):
        load_metric(f"{module}:number")
    assert load_metric(f"{module}:metric")(None, None) == 1.0


def test_the_first_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "their_cli_test_twin.py").write_text(f"where = {folder!r}\n")
    look_in(tmp_path / "one", tmp_path / "two")
    assert load_object("x", "their_cli_test_twin:where") == "one"
    del sys.modules["their_cli_test_twin"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"q": "é\u2028x", "a": "1"}\n\n{"q": "y", "a": "2"}\n'),
        ("a.json", '[{"q": "é\u2028x", "a": "1"}, {"q": "y", "a": "2"}]'),
        ("a.csv", 'q,a\n"é\u2028x",1\ny,2\n'),
        ("bom.CSV", '\ufeffq,a\n"é\u2028x",1\ny,2\n'),
    ],
)
def test_examples_are_read_with_their_inputs_marked(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    rows = read_examples("train", path, ["q"])
    assert [row.toDict() for row in rows] == [{"q": "é\u2028x", "a": "1"}, {"q": "y", "a": "2"}]
    assert rows[0].inputs().toDict() == {"q": "é\u2028x"}


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.parquet", "", "its ending is none of .jsonl, .json, .csv"),
        ("a.jsonl", "", "no rows"),
        ("a.jsonl", '{"q": 1}\n{"q": ', "JSONDecodeError"),
        ("a.json", '{"q": 1}', "no list"),
        ("a.json", "[[1]]", "row 1 is no object"),
        ("a.jsonl", '{"q": 1}\n{"p": 2}', "row 2 has no field 'q'"),
        ("a.csv", "q,a\n1,2,3\n", "row 1 is no object with named fields"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_row(tmp_path: Path, name: str, text: str, part: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataSourceError) as caught:
        read_examples("train", path, ["q"])
    assert part in caught.value.reason
    assert str(path) in str(caught.value)
    assert "data.train" in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_a_data_source_error(tmp_path: Path) -> None:
    with pytest.raises(DataSourceError, match="FileNotFoundError"):
        read_examples("heldout", tmp_path / "none.json", ["q"])
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataSourceError, match="UnicodeDecodeError"):
        read_examples("heldout", tmp_path / "bad.json", ["q"])
