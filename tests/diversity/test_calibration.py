from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from combee_dspy.diversity import CharNgrams, Embedder, calibrate, calibrate_threshold
from combee_dspy.diversity._corpus import INSTRUCTIONS, LESSONS
from combee_dspy.diversity._pairs import KINDS, pairs_of
from combee_dspy.diversity._text import statements
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError


class Flat(Embedder):
    """Every text is alike."""

    name: ClassVar[str] = "flat"

    def embed(self, texts):
        return np.ones((len(texts), 1), dtype=np.float32)


class Raised(Embedder):
    """Hashed n-grams in which everything has something in common, as with many models."""

    name: ClassVar[str] = "raised"

    def embed(self, texts):
        rows = np.hstack([CharNgrams().embed(texts), np.full((len(texts), 1), 1.5)])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_the_written_threshold_is_the_measured_one():
    found = calibrate_threshold(CharNgrams())
    assert found.threshold == pytest.approx(CharNgrams.MEASURED_THRESHOLD, abs=0.005)
    assert found.false_refusals <= 0.01
    assert found.caught > 0.8
    assert found.separation > 0.99
    assert (found.distinct, found.near) == (800, 800)


def test_each_embedder_gets_the_threshold_that_refuses_equally_few():
    one, other = (calibrate_threshold(embedder, pairs=50) for embedder in (CharNgrams(), Raised()))
    assert other.threshold > one.threshold + 0.1
    assert other.false_refusals <= 0.02
    assert other.caught == pytest.approx(one.caught, abs=0.05)


def test_the_same_seed_gives_the_same_figures_and_another_one_other_pairs():
    one = calibrate_threshold(CharNgrams(), seed=3, pairs=25)
    assert one == calibrate_threshold(CharNgrams(), seed=3, pairs=25)
    assert one != calibrate_threshold(CharNgrams(), seed=4, pairs=25)


def test_pairs_are_what_their_kind_says():
    vectors = CharNgrams().embed(LESSONS)
    for pair in pairs_of(INSTRUCTIONS, LESSONS, vectors @ vectors.T, seed=0, each=20):
        first, second = set(statements(pair.first)), set(statements(pair.second))
        assert pair.distinct == KINDS[pair.kind][0]
        if pair.kind == "new lessons added":
            assert first < second
        if pair.kind == "lessons removed":
            assert second < first
        if pair.kind == "other lessons added":
            assert first - second
            assert second - first


def test_half_of_the_pairs_hold_the_lessons_that_are_hardest_to_tell_apart():
    vectors = CharNgrams().embed(LESSONS)
    alike = vectors @ vectors.T
    place = {lesson: number for number, lesson in enumerate(LESSONS)}
    nearest = []
    for pair in pairs_of(INSTRUCTIONS, LESSONS, alike, seed=0, each=60)[:60]:
        new = [place[line] for line in pair.second.replace("- ", "").splitlines() if line in place]
        old = [place[line] for line in pair.first.replace("- ", "").splitlines() if line in place]
        if old:
            nearest.append(alike[new[len(old)], old].max())
    assert np.mean(nearest[1::2]) > np.mean(nearest[::2]) + 0.1


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"lessons": LESSONS[:15]}, "lessons", ArgumentValueError),
        ({"lessons": ("One.",) * 40}, "lessons", ArgumentValueError),
        ({"lessons": "one text"}, "lessons", ArgumentTypeError),
        ({"instructions": ()}, "instructions", ArgumentValueError),
        ({"instructions": "one text"}, "instructions", ArgumentTypeError),
        ({"pairs": 24}, "pairs", ArgumentValueError),
    ],
)
def test_wrong_arguments_are_refused_by_name(changes, argument, error):
    with pytest.raises(error) as caught:
        calibrate_threshold(CharNgrams(), **changes)
    assert caught.value.argument == argument


def test_an_embedder_that_tells_nothing_apart_has_no_threshold():
    with pytest.raises(ArgumentValueError) as caught:
        calibrate_threshold(Flat(), pairs=25)
    assert caught.value.argument == "embedder"


def test_the_command_prints_the_figures(capsys):
    assert calibrate.main(["char-ngrams", "--seeds", "0"]) == 0
    assert f"threshold {CharNgrams.MEASURED_THRESHOLD:.3f}" in capsys.readouterr().out


def test_the_command_takes_parameters_and_lessons(tmp_path, capsys):
    file = tmp_path / "lessons.txt"
    file.write_text("\n".join(LESSONS[:30]), encoding="utf-8")
    assert calibrate.main(["--params", '{"dimensions": 256}', "--lessons", str(file)]) == 0
    assert "threshold" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["no-such"], ["--params", "[]"], ["--params", "{"], ["--params", '{"x": 1}']])
def test_the_command_says_what_cannot_be_used(arguments, capsys):
    assert calibrate.main(arguments) == 2
    assert capsys.readouterr().err


def test_the_command_sets_the_measures_side_by_side(capsys):
    assert calibrate.main(["--compare"]) == 0
    rows = {
        cells[1]: float(cells[2])
        for cells in ([cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()[2:])
    }
    assert len(rows) == 5
    used = rows.pop("least over the statements that differ, numbers and negations must agree")
    assert used > max(rows.values())
    assert rows["whole texts"] == min(rows.values())
