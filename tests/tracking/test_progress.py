"""The display says where a run is and what it has cost, and obeys nothing that a model wrote."""

from __future__ import annotations

import io
import logging
import re

import pytest
from rich.console import Console

from combee_dspy.events import BatchPlanned, CandidateValidated, UpdateEnded
from combee_dspy.journal import Reader, journal_file
from combee_dspy.tracking._phases import Doing, left_of, shares_of, spoken
from combee_dspy.tracking._progress import Display, Progress
from combee_dspy.tracking._text import amount, cut, dollars, one_line
from tests.tracking.journals import BEGAN, KEY, SEED, Story


class Screen:
    """A terminal or a file that a display writes to, with a clock that stands still."""

    def __init__(self, place, *, terminal=False, now=BEGAN):
        self.stream = io.StringIO()
        self.console = Console(
            file=self.stream, force_terminal=terminal, width=110, color_system=None
        )
        self.reader, self.now = Reader(journal_file(place)), now

    def display(self, run=1):
        return Display(self.reader, run, self.console, clock=lambda: self.now)

    def lines(self):
        return self.stream.getvalue().splitlines()


def test_each_update_is_a_line_and_its_details_are_debug(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "combee_dspy.progress")
    story = Story(tmp_path)
    screen = Screen(story.write())
    display = screen.display()
    story.write("begin", "first")
    display.follow()
    told = screen.lines()
    assert (
        told[0].split("  ")[-1]
        == "8 train, 4 validation, 4 heldout; task openai/simulated; proposer openai/simulated"
    )
    assert any(one.endswith("seed: validation 0.250") for one in told)
    assert any(
        "update 0: 2 rows in 2.5 s; best 0.500 (seed 0.250), 10 of 100 rollouts, " in one
        for one in told
    )
    details = [record.getMessage() for record in caplog.records]
    for line in (
        "update 0: batch of 2: the ladder; the budget leaves no more",
        "update 0: union of predict: 2 reflections, 3 calls, 1 failed, 1 lessons",
        "update 0: child c0ffee00: 0.500 → 1.000: better",
        "update 0: delete made no child: nothing is left",
        "update 0: candidate 1: validation 0.500, best so far",
    ):
        assert any(detail.endswith(line) for detail in details), line
        assert not any(one.endswith(line) for one in told), "details are not told"
    display.follow()
    assert screen.lines() == told  # nothing is told twice
    story.write("second", "end")
    display.follow()
    display.close()
    not_shown = "held-out not shown to be better, n = 4: 0.500 → 0.750"
    assert f"{not_shown} (+0.250, -0.250 to +0.750)" in screen.stream.getvalue()
    assert screen.lines()[-1].endswith(
        f"finished: {not_shown}, best 1.000 (seed 0.250), 18 of 100 rollouts, proposer 240 tokens,"
        " task 390 tokens, $0.0260 and 2 calls without a price, 2 of 6 train rollouts raised"
    )


def test_updates_of_a_long_search_that_change_nothing_are_folded(tmp_path):
    class Serial(Story):
        async def many(self, log):
            for step in range(1, 35):
                self._close(log, step, "seed", 3)

    story = Serial(tmp_path)
    screen = Screen(story.write())
    display = screen.display()
    story.write("begin", "first", "many")
    display.follow()
    updates = re.findall(r"update (\d+):", screen.stream.getvalue())
    assert list(map(int, updates)) == [*range(10), 10, 20, 30]


def test_the_students_score_is_told_once_its_last_row_is_there(tmp_path):
    class Early(Story):
        async def three(self, log):
            for row in range(3):
                await self._roll(log, SEED, "validation", row, float(row == 0), -1)

        async def fourth(self, log):
            await self._roll(log, SEED, "validation", 3, 0.0, -1)

        async def event(self, log):
            log.emit(CandidateValidated(SEED, 0, 0.25, 4, best=True))

    story = Early(tmp_path)
    screen = Screen(story.write())
    display = screen.display()
    told = []
    for step in ("three", "fourth", "event"):
        story.write(step)
        display.follow()
        told.append(screen.stream.getvalue().count("seed: validation 0.250"))
    assert told == [0, 1, 1]


def test_nothing_passes_what_it_is_a_part_of(tmp_path):
    story = Story(tmp_path, limits={"rollouts": 5, "tokens": 100, "updates": 1})
    screen = Screen(story.write("begin", "first", "second"))
    display = screen.display()
    display.close()
    told = screen.stream.getvalue()
    assert "18 beyond 5 rollouts" in told
    assert "18 of 5" not in told
    assert all(share <= 1 for share in display.news.shares().values())


def test_what_an_earlier_part_did_counts_and_is_not_told_again(tmp_path):
    story = Story(tmp_path)
    screen = Screen(story.write("begin", "first"))
    display = screen.display()
    display.follow()
    assert len(screen.lines()) == 1
    display.close()
    assert "not over: best 0.500 (seed 0.250), 10 of 100 rollouts" in screen.lines()[-1]


def test_the_best_after_a_resume_is_the_best_and_not_the_last_that_was_said_to_be(tmp_path):
    story = Story(tmp_path)
    screen = Screen(story.write("begin", "first", "second"))
    story.write("first")  # an event that stands in the journal twice
    screen.display().close()
    assert "not over: best 1.000 (seed 0.250)" in screen.lines()[-1]


