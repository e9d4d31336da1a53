"""The display shows where a run is and what it has cost, and obeys nothing that a model wrote."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from combee_dspy.events import BatchPlanned, CandidateValidated, UpdateEnded
from combee_dspy.journal import Effect, Reader, journal_file
from combee_dspy.tracking import Progress
from combee_dspy.tracking._news import in_words, seconds_left
from combee_dspy.tracking._phases import Doing
from combee_dspy.tracking._progress import Display
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

    def display(self, run=1, **options):
        return Display(self.reader, run, self.console, clock=lambda: self.now, **options)

    @property
    def text(self):
        return self.stream.getvalue()

    @property
    def lines(self):
        return self.text.splitlines()


def test_each_update_is_a_line_once(tmp_path):
    story = Story(tmp_path)
    screen = Screen(story.write())
    display = screen.display()
    story.write("begin", "first")
    display.follow()
    first, *lines = screen.lines
    assert first.endswith(
        "8 train, 4 validation, 4 heldout; task openai/simulated; proposer openai/simulated"
    )
    assert [line for line in lines if line.endswith("seed: validation 0.250")]
    update = "update 0: 2 rows in 2.5 s; best 0.500 (seed 0.250), 10 of 100 rollouts, "
    assert [line for line in lines if update in line]
    display.follow()
    assert screen.lines == [first, *lines]
    story.write("second", "end")
    display.follow()
    display.close()
    not_shown = "held-out not shown to be better, n = 4: 0.500 → 0.750"
    assert f"{not_shown} (+0.250, -0.250 to +0.750)" in screen.text
    assert screen.lines[-1].endswith(
        f"finished: {not_shown}, chosen 1.000 (seed 0.250), 18 of 100 rollouts, proposer 240"
        " tokens, task 390 tokens, $0.0260 and 2 calls without a price,"
        " 2 of 6 train rollouts raised"
    )


def test_a_line_names_no_dollars_where_no_price_is_known(tmp_path, monkeypatch):
    screen = Screen(Story(tmp_path).write("begin", "first"))
    display = screen.display()
    assert "$" in display.news.cost
    monkeypatch.setattr(display.news, "_dollars", 0.0)
    assert display.news.cost.endswith("tokens")


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
    updates = re.findall(r"update (\d+):", screen.text)
    assert list(map(int, updates)) == [*range(10), 10, 20, 30]


def test_the_students_score_is_shown_once_its_last_row_is_there(tmp_path):
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
    counts = []
    for step in ("three", "fourth", "event"):
        story.write(step)
        display.follow()
        counts.append(screen.text.count("seed: validation 0.250"))
    assert counts == [0, 1, 1]


def test_of_a_small_budget_the_rows_count_that_it_draws(tmp_path):
    class Small(Story):
        async def draw(self, log):
            await log.keep(Effect("decision/compared", "decision", {"value": 3}))

        async def two(self, log):
            for row in range(2):
                await self._roll(log, SEED, "validation", row, float(row == 0), -1)

        async def third(self, log):
            await self._roll(log, SEED, "validation", 3, 0.0, -1)

    story = Small(tmp_path)
    screen = Screen(story.write("draw"), terminal=True, now=story.clock)
    display = screen.display()
    story.write("two")
    display.follow()
    assert "validation 2 of 3" in screen.text
    assert "seed: validation" not in screen.text
    story.write("third")
    display.follow()
    assert "seed: validation 0.333" in screen.text
    display.close()


def test_a_student_without_a_score_makes_no_line(tmp_path):
    class Unscored(Story):
        async def rows(self, log):
            for row in range(4):
                await self._roll(log, SEED, "validation", row, None, -1)

    story = Unscored(tmp_path)
    screen = Screen(story.write())
    display = screen.display()
    story.write("rows")
    display.follow()
    assert len(screen.lines) == 1


def test_nothing_passes_what_it_is_a_part_of(tmp_path):
    story = Story(tmp_path, limits={"rollouts": 5, "tokens": 100, "updates": 1})
    screen = Screen(story.write("begin", "first", "second"))
    display = screen.display()
    display.close()
    assert "18 beyond 5 rollouts" in screen.text
    assert display.news.shares() == {"rollouts": 1.0, "tokens": 1.0, "updates": 1.0}


def test_what_an_earlier_part_did_counts_and_is_not_shown_again(tmp_path):
    story = Story(tmp_path)
    screen = Screen(story.write("begin", "first", "second"))
    story.write("first")  # events that the journal then holds twice
    display = screen.display()
    display.follow()
    assert len(screen.lines) == 1
    display.close()
    assert "not over: best 1.000 (seed 0.250)" in screen.lines[-1]


def test_a_terminal_has_a_panel(tmp_path):
    story = Story(tmp_path)
    screen = Screen(story.write("begin", "first", "second"), terminal=True, now=story.clock)
    display = screen.display()
    display.follow()
    display.close()
    assert "18 of 100" in screen.text
    assert "best 1.000 (seed 0.250)" in screen.text
    assert "Round to two decimals." in screen.text
    assert "proposer 240 tokens" in screen.text


def test_only_one_of_several_has_the_panel(tmp_path):
    place = Story(tmp_path, "first").write("begin")
    Story(tmp_path, "second").write("begin")
    screens = [Screen(place, terminal=True) for _ in range(2)]
    displays = [screen.display(run) for run, screen in enumerate(screens, start=1)]
    assert ["╭" in screen.text for screen in screens] == [True, False]
    assert "second" in screens[1].text
    for display in displays:
        display.close()


def test_neither_keys_nor_control_characters_nor_markup_get_through(tmp_path):
    place = Story(tmp_path, models={"task": f"[red]m\x1b[2J\u202e {KEY}"}).write()
    screen = Screen(place)
    screen.display().close()
    assert "[red]m" in screen.text
    assert not {"\x1b", "\u202e"} & set(screen.text)
    assert KEY not in screen.text


def test_what_is_being_done_is_shown_with_what_it_will_come_to(tmp_path):
    story = Story(tmp_path)
    screen = Screen(story.write("begin", "first"), terminal=True, now=story.clock)
    display = screen.display()
    display.follow()
    assert " of 8" not in screen.text, "what is over is not under way"
    story.write("second", "end")
    display.follow()
    assert "held-out 8 of 8" in screen.text
    display.close()


def test_each_phase_has_its_total_and_none_passes_it():
    doing = Doing({"train": 60, "validation": 4, "heldout": 3})
    assert not str(doing)
    doing.add_event(0, BatchPlanned(2, "", None, ()))
    assert str(doing) == "update 0: begins"
    for activity in ("rollouts", "rollouts", "rollouts", "reads", "merges", None):
        doing.add_effect(0, activity, "a", "")
    for row in (0, 1, 1):
        doing.add_effect(0, "validation", "b", f"v{row}")
    assert str(doing) == "update 0: 2 of 2 rollouts, merges 1, reads 1; validation 2 of 4"
    doing.add_event(0, CandidateValidated("b", 1, 0.5, 4, best=False))
    doing.add_event(0, UpdateEnded("a", (), 2, 0.0, 1.0))
    assert not str(doing)
    for candidate in "ab":
        for row in range(3):
            doing.add_effect(-1, "held-out", candidate, f"h{row}")
    assert str(doing) == "held-out 6 of 6"


def test_the_time_that_is_left_is_that_of_the_first_limit():
    shares = {"rollouts": 0.25, "dollars": 0.5}
    assert seconds_left(shares, {}, 60.0) == pytest.approx(60.0)  # half of the dollars in a minute
    assert seconds_left(shares, {"dollars": 0.4}, 60.0) == pytest.approx(180.0)
    assert seconds_left(shares, {}, 5.0) is None
    assert seconds_left({"rollouts": 0.01}, {}, 60.0) is None
    assert seconds_left({}, {}, 60.0) is None


def test_a_long_silence_is_broken_where_there_is_no_panel(tmp_path):
    screen = Screen(Story(tmp_path).write("begin", "first"))
    display = screen.display()
    for later in (20, 31, 40, 70):
        screen.now = BEGAN + later
        display.follow()
    lines = [line for line in screen.lines if "now: " in line]
    assert [line.split()[0] for line in lines] == ["0:31", "1:10"]
    assert "10 of 100 rollouts" in lines[0]


def test_the_result_is_left_to_who_shows_it(tmp_path):
    story = Story(tmp_path)
    screen = Screen(story.write())
    display = screen.display(result=False)
    story.write("begin", "first", "second", "end")
    display.follow()
    display.close()
    assert "update 1: " in screen.text
    assert "held-out" not in screen.text
    assert "finished" not in screen.text
    assert Progress(result=False).params() == {"result": False}


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (12_345, "12.3k"), (999_700, "1M"), (4_560_000, "4.56M"), (5e9, "5G")],
)
def test_counts_are_short(number, text):
    assert amount(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.4, "4 s"), (89, "89 s"), (90, "2 min"), (3_600, "60 min"), (36_000, "10 h")],
)
def test_durations_have_a_persons_unit(seconds, text):
    assert in_words(seconds) == text


def test_unknown_dollars_are_called_so():
    assert dollars(1.5, 0) == "$1.5000"
    assert dollars(1.5, 3) == "$1.5000 and 3 calls without a price"
    assert dollars(0.0, 3) == "$ unknown"


def test_texts_are_cut_and_kept_on_a_line():
    assert one_line("a\n b\t\x00c", 10) == "a b c"
    assert cut("abcdef", 4) == "ab …"
    assert cut("abcd", 4) == "abcd"
