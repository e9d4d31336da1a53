"""Shows a run as it happens: a panel on a terminal, lines anywhere else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from combee_dspy.journal import Reader
from combee_dspy.strategies import parameters
from combee_dspy.tracking._base import Follower, Tracker
from combee_dspy.tracking._text import amount, cleaner, dollars, one_line

__all__ = ["Display", "Progress"]

_BAR = 24
_WINDOW = 5.0  # seconds over which what is in flight is averaged

# Several runs of one process share a terminal: the first to come has the panel, the others write lines above it.
_PANEL = threading.Lock()


@parameters
class Progress(Tracker):
    """Says on standard error what a run is doing and what it has cost.

    On a terminal a panel follows the run: update, batch, validation, rollouts of the
    budget, effects in flight, tokens by role and dollars. What happened is a line each,
    there and anywhere else. Text that an LM wrote is shown without control characters
    and never read as markup; keys are removed.
    """

    name: ClassVar[str] = "progress"

    def open(self, reader: Reader, run: int) -> Follower:
        """Return the display of one run."""
        return Display(reader, run)


class Display(Follower):
    """Reads what is new of one run's journal, and shows it.

    Args:
        reader: Borrowed.
        run: The run's id.
        console: Where to write; standard error by default.
        clock: Unix seconds.
    """

    def __init__(
        self, reader: Reader, run: int, console: Console | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._reader, self._run, self._clock = reader, run, clock
        self._console = Console(stderr=True) if console is None else console
        self._clean = cleaner()
        self._began = clock()
        row = reader.rows("SELECT name, description FROM run WHERE id = ?", (run,))[0]
        about = json.loads(row["description"])
        self._name = one_line(self._clean(row["name"]), 60)
        self._budget: int | None = (about.get("limits") or {}).get("rollouts")
        # What was there before belongs to an earlier part of the run; it counts, and is not told again.
        self._event = reader.rows("SELECT coalesce(max(id), 0) FROM event WHERE run = ?", (run,))[0][0]
        self._effect = 0
        self._rollouts: dict[str, int] = {}
        self._recent: list[tuple[float, float]] = []
        self._roles: dict[str, tuple[float, ...]] = {}  # tokens, dollars, calls without a price
        self._facts: dict[str, str] = {}
        self._seed: float | None = None
        self._best: float | None = None
        for event in reader.rows("SELECT * FROM event WHERE run = ? AND id <= ? ORDER BY id", (run, self._event)):
            self._tell(event)
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal and _PANEL.acquire(blocking=False):
            self._live = Live(self._panel(), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        sizes = ", ".join(f"{size} {split}" for split, size in about.get("sizes", {}).items())
        self._say("; ".join((sizes, *(f"{role} {model}" for role, model in about.get("models", {}).items()))))

    def follow(self) -> None:
        """Show what is new."""
        self._read_effects()
        for event in self._reader.after("event", self._event, self._run):
            self._event = event["id"]
            if line := self._tell(event):
                self._say(line)
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)

    def close(self) -> None:
        """Give the terminal back, and say what the run has cost."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            _PANEL.release()
        row = self._reader.rows("SELECT state FROM run WHERE id = ?", (self._run,))[0]
        state = "goes on" if row["state"] == "running" else row["state"]
        self._say(f"{state}: best {self._scores()}, {self._bought()} rollouts, {self._tokens()}, {self._dollars()}")

    def _read_effects(self) -> None:
        newest = self._reader.rows("SELECT max(id) FROM effect WHERE run = ?", (self._run,))[0][0] or 0
        new = (self._run, self._effect, newest)
        for role, *more in self._reader.rows(
            "SELECT u.role, sum(u.prompt_tokens + u.completion_tokens), total(u.dollars),"
            " sum(CASE WHEN u.dollars IS NULL THEN u.calls ELSE 0 END)"
            " FROM effect e JOIN usage u ON u.effect = e.id WHERE e.run = ? AND e.id > ? AND e.id <= ? GROUP BY 1",
            new,
        ):
            before = self._roles.get(role, (0.0, 0.0, 0.0))
            self._roles[role] = tuple(one + other for one, other in zip(before, more, strict=True))
        sql = "SELECT kind, purpose, started, ended FROM effect WHERE run = ? AND id > ? AND id <= ?"
        for row in self._reader.rows(sql, new):
            if row["kind"] == "rollout":
                self._rollouts[row["purpose"]] = self._rollouts.get(row["purpose"], 0) + 1
            if row["started"]:
                self._recent.append((row["started"], row["ended"]))
        self._effect = newest
        since = self._clock() - _WINDOW
        self._recent = [one for one in self._recent if one[1] > since]

    def _tell(self, event: Any) -> str:
        """Take one event into account; return the line that tells it, or nothing."""
        data, update = json.loads(event["data"]), f"update {event['step']}"
        match event["kind"]:
            case "batch":
                clamps = "".join(f"; {one['reason']}" for one in data["clamps"])
                self._facts["batch"] = f"{data['size']}: {data['reason']}{clamps}"
                self._facts["update"] = str(event["step"])
                return f"{update}: batch {self._facts['batch']}"
            case "scan":
                if data["lessons"]:
                    self._facts["lesson"] = data["lessons"][-1]["text"]
                failed = sum(one["failed"] is not None for one in data["nodes"])
                trouble = f", {failed} failed" if failed else ""
                scan = f"{data['n']} reflections, {len(data['nodes'])} calls{trouble}, {len(data['lessons'])} lessons"
                return f"{update}: {data['aggregator']} of {event['component']}: {scan}"
            case "validated":
                if data["index"] == 0:
                    self._seed = data["score"]
                if data["best"] or self._best is None:
                    self._best = data["score"]
                who = "seed" if data["index"] == 0 else f"{update}: candidate {data['index']}"
                return f"{who}: validation {_score(data['score'])}{', best so far' if data['best'] else ''}"
            case "update":
                skipped = f", nothing to learn: {data['skipped']}" if data.get("skipped") else ""
                return f"{update}: done in {data['seconds']:.1f} s{skipped}"
            case "heldout":
                interval = f"gain {data['difference']:+.3f}, {data['low']:+.3f} to {data['high']:+.3f}"
                return f"held-out {data['before']:.3f} → {data['after']:.3f} ({interval}, n = {data['n']})"
            case "limit":
                self._facts["limit"] = str(data["limit"])
                return f"at most {data['limit']} in flight: {data['reason']}"
        return _plain(event["kind"], update, data)

    def _say(self, line: str) -> None:
        seconds = int(self._clock() - self._began)
        name = "" if self._name == "main" else f"{self._name}  "
        text = f"{seconds // 60:>4}:{seconds % 60:02d}  {name}{one_line(self._clean(line), 300)}"
        self._console.print(Text(text, overflow="fold"), soft_wrap=self._live is None)

    def _bought(self) -> str:
        # The held-out set is read beyond the budget.
        bought = sum(count for purpose, count in self._rollouts.items() if purpose != "heldout")
        return f"{amount(bought)} of {amount(self._budget)}" if self._budget else amount(bought)

    def _tokens(self) -> str:
        return ", ".join(f"{role} {amount(sums[0])} tokens" for role, sums in sorted(self._roles.items()))

    def _dollars(self) -> str:
        sums = self._roles.values()
        return dollars(sum(one[1] for one in sums), int(sum(one[2] for one in sums)))

    def _scores(self) -> str:
        return f"{_score(self._best)} (seed {_score(self._seed)})"

    def _flying(self) -> str:
        """Return how many effects were in flight on average lately: a journal knows those that are over."""
        since = max(self._clock() - _WINDOW, self._began)
        busy = sum(ended - max(started, since) for started, ended in self._recent)
        limit = f", at most {self._facts['limit']}" if "limit" in self._facts else ""
        return f"about {busy / max(self._clock() - since, 0.5):.0f}{limit}"

    def _panel(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        rollouts: list[RenderableType] = [Text(self._bought())]
        if self._budget:
            done = sum(count for purpose, count in self._rollouts.items() if purpose != "heldout")
            rollouts.insert(0, ProgressBar(total=self._budget, completed=min(done, self._budget), width=_BAR))
        rows: list[tuple[str, RenderableType | str]] = [
            ("update", self._facts.get("update", "the seed's validation")),
            ("batch", self._facts.get("batch", "")),
            ("validation", f"best {self._scores()}" if self._best is not None else ""),
            ("rollouts", Group(*rollouts)),
            ("in flight", self._flying()),
            ("tokens", self._tokens()),
            ("cost", self._dollars()),
            ("lesson", self._facts.get("lesson", "")),
        ]
        for name, value in rows:
            if value:
                shown = Text(one_line(self._clean(value), 200), overflow="fold") if isinstance(value, str) else value
                grid.add_row(name, shown)
        seconds = int(self._clock() - self._began)
        title = Text(f"{self._name}  {seconds // 60}:{seconds % 60:02d}")
        return Panel(grid, title=title, title_align="left", border_style="dim")


def _plain(kind: str, update: str, data: dict[str, Any]) -> str:
    match kind:
        case "refused":
            return f"{update}: {data['operator']} made no child: {data['reason']}"
        case "screened":
            verdict = "passes" if data["accepted"] else "is refused"
            return f"{update}: child {verdict}, {data['parent_score']:.2f} → {data['score']:.2f} ({data['reason']})"
        case "reverted":
            return f"{update}: the lessons of update {data['update']} are left out: {data['reason']}"
        case "warning":
            return f"warning: {data['text']}"
        case "error":
            return f"error in {data['where']}: {data['error']}"
        case "selected":
            return f"chosen: candidate {data['candidate'][:8]}: {data['reason']}"
        case "stopped":
            return f"stopped: {data['reason']}"
    return ""


def _score(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3f}"
