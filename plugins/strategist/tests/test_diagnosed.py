"""From Python: a wide search is told once that serial search has not converged, or refused where a
diagnosis is asked for.
"""

from __future__ import annotations

import dspy
import pytest

from combee_dspy import Search, Task, compile_many
from combee_dspy.exceptions import RefusedError
from combee_strategist.diagnosis import diagnose, read_diagnosis
from plugins.strategist.tests.searches import CONVERGED, Converged, search
from tests.tracking.journals import Story
from tests.worlds import examples

SAID = "nobody knows whether serial search has converged"


def compiled(world, place, many=False, **given):
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(log_dir=place, max_metric_calls=20, **given)
        if many:
            return compile_many(
                [Task("one", dspy.Predict("question -> answer"), examples(6))], combee=combee
            )
        return combee.compile(dspy.Predict("question -> answer"), trainset=examples(6))


def told(place, levels):
    folder = place.with_name(f"{place.name}-serial")
    folder.mkdir(exist_ok=True)
    diagnose(search(levels)).save(folder)


def test_who_searched_serially_and_has_not_converged_is_told_once_for_each_log_dir(
    world, tmp_path, caplog
):
    told(tmp_path / "a", [0.4 + 0.02 * step for step in range(15)])
    told(tmp_path / "b", [0.4 + 0.02 * step for step in range(15)])
    for _ in range(3):
        compiled(world, tmp_path / "a", num_threads=8)
    assert caplog.text.count("the diagnosis is") == 1
    compiled(world, tmp_path / "b", num_threads=None)
    assert caplog.text.count("the diagnosis is") == 2
    compiled(world, tmp_path / "c", num_threads=8)  # nobody searched serially
    assert caplog.text.count("the diagnosis is") == 2
    assert SAID not in caplog.text


def test_small_users_are_not_told_nor_who_has_diagnosed(world, tmp_path, caplog):
    compiled(world, None, num_threads=16)  # nothing to come back to
    compiled(world, tmp_path / "a", num_threads=4)
    compiled(world, tmp_path / "b", num_threads=1)
    told(tmp_path / "c", CONVERGED)
    compiled(world, tmp_path / "c", num_threads=16)
    assert SAID not in caplog.text


@pytest.mark.parametrize("many", [False, True])
def test_where_it_is_required_nothing_is_bought_without_a_go(world, tmp_path, many):
    required = {"search": Search(require_diagnosis=True), "many": many}
    # Neither few workers nor no log_dir nor another's diagnosis is a way around it.
    told(tmp_path / "another", CONVERGED)
    for place, threads in (
        (tmp_path / "a", 16),
        (tmp_path / "a", None),
        (tmp_path / "a", 2),
        (None, 16),
    ):
        with pytest.raises(RefusedError, match=SAID):
            compiled(world, place, num_threads=threads, **required)
    for levels in ([0.4] * 15, [0.4 + 0.02 * step for step in range(15)]):
        told(tmp_path / "a", levels)
        with pytest.raises(RefusedError, match="before convergence"):
            compiled(world, tmp_path / "a", num_threads=16, **required)
    (tmp_path / "a-serial" / "diagnosis.json").write_text("[]", encoding="utf-8")
    with pytest.raises(RefusedError, match="cannot be read"):
        compiled(world, tmp_path / "a", num_threads=16, **required)
    assert world.asked == 0
    assert not (tmp_path / "a").exists()
    compiled(world, tmp_path / "b", num_threads=1, **required)  # the serial search itself
    told(tmp_path / "a", CONVERGED)
    compiled(world, tmp_path / "a", num_threads=16, **required)
    # It is no part of what was learned: a run goes on with or without it.
    asked = world.asked
    compiled(world, tmp_path / "a", num_threads=16, many=many)
    assert world.asked == asked


def test_what_counts_is_the_journal_and_not_what_a_file_says_of_it(world, tmp_path):
    required = Search(require_diagnosis=True)
    (tmp_path / "a-serial").mkdir()
    Story(tmp_path / "a-serial").whole()  # four validation rows show nothing
    told(tmp_path / "a", CONVERGED)
    assert read_diagnosis(tmp_path / "a-serial").go
    with pytest.raises(RefusedError, match="the diagnosis is 'undecided'"):
        compiled(world, tmp_path / "a", num_threads=16, search=required)
    (tmp_path / "b-serial").mkdir()
    Converged(tmp_path / "b-serial").write("begin")
    with pytest.raises(RefusedError, match=SAID):  # nobody has looked
        compiled(world, tmp_path / "b", num_threads=16, search=required)
    told(tmp_path / "b", [0.4] * 15)
    compiled(world, tmp_path / "b", num_threads=16, search=required)