def test_a_terminal_has_a_panel_that_goes(tmp_path):
    story = Story(tmp_path)
    place = story.write("begin", "first", "second")
    screen = Screen(place, terminal=True, now=story.clock)
    display = screen.display()
    display.follow()
    panel = screen.stream.getvalue()
    for part in (
        "18 of 100",
        "best 1.000 (seed 0.250)",
        "about 0",
        "Round to two decimals.",
        "proposer 240 tokens",
    ):
        assert part in panel
    display.close()


def test_only_one_of_several_has_the_panel(tmp_path):
    place = Story(tmp_path, "first").write("begin")
    Story(tmp_path, "second").write("begin")
    screens = [Screen(place, terminal=True) for _ in range(2)]
    first, second = screens[0].display(1), screens[1].display(2)
    assert "╭" in screens[0].stream.getvalue()
    assert "╭" not in screens[1].stream.getvalue()
    assert "second" in screens[1].stream.getvalue()
    first.close()
    second.close()


def test_neither_keys_nor_control_characters_nor_markup_get_through(tmp_path):
    place = Story(tmp_path, models={"task": f"[red]m\x1b[2J\u202e {KEY}"}).write()
    screen = Screen(place)
    screen.display().close()
    told = screen.stream.getvalue()
    assert "[red]m" in told
    assert not {"\x1b", "\u202e"} & set(told)
    assert KEY not in told


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0"), (999, "999"), (12_345, "12.3k"), (999_700, "1M"), (4_560_000, "4.56M"), (5e9, "5G")],
)
def test_counts_are_short(number, said):
    assert amount(number) == said


def test_dollars_say_what_is_not_known():
    assert dollars(1.5, 0) == "$1.5000"
    assert dollars(1.5, 3) == "$1.5000 and 3 calls without a price"
    assert dollars(None, 3) == "$ unknown"


def test_texts_are_cut_and_kept_on_a_line():
    assert one_line("a\n b\t\x00c", 10) == "a b c"
    assert cut("abcdef", 4) == "ab …"
    assert cut("abcd", 4) == "abcd"


def test_what_is_being_done_is_shown_with_what_it_will_come_to(tmp_path):
    story = Story(tmp_path)
    screen = Screen(story.write("begin", "first"), terminal=True, now=story.clock)
    display = screen.display()
    display.follow()
    assert " of 8" not in screen.stream.getvalue(), "what is over is not under way"
    story.write("second", "end")
    display.follow()
    assert "held-out 8 of 8" in screen.stream.getvalue()
    display.close()


def test_each_phase_has_its_total_and_none_passes_it():
    doing = Doing({"train": 60, "validation": 4, "heldout": 3})
    assert not str(doing)
    doing.event(0, BatchPlanned(2, "", None, ()))
    assert str(doing) == "update 0: begins"
    for row in range(3):  # one was repeated
        doing.effect(f"rollout/a/train/{row}/0/train", "train", 0, "a", f"t{row}")
    doing.effect("call/0/predict/read/0/0/proposer/x", "S", 0, "", "")
    doing.effect("call/0/predict/merge/1/0/proposer/y", "S", 0, "", "")
    for row in (0, 1, 1):
        doing.effect(f"rollout/b/validation/{row}/0/validation", "validation", 0, "b", f"v{row}")
    assert str(doing) == "update 0: 2 of 2 rollouts, merges 1, reads 1; validation 2 of 4"
    doing.event(0, CandidateValidated("b", 1, 0.5, 4, best=False))
    doing.event(0, UpdateEnded("a", (), 2, 0.0, 1.0))
    assert (str(doing), doing.updates) == ("", 1)
    for candidate in "ab":
        for row in range(3):
            doing.effect("…", "heldout", -1, candidate, f"h{row}")
    assert str(doing) == "held-out 6 of 6"


def test_shares_of_limits_and_the_time_that_is_left():
    limits = {"rollouts": 200, "dollars": 2.0, "seconds": None, "epochs": 3}
    shares = shares_of(limits, {"rollouts": 50, "dollars": 1.0, "seconds": 9.0})
    assert shares == {"rollouts": 0.25, "dollars": 0.5}
    assert shares_of({"rollouts": 2}, {"rollouts": 3}) == {"rollouts": 1.0}
    assert left_of(shares, {}, 60.0) == pytest.approx(60.0)  # half of the dollars in a minute
    assert left_of(shares, {"dollars": 0.4}, 60.0) == pytest.approx(180.0)
    assert left_of(shares, {}, 5.0) is None
    assert left_of({"rollouts": 0.01}, {}, 60.0) is None
    assert [spoken(one) for one in (4.4, 89, 90, 3_600, 36_000)] == [
        "4 s",
        "89 s",
        "2 min",
        "60 min",
        "10 h",
    ]


def test_a_long_silence_is_broken_where_there_is_no_panel(tmp_path):
    screen = Screen(Story(tmp_path).write("begin", "first"))
    display = screen.display()
    for later in (20, 31, 40, 70):
        screen.now = BEGAN + later
        display.follow()
    told = [line for line in screen.lines() if "now: " in line]
    assert [line.split()[0] for line in told] == ["0:31", "1:10"]
    assert "10 of 100 rollouts" in told[0]


def test_the_result_is_left_to_who_shows_it(tmp_path):
    screen = Screen(Story(tmp_path).whole())
    display = Display(screen.reader, 1, screen.console, clock=lambda: screen.now, result=False)
    display.follow()
    display.close()
    assert len(screen.lines()) == 1  # what an earlier part did is not told, and neither is its end
    assert Progress(result=False).open(screen.reader, 1)._result is False
