from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from combee_dspy import events
from combee_dspy.tracking import EventBus, Progress
from combee_dspy.tracking._progress_state import ProgressState, amount

Story = Callable[[], list[events.Event]]


def _played(story: Story, *, terminal: bool) -> str:
    sink = io.StringIO()
    console = Console(file=sink, force_terminal=terminal, width=120, color_system=None)
    with EventBus([Progress(console, clock=lambda: 65.0)]) as bus:
        for event in story():
            bus.emit(event)
    return sink.getvalue()


def test_a_log_gets_a_line_for_each_step_and_no_terminal_codes(story: Story) -> None:
    text = _played(story, terminal=False)
    assert "\x1b" not in text
    lines = [line.removeprefix("   0:00  ") for line in text.splitlines()]
    assert lines[0] == ("formula-mini/route 24-3-5 seed 7: 24 train, 3 validation, 5 heldout; task embedded/smollm2")
    assert lines[1].startswith("warning: valset equals trainset")
    assert lines[2] == "seed validation 0.333"
    assert lines[3] == "iteration 1: batch 4: profiling 1 of 3; 24 examples allow 4 a batch"
    assert "3 calls, 1 failed, 2 lessons, 2.5 s" in lines[4]
    assert lines[5] == "iteration 1: validation 0.600, best so far, best 0.600 (seed 0.333)"
    assert lines[6] == (
        "iteration 1 done in 12.0 s: best 0.600 (seed 0.333), 14 rollouts, "
        "proposer 790 tokens, task 1.05k tokens, $0.2500"
    )
    assert "held-out 0.400 → 0.800 (95% interval of the gain +0.100 to +0.700, n = 5)" in lines
    assert lines[-1].startswith("stopped: the budget of 30 rollouts is spent. Best 0.700 (seed 0.333)")
    # A line per rollout would drown the log.
    assert len(lines) < len(story()) / 2


def test_text_of_an_lm_is_neither_markup_nor_terminal_code(story: Story, hostile: str) -> None:
    progress = Progress(Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None))
    for event in story():
        progress.handle(event)
        if isinstance(event, events.ScanFinished):
            break
    sink = io.StringIO()
    Console(file=sink, width=100, color_system=None).print(progress._render())
    progress.close()
    shown = sink.getvalue()
    assert "[bold]be exact[/bold] <script>" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_a_terminal_gets_a_panel_with_phase_scores_and_cost(story: Story) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    progress = Progress(console)
    sink = io.StringIO()
    paper = Console(file=sink, width=100, color_system=None)
    for event in story():
        progress.handle(event)
        if isinstance(event, events.RolloutFinished) and event.rollout_id == "2-validation-1":
            paper.print(progress._render())
    progress.close()
    shown = sink.getvalue()
    assert "iteration 2, validation" in shown
    assert "2 of 3" in shown
    assert "best 0.600 (seed 0.333)" in shown
    assert "8 calls, 2 cached" in shown
    assert "1k in, 50 out tokens" in shown
    assert "$0.2500" in shown


def test_the_terminal_is_given_back_after_an_error(story: Story) -> None:
    sink = io.StringIO()
    console = Console(file=sink, force_terminal=True, width=100)
    progress = Progress(console)
    progress.handle(story()[0])
    progress.close()
    progress.close()
    # The cursor that the display hid is visible again.
    assert sink.getvalue().rindex("\x1b[?25h") > sink.getvalue().rindex("\x1b[?25l")


def test_phases_follow_the_events(story: Story) -> None:
    state = ProgressState()
    phases = []
    for event in story():
        state.hear(event)
        if not phases or phases[-1] != state.phase:
            phases.append(state.phase)
    once = ["rollouts", "scan", "child check", "validation"]
    assert phases == ["seed validation", *once, *once, "held-out", "finished"]


def test_rollouts_are_counted_as_they_come_without_memo_hits_and_then_by_gepas_count(story: Story) -> None:
    state = ProgressState()
    counts = {}
    for event in story():
        state.hear(event)
        counts[getattr(event, "rollout_id", type(event).__name__)] = state.rollouts
    # Three for the seed's validation and four parents; the child's first comes from the memo.
    assert counts["1-parent-3"] == 7
    assert counts["1-child-0"] == 7
    assert counts["1-child-1"] == 8
    # gepa counts 25 after the second validation, and the held-out adds nothing to it.
    assert counts["2-validation-2"] == 24
    assert counts["2-heldout-4"] == state.rollouts == 25


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1k"), (12_345, "12.3k"), (999_999, "1M"), (4_560_000, "4.56M"), (7e9, "7G")],
)
def test_amounts_are_short(number: float, text: str) -> None:
    assert amount(number) == text


def test_an_unknown_price_is_said_not_shown_as_zero() -> None:
    state = ProgressState()
    (line,) = state.hear(
        events.IterationFinished(
            iteration=1,
            accepted=False,
            rollouts=1,
            best_score=0.0,
            seconds=1.0,
            costs={"task": {"calls": 3, "unpriced": 3, "dollars": None, "known_dollars": 0.0}},
        )
    )
    assert line.endswith("$ unknown")


def test_keys_do_not_reach_the_screen() -> None:
    sink = io.StringIO()
    progress = Progress(Console(file=sink, width=200))
    progress.handle(events.ErrorRaised(where="lm", error="401 for sk-abcdefghijklmnop1234", fatal=True))
    assert "sk-abc" not in sink.getvalue()
    assert "[redacted]" in sink.getvalue()


def _across(limit: int) -> str:
    return ("a " * limit)[: limit - 35] + "Zq7w" + "x9Kd" * 9 + " tail" * 20


@pytest.mark.parametrize(
    "event",
    [
        events.ErrorRaised(where="lm", error=_across(300), fatal=True),
        events.CandidateRefused(parent_id="p", operator="insert", reason=_across(120)),
        events.CandidateRejected(old_score=1.0, new_score=0.0, reason=_across(120)),
        events.ScanFinished(component="c", aggregator="a", nodes=(), lessons=(_across(200),), seconds=1.0),
        events.RunFinished(reason=_across(300), best_index=0, best_score=0.0, texts={}, rollouts=1, seconds=1.0),
        events.RunStarted(
            name="n", seed=0, sizes={}, digests={}, specs={}, models={}, components={}, warnings=(_across(300),)
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_cut_leaves_no_piece_of_a_key_on_the_screen(monkeypatch: pytest.MonkeyPatch, event: events.Event) -> None:
    monkeypatch.setenv("SOME_API_KEY", "Zq7w" + "x9Kd" * 9)
    sink = io.StringIO()
    console = Console(file=sink, width=1_000)
    progress = Progress(console)
    progress.handle(event)
    console.print(progress._render())
    assert "a a a a" in sink.getvalue()
    assert "Zq7wx9" not in sink.getvalue()
