"""A run file that somebody else has written: it imports nothing beside it, and hangs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from combee_dspy.cli._reading import read_mapping
from combee_dspy.exceptions import ArgumentValueError

BOMB = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 1}}\n" for n in range(1, 40)
)
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
SIXTIES = "seed: 1" + ":59" * 300_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, "merged keys"),
        (LAUGHS, "aliases make"),
        ("a: &a [*a]\n", "alias"),
        (SIXTIES, "a number of 900,001 characters"),
        ("seed: " + "9" * 30_000_000, "30,000,006 bytes"),
        ("seed: 0x" + "f" * 900_000, "a number of"),
        ("[" * 5_000, "CONFIG"),
    ],
    ids=["merges", "aliases", "cycle", "sixties", "large", "hex", "deep"],
)
def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ArgumentValueError, match=problem):
        read_mapping(path)


@pytest.mark.parametrize(
    "value",
    ["1" + ":1" * 300 + ".0", "!!bool maybe", "!!int ''", "!!timestamp soon", "!!timestamp {=: a}"],
)
def test_a_value_that_is_none_of_its_type_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"seed: {value}\n", encoding="utf-8")

    with pytest.raises(ArgumentValueError, match="none of its type"):
        read_mapping(path)


def test_no_module_beside_a_file_elsewhere_is_imported(shell, tmp_path) -> None:
    sent = tmp_path / "downloads"
    sent.mkdir()
    marker = tmp_path / "imported"
    code = f"open({str(marker)!r}, 'w').close()\nProgram = metric = print\n"
    (sent / "their_evil.py").write_text(code)
    (sent / "csv.py").write_text(code)
    (sent / "run.yaml").write_text(
        "data: {train: rows.jsonl, inputs: [question]}\n"
        "program: their_evil:Program\nmetric: their_evil:metric\nlms: {task: openai/m}\n"
    )
    (sent / "rows.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    here = tmp_path / "here"
    here.mkdir()
    import os

    os.chdir(here)
    exit_code, _, err = shell("run", "../downloads/run.yaml", "--dry-run")

    assert exit_code != 0
    assert "their_evil" in err
    assert "configuration file that lies in it" in err
    assert not marker.exists()


def test_a_tasks_name_leads_out_of_no_folder(shell, tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(
        "lms: {task: {model: simulated, time_scale: 0}}\n"
        "budget: {rollouts: 12}\n"
        "tasks:\n"
        "  ../../up: {data: {benchmark: {name: formula-mini, params: {train: 6, validation: 6}}}}\n"
        "output: out/{name}.json\n"
    )
    exit_code, _, err = shell("run", "run.yaml")

    assert exit_code == 0, err
    (learned,) = (tmp_path / "out").iterdir()
    assert learned.name.startswith("_.._up-")
