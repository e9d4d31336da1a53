"""``combee verify``: what it searches, and what becomes of a claim that fails in one place."""

from __future__ import annotations

import json
import re
import sys

import pytest
import yaml

import combee_dspy.cli  # noqa: F401 - its modules are looked up below, where functions have their names
from combee_dspy import tracking
from combee_dspy.many import TaskResult
from plugins.strategist.tests.claims import RIGHT, ROWS, WRONG, report

RUN = yaml.safe_load("""
data: {benchmark: {name: formula-mini, params: {task: compute, formulas: 6, train: 12, validation: 12, heldout: 20}}}
lms: {task: {model: simulated, time_scale: 0}}
budget: {rollouts: 60}
tracker: []
log_dir: log
""")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A search that is as good as told, and as fast: by the end of its log_dir; serial search is
    right in 300 s.
    """
    told = {}

    def compiled(plan):
        place = re.sub(
            r" [0-9a-f]{8}$", "", plan.config.arguments()["log_dir"]
        )  # which hardware, by its content
        serial = "serial" in place
        name = "serial" if serial else place.rpartition("/")[2]
        found = report(*(told.get(name, (WRONG, RIGHT))[:2]))
        searched.append((place, plan.config.seed, plan.config.arguments().get("num_threads")))
        return [
            TaskResult(
                "main",
                report=_with_seconds(found, 300.0 if serial else told.get(name, (0, 0, 50.0))[2]),
            )
        ]

    def _with_seconds(found, seconds):
        monkeypatch.setitem(seconds_of, id(found.receipt), (found, seconds))
        return found

    seconds_of, searched = {}, []
    monkeypatch.setattr(
        "combee_strategist.planning.verify._spent",
        lambda journal, one: {"seconds": seconds_of[id(one)][1]},
    )
    monkeypatch.setattr(sys.modules["combee_dspy.cli.run"], "compiled", compiled)
    monkeypatch.setattr("combee_strategist.commands.verify._rows", lambda plan: ROWS)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN), encoding="utf-8")
    (tmp_path / "small.yaml").write_text(
        "{num_threads: 2, lms: {task: {model: simulated, slots: 2}}}", "utf-8"
    )
    return told, searched


def verify(shell, *more):
    code, out, err = shell(
        "verify", "run.yaml", "--hardware", "small.yaml", "--by", "kind", "--faster", "3", *more
    )
    assert not err, err
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in out.splitlines()
        if line[:2] == "| "
    ]
    return (
        code,
        out,
        [(row[0], row[1]) for row in rows if row[3] in ("fails", "inconclusive", "not tried")],
    )


def test_a_claim_that_holds_is_ready(shell, world, tmp_path):
    code, out, wrong = verify(shell)
    assert (code, wrong) == (0, [])
    assert out.startswith("# The claim is ready")
    assert "a simulated service, no language model" in out
    searched = world[1]
    assert [one[:2] for one in searched] == [
        ("log", 0),
        ("log-verify/serial seed 0", 0),
        ("log-verify/seed 1", 1),
        ("log-verify/serial seed 1", 1),
        ("log-verify/seed 2", 2),
        ("log-verify/serial seed 2", 2),
        ("log-verify/on small", 0),
        ("log-verify/serial small", 0),
    ]
    assert [one[2] for one in searched] == [None, 1, None, 1, None, 1, 2, 1]
    assert json.loads((tmp_path / "log-verify" / "verify.json").read_text())["ready"] is True


@pytest.mark.parametrize(
    ("name", "told", "where"),
    [
        (
            "log",
            (
                [0.4 * (row.kind == "b") for row in ROWS],
                [float(row.kind == "a" or n % 10 == 0) for n, row in enumerate(ROWS)],
                50.0,
            ),
            ("slice", "kind b (100 rows)"),
        ),
        ("seed 2", (WRONG, WRONG, 50.0), ("seed", "seed 2")),
        ("on small", (WRONG, RIGHT, 290.0), ("hardware", "small")),
    ],
)
def test_a_claim_that_fails_in_one_place_is_caught_there(shell, world, name, told, where):
    world[0][name] = told
    serial_is_no_better = ([0.0] * 200, [0.3] * 200, 300.0)
    world[0]["serial"] = serial_is_no_better
    code, out, wrong = verify(shell)
    assert code == 1
    assert set(wrong) == {where}
    assert out.startswith("# The claim is not ready")


def test_what_was_not_tried_is_not_ready(shell, world):
    code, out, _ = shell("verify", "run.yaml", "--seeds", "0")
    assert code == 1
    assert "| seed | | | not tried |" in out
    assert "| hardware | | | not tried |" in out


def test_other_hardware_leaves_the_claim_as_it_is(shell, world, tmp_path):
    (tmp_path / "small.yaml").write_text("{num_threads: 2, budget: {rollouts: 9}}", "utf-8")
    code, out, err = shell("verify", "run.yaml", "--hardware", "small.yaml")
    assert (code, out) == (2, "")
    assert "changes budget" in err


def test_hardware_that_changes_nothing_is_none(shell, world, tmp_path):
    for text in ("{}", "{lms: {task: {model: simulated, time_scale: 0}}}"):
        (tmp_path / "small.yaml").write_text(text, "utf-8")
        code, out, err = shell("verify", "run.yaml", "--hardware", "small.yaml")
        assert (code, out) == (2, "")
        assert "changes nothing" in err
    assert not world[1], "it was searched"


def test_an_edited_file_of_hardware_is_searched_anew(shell, tmp_path, world, monkeypatch):
    places = []
    inner = sys.modules["combee_dspy.cli.run"].compiled
    monkeypatch.setattr(
        sys.modules["combee_dspy.cli.run"],
        "compiled",
        lambda plan: places.append(plan.config.arguments()["log_dir"]) or inner(plan),
    )
    for slots in (2, 3, 2):
        (tmp_path / "small.yaml").write_text(f"{{num_threads: {slots}}}", "utf-8")
        verify(shell, "--seeds", "0")
    on = [place for place in places if "/on small" in place]
    assert (len(on), len(set(on)), on[0]) == (3, 2, on[2])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--by", "colour"), "by"),
        (("--margin", "50"), "margin"),
        (("--hardware", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_is_searched(shell, world, arguments, said):
    code, out, err = shell("verify", "run.yaml", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert not world[1], "it was searched"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"log_dir": None}, "log_dir"),
        ({"tasks": {"a": None}}, "several tasks"),
        (
            {
                "data": {"train": "a.jsonl", "validation": "b.jsonl", "inputs": ["question"]},
                "program": "their_qa:program",
                "metric": "their_qa:metric",
            },
            "held-out",
        ),
    ],
)
def test_what_can_claim_nothing_is_refused_before_it_is_searched(
    shell, tmp_path, monkeypatch, change, said
):
    monkeypatch.setattr(
        sys.modules["combee_dspy.cli.run"], "compiled", lambda plan: pytest.fail("it was searched")
    )
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"question": name, "answer": name}) + "\n", "utf-8"
        )
    program = (
        "import dspy\nprogram = dspy.Predict('question -> answer')\ndef metric(*given): return"
        " 1.0\n"
    )
    (tmp_path / "their_qa.py").write_text(program, encoding="utf-8")
    if "data" in change:
        change = {**change, "lms": {"task": {"model": "openai/x"}}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**RUN, **change}), encoding="utf-8")
    code, out, err = shell("verify", "run.yaml")
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.slow
def test_a_run_and_its_serial_form_are_really_searched_and_verified_again_for_nothing(
    shell, tmp_path
):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN), encoding="utf-8")
    given = ("verify", "run.yaml", "--seeds", "0", "--faster", "0")
    code, out, _ = shell(*given)
    assert code == 1  # no other seed, no other hardware
    (wide,), (serial,) = (
        tracking.runs(tmp_path / one) for one in ("log", "log-verify/serial seed 0")
    )
    assert wide["heldout_n"] == serial["heldout_n"] == 20
    assert f"{wide['heldout_after'] - wide['heldout_before']:+.3f}" in out
    assert (
        f"the serial baseline's {serial['heldout_after']:.3f} ({serial['rollouts']:,.1f} rollouts"
        in out
    )
    assert shell(*given)[1] == out
    assert tracking.runs(tmp_path / "log")[0]["calls"] == wide["calls"]
