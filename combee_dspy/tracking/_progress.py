"""Shows a run as it happens: a panel on a terminal, lines anywhere else."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from combee_dspy.events import (
    BatchPlanned,
    CandidateScreened,
    CandidateSelected,
    CandidateValidated,
    ChildRefused,
    CopiesRemoved,
    ErrorRaised,
    Event,
    HeldoutRead,
    LimitChanged,
    PointPriced,
    RunStopped,
    ScanEnded,
    UpdateEnded,
    WarningRaised,
)
from combee_dspy.gains import name_gain
from combee_dspy.journal import Outcome, Reader, RunHistory, failure_counts, outcomes
from combee_dspy.strategies import parameters
from combee_dspy.tracking._base import Follower, Tracker, page_file
from combee_dspy.tracking._lines import plain_line
from combee_dspy.tracking._phases import Doing, left_of, shares_of, spoken
from combee_dspy.tracking._sql import SPENT
from combee_dspy.tracking._text import amount, cleaner, dollars, one_line

__all__ = ["Progress"]

_WINDOW = 5.0  # seconds over which what is in flight is averaged
_SILENCE = 30.0  # seconds after which a line says what is being done, where there is no panel
_RESULT = (HeldoutRead, PointPriced, RunStopped)

# Several runs of one process share a terminal: the first to come has the panel, the others write
# lines above it.
_PANEL = threading.Lock()

_logger = logging.getLogger("combee_dspy.progress")

_NEW = (
    "SELECT kind, purpose, started, ended, key, step, candidate, example FROM effect"
    " WHERE run = ? AND id <= ? AND id > ?"
)

_FOLLOWED: tuple[type[Event], ...] = (
    BatchPlanned,
    CandidateScreened,
    CandidateSelected,
    CandidateValidated,
    ChildRefused,
    CopiesRemoved,
    ErrorRaised,
    HeldoutRead,
    LimitChanged,
    PointPriced,
    RunStopped,
    ScanEnded,
    UpdateEnded,
    WarningRaised,
)


@parameters
class Progress(Tracker):
    """Says on standard error what a run is doing and what it has cost.

    On a terminal a panel follows the run: what is being done, batch, validation, what is
    used of the budget and how long that lasts, effects in flight, tokens by role and
    dollars. Each update is a line, there and anywhere else: of the logger
    ``combee_dspy.progress`` at INFO where logging is set up, else on standard error, as in
    a notebook; where nothing has been said for half a minute, what is being done is one.
    Details are lines of that logger at DEBUG. Text that an LM wrote is shown without
    control characters and never read as markup; keys are removed.

    Args:
        result: Whether to end with the result; not where somebody else shows it, as ``combee run``
            does.
    """

    result: bool = True

    name: ClassVar[str] = "progress"

    def open(self, reader: Reader, run: int) -> Follower:
        """Return the display of one run."""
        return Display(reader, run, result=self.result)


class Display(Follower):
    """Reads what is new of one run's journal, and shows it: on standard error, by the system's
    clock.
    """

    def __init__(
        self,
        reader: Reader,
        run: int,
        console: Console | None = None,
        *,
        clock: Callable[[], float] = time.time,
        result: bool = True,
    ) -> None:
        self._reader, self._run, self._clock, self._result = reader, run, clock, result
        # In a notebook too lines go to standard error: rich's own way shows them where the cursor
        # was.
        self._console = Console(stderr=True, force_jupyter=False) if console is None else console
        self._logs = console is None and not self._console.is_terminal and _logger.hasHandlers()
        self._clean = cleaner()
        self._began = self._spoke = clock()
        self._history = RunHistory(reader, run)
        about = self._history.about
        self._name = one_line(self._clean(self._history.record.name), 60)
        self._limits = about.limits
        self._doing = Doing(about.sizes)
        self._effect = self._event = 0
        self._bought = 0  # beside the held-out set, which is read beyond the budget
        self._recent: list[tuple[float, float]] = []
        self._outcomes: list[Outcome] = []
        self._tokens: Counter[str] = Counter()
        self._dollars = self._unpriced = 0.0
        self._counted = Counter[str]()  # what limits hold, beside the held-out set as well
        self._facts: dict[str, str] = {}
        self._scores: dict[str, tuple[int, float]] = {}  # index and score by candidate
        self._chosen = self._gain = ""
        self._news()  # of an earlier part of the run: it counts, and is not told again
        self._resumed = self._effect > 0
        self._before = self._shares()
        self._live: Live | None = None
        if (
            self._console.is_terminal
            and not self._console.is_dumb_terminal
            and _PANEL.acquire(blocking=False)
        ):
            self._live = Live(
                self._panel(), console=self._console, auto_refresh=False, transient=True
            )
            self._live.start()
        sizes = ", ".join(f"{size} {split}" for split, size in about.sizes.items())
        models = (f"{role} {model}" for role, model in about.models.items())
        self._say("; ".join((sizes, *models)))

    def follow(self) -> None:
        """Show what is new."""
        for line, level in self._news():
            self._say(line, level)
        if self._live is None and self._clock() - self._spoke >= _SILENCE:
            used = ", ".join(
                filter(None, (f"{self._rollouts()} rollouts", self._used(), self._cost()))
            )
            self._say(f"now: {self._doing or 'waiting'}; {used}")
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)

    def close(self) -> None:
        """Give the terminal back, and say what the run has cost."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            _PANEL.release()
        record = self._history.record
        state = record.state
        if not self._result and state == "finished":
            return
        best, rollouts = f"best {self._best} (seed {self._seed})", f"{self._rollouts()} rollouts"
        facts = self._gain, best, rollouts, self._cost(), self._failed()
        now = "not over" if state == "running" else state
        self._say(f"{now}: {', '.join(filter(None, facts))}")
        page = page_file(self._reader.path, self._run, record.name)
        if state != "running" and page.is_file():
            self._say(f"report: {page}")

    @property
    def _seed(self) -> str:
        return next(
            (f"{score:.3f}" for index, score in self._scores.values() if not index), "not known"
        )

    @property
    def _best(self) -> str:
        """The score of what was chosen, the best one until then."""
        chosen = [score for name, (_, score) in self._scores.items() if self._chosen in (name, "")]
        return f"{max(chosen):.3f}" if chosen else "not known"

    def _news(self) -> list[tuple[str, int]]:
        """Read what is new and take it into account; return the lines about it."""
        newest = (
            self._reader.rows("SELECT max(id) FROM effect WHERE run = ?", (self._run,))[0][0] or 0
        )
        self._add_effects(newest)
        self._effect = newest
        lines = []
        for entry in self._history.entries(*_FOLLOWED, after=self._event):
            self._event = entry.id
            self._doing.event(entry.step, entry.event)
            line, level = self._line(entry.step, entry.component, entry.event)
            if line and (self._result or not isinstance(entry.event, _RESULT)):
                lines.append((line, level))
        return lines

    def _add_effects(self, newest: int) -> None:
        new = (self._run, newest, self._effect)
        for role, _, tokens, spent, unpriced in self._reader.rows(SPENT.format("e.id > ?"), new):
            self._tokens[role] += tokens
            self._dollars += spent
            self._unpriced += unpriced
        beside = self._reader.rows(SPENT.format("e.id > ? AND e.purpose IS NOT 'heldout'"), new)
        for _, calls, tokens, spent, _ in beside:
            self._counted.update(calls=calls, tokens=tokens, dollars=spent)
        self._outcomes = _joined(
            [*self._outcomes, *outcomes(self._reader, self._run, after=self._effect, upto=newest)]
        )
        since = self._clock() - _WINDOW
        for kind, purpose, started, ended, *place in self._reader.stream(_NEW, new):
            self._bought += kind == "rollout" and purpose != "heldout"
            if ended > since:
                self._recent.append((started, ended))
            key, step, candidate, example = place
            self._doing.effect(key, purpose, step, candidate, example)
        self._recent = [span for span in self._recent if span[1] > since]

    def _line(self, step: int, component: str, event: Event) -> tuple[str, int]:
        """Take one event into account; return the line about it, or nothing, and its level."""
        update = f"update {step}"
        match event:
            case BatchPlanned(size=size, reason=reason, clamps=clamps):
                reasons = "; ".join((reason, *(clamp.reason for clamp in clamps)))
                self._facts["batch"] = f"{size}: {reasons}"
                return f"{update}: batch of {size}: {reasons}", logging.DEBUG
            case ScanEnded():
                return f"{update}: {self._scan(component, event)}", logging.DEBUG
            case CandidateValidated():
                return self._validation(update, event)
            case UpdateEnded(rows=rows, seconds=seconds, skipped=skipped):
                nothing = f", nothing to learn: {skipped}" if skipped else ""
                scores = f"best {self._best} (seed {self._seed})"
                costs = f"{self._rollouts()} rollouts, {self._cost()}"
                line = f"{update}: {rows} rows in {seconds:.1f} s{nothing}; {scores}, {costs}"
                return line, logging.INFO
            case CandidateSelected(candidate=candidate, reason=reason):
                self._chosen = candidate if candidate in self._scores else ""
                return f"chosen: candidate {candidate:.8}: {reason}", logging.INFO
            case HeldoutRead():
                return self._heldout(event)
            case LimitChanged(limit=limit):
                self._facts["limit"] = f", at most {limit}"
                return "", logging.DEBUG
        return plain_line(update, component, event)

    def _scan(self, component: str, event: ScanEnded) -> str:
        if event.lessons:
            self._facts["lesson"] = event.lessons[-1].text
        failed = f", {event.failed} failed" if event.failed else ""
        return (
            f"{event.aggregator} of {component}: {event.n} reflections, {len(event.nodes)}"
            f" calls{failed}, {len(event.lessons)} lessons"
        )

    def _validation(self, update: str, event: CandidateValidated) -> tuple[str, int]:
        score = "not known" if event.score is None else f"{event.score:.3f}"
        if event.score is not None:
            self._scores[event.candidate] = event.index, event.score
        if not event.index:
            return f"seed: validation {score}", logging.INFO
        best = ", best so far" if event.best else ""
        return f"{update}: candidate {event.index}: validation {score}{best}", logging.DEBUG

    def _heldout(self, event: HeldoutRead) -> tuple[str, int]:
        """Take the held-out figures into account; return the line about them. A loss is a
        warning.
        """
        name = name_gain(event.difference, event.low, event.high)
        self._gain = f"held-out {name}: {event.before:.3f} → {event.after:.3f}"
        interval = (
            f"({event.difference:+.3f}, {event.low:+.3f} to {event.high:+.3f}, n = {event.n})"
        )
        level = logging.WARNING if event.difference < 0 else logging.INFO
        return f"{self._gain} {interval}", level

    def _say(self, line: str, level: int = logging.INFO) -> None:
        self._spoke = self._clock()
        name = "" if self._name == "main" else f"{self._name}  "
        message = f"{self._elapsed():>7}  {name}{one_line(self._clean(line), 300)}"
        if level == logging.DEBUG or self._logs:
            _logger.log(level, "%s", message)
        else:
            self._console.print(Text(message, overflow="fold"), soft_wrap=self._live is None)

    def _elapsed(self) -> str:
        seconds = int(self._clock() - self._began)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _rollouts(self) -> str:
        limit = self._limits.get("rollouts")
        # Whoever goes on with a smaller budget has bought more than it.
        return amount(self._bought) + (
            f" {'of' if self._bought <= limit else 'beyond'} {amount(limit)}" if limit else ""
        )

    def _shares(self) -> dict[str, float]:
        spent: dict[str, float] = {
            "rollouts": self._bought,
            **self._counted,
            "updates": self._doing.updates,
        }
        # How long earlier parts took is not known here.
        return shares_of(
            self._limits,
            spent if self._resumed else {**spent, "seconds": self._clock() - self._began},
        )

    def _used(self) -> str:
        """Return what is used of each limit but the rollouts, which are told on their own, and how
        long it lasts.
        """
        shares = self._shares()
        parts = [
            f"{share:.0%} of {amount(self._limits[name] or 0)} {name}"
            for name, share in shares.items()
            if name != "rollouts"
        ]
        left = left_of(shares, self._before, self._clock() - self._began)
        return ", ".join(
            [*parts, *([] if left is None else [f"at most about {spoken(left)} left"])]
        )

    def _cost(self) -> str:
        tokens = (
            f"{role} {amount(number)} tokens" for role, number in sorted(self._tokens.items())
        )
        return ", ".join([*tokens, dollars(self._dollars, int(self._unpriced))])

    def _failed(self) -> str:
        return ", ".join(map(str, failure_counts(self._outcomes)))

    def _flying(self) -> str:
        """Return how many effects were in flight on average lately: a journal knows those that are
        over.
        """
        now = self._clock()
        since = max(now - _WINDOW, self._began)
        busy = sum(max(0.0, ended - max(started, since)) for started, ended in self._recent)
        return f"about {busy / max(now - since, 0.5):.0f}{self._facts.get('limit', '')}"

    def _panel(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        facts = {
            "now": str(self._doing),
            **{name: self._facts.get(name, "") for name in ("batch", "lesson")},
            "validation": f"best {self._best} (seed {self._seed})",
            "rollouts": self._rollouts(),
            "budget": self._used(),
            "in flight": self._flying(),
            "cost": self._cost(),
            "failed": self._failed(),
        }
        for name, value in facts.items():
            cell: RenderableType = Text(one_line(self._clean(value), 200), overflow="fold")
            if name == "rollouts" and (limit := self._limits.get("rollouts")):
                bar = ProgressBar(total=limit, completed=min(self._bought, limit), width=24)
                cell = Columns([bar, cell])
            if value:
                grid.add_row(name, cell)
        title = Text(f"{self._name}  {self._elapsed()}")
        return Panel(grid, title=title, title_align="left", border_style="dim")


def _joined(items: Iterable[Outcome]) -> list[Outcome]:
    """Return outcomes of one kind, role and cause as one."""
    joined: dict[tuple[Any, ...], Outcome] = {}
    for outcome in items:
        item, key = outcome, (outcome.kind, outcome.role, outcome.cause)
        before = joined.get(key)
        joined[key] = (
            item if before is None else before._replace(number=before.number + item.number)
        )
    return list(joined.values())
