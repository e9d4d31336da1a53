"""Shows a run as it happens: a panel on a terminal, lines anywhere else."""

from __future__ import annotations

import json
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

from combee_dspy.gains import name_gain
from combee_dspy.journal import Outcome, Reader, failure_counts, outcomes
from combee_dspy.strategies import parameters
from combee_dspy.tracking._base import Follower, Tracker, page_file
from combee_dspy.tracking._phases import Doing, left_of, shares_of, spoken
from combee_dspy.tracking._sql import SPENT
from combee_dspy.tracking._text import amount, cleaner, dollars, one_line

__all__ = ["Progress"]

_WINDOW = 5.0  # seconds over which what is in flight is averaged
_SILENCE = 30.0  # seconds after which a line says what is being done, where there is no panel
_RESULT = ("heldout", "per_point", "stopped")

# Several runs of one process share a terminal: the first to come has the panel, the others write
# lines above it.
_PANEL = threading.Lock()

_logger = logging.getLogger("combee_dspy.progress")

# How loud each kind of line is; others are details.
_LEVELS = dict.fromkeys(
    ("update", "per_point", "selected", "stopped"), logging.INFO
) | dict.fromkeys(("warning", "error"), logging.WARNING)

_NEW = (
    "SELECT kind, purpose, started, ended, key, step, candidate, example FROM effect"
    " WHERE run = ? AND id <= ? AND id > ?"
)

_LINES = {
    "batch": "update {step}: batch of {size}: {reason}",
    "scan": (
        "update {step}: {aggregator} of {component}: {n} reflections, {calls} calls{failed},"
        " {learned} lessons"
    ),
    "screened": "update {step}: child {candidate:.8}: {parent_score:.3f} → {score}: {reason}",
    "refused": "update {step}: {operator} made no child: {reason}",
    "copied": (
        "update {step}: what {count} lines for {component} copy from training examples is cut out"
    ),
    "validated": "update {step}: candidate {index}: validation {score}{best}",
    "update": (
        "update {step}: {rows} rows in {seconds:.1f} s{skipped}; best {best} (seed {seed}), {spent}"
    ),
    "per_point": "held-out {text}",
    "warning": "warning: {text}",
    "error": "error in {where}: {error}",
    "selected": "chosen: candidate {candidate:.8}: {reason}",
    "stopped": "stopped: {reason}",
}


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
        row = reader.rows("SELECT name, description FROM run WHERE id = ?", (run,))[0]
        about = json.loads(row["description"])
        self._name = one_line(self._clean(row["name"]), 60)
        self._limits: dict[str, float | None] = about.get("limits") or {}
        self._doing = Doing(about.get("sizes", {}))
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
        sizes = ", ".join(f"{size} {split}" for split, size in about.get("sizes", {}).items())
        self._say(
            "; ".join(
                (sizes, *(f"{role} {model}" for role, model in about.get("models", {}).items()))
            )
        )

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
        state, name = self._reader.rows("SELECT state, name FROM run WHERE id = ?", (self._run,))[0]
        said = "not over" if state == "running" else state
        if not self._result and state == "finished":
            return
        best, rollouts = f"best {self._best} (seed {self._seed})", f"{self._rollouts()} rollouts"
        facts = self._gain, best, rollouts, self._cost(), self._failed()
        self._say(f"{said}: {', '.join(filter(None, facts))}")
        if state != "running" and (page := page_file(self._reader.path, self._run, name)).is_file():
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
        """Read what is new and take it into account; return the lines that tell it."""
        newest = (
            self._reader.rows("SELECT max(id) FROM effect WHERE run = ?", (self._run,))[0][0] or 0
        )
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
        for kind, purpose, started, ended, *place in self._reader.rows(_NEW, new):
            self._bought += kind == "rollout" and purpose != "heldout"
            self._recent.append((started, ended))
            key, step, candidate, example = place
            self._doing.effect(key, purpose, step, candidate, example)
        since = self._clock() - _WINDOW
        self._recent = [one for one in self._recent if one[1] > since]
        events = self._reader.after("event", self._event, self._run)
        self._effect, self._event = newest, events[-1]["id"] if events else self._event
        for event in events:
            self._doing.event(event["kind"], event["step"], json.loads(event["data"]))
        hidden = () if self._result else _RESULT
        told = [
            (
                event["kind"],
                self._told_heldout(event) if event["kind"] == "heldout" else self._told(event),
            )
            for event in events
        ]
        return [line for kind, line in told if line[0] and kind not in hidden]

    def _told(self, event: Any) -> tuple[str, int]:
        """Take one event into account; return the line that tells it, or nothing, and its level."""
        data = {**json.loads(event["data"]), "step": event["step"], "component": event["component"]}
        score = data.get("score")
        if "score" in data:
            data["score"] = "not known" if data["score"] is None else f"{data['score']:.3f}"
        match event["kind"]:
            case "batch":
                data["reason"] += "".join(f"; {one['reason']}" for one in data["clamps"])
                self._facts |= {"batch": f"{data['size']}: {data['reason']}"}
            case "scan":
                failed = sum(one["failed"] is not None for one in data["nodes"])
                data |= {
                    "calls": len(data["nodes"]),
                    "failed": f", {failed} failed" if failed else "",
                }
                data["learned"] = len(data["lessons"])
                self._facts |= {"lesson": data["lessons"][-1]["text"]} if data["lessons"] else {}
            case "validated":
                if score is not None:
                    self._scores[data["candidate"]] = data["index"], score
                data["best"] = ", best so far" if data["best"] else ""
                if not data["index"]:
                    return f"seed: validation {data['score']}", logging.INFO
            case "selected":
                self._chosen = data["candidate"] if data["candidate"] in self._scores else ""
            case "update":
                data["skipped"] = (
                    f", nothing to learn: {data['skipped']}" if data.get("skipped") else ""
                )
                data |= {
                    "best": self._best,
                    "seed": self._seed,
                    "spent": f"{self._rollouts()} rollouts, {self._cost()}",
                }
            case "limit":
                self._facts["limit"] = f", at most {data['limit']}"
        return _LINES.get(event["kind"], "").format_map(data), _LEVELS.get(
            event["kind"], logging.DEBUG
        )

    def _told_heldout(self, event: Any) -> tuple[str, int]:
        """Take the held-out figures into account; return the line that tells them. A loss is a
        warning.
        """
        data = json.loads(event["data"])
        name = name_gain(data["difference"], data["low"], data["high"])
        self._gain = f"held-out {name}: {data['before']:.3f} → {data['after']:.3f}"
        interval = "({difference:+.3f}, {low:+.3f} to {high:+.3f}, n = {n})".format_map(data)
        return f"{self._gain} {interval}", (
            logging.WARNING if data["difference"] < 0 else logging.INFO
        )

    def _say(self, line: str, level: int = logging.INFO) -> None:
        self._spoke = self._clock()
        name = "" if self._name == "main" else f"{self._name}  "
        said = f"{self._elapsed():>7}  {name}{one_line(self._clean(line), 300)}"
        if level == logging.DEBUG or self._logs:
            _logger.log(level, "%s", said)
        else:
            self._console.print(Text(said, overflow="fold"), soft_wrap=self._live is None)

    def _elapsed(self) -> str:
        seconds = int(self._clock() - self._began)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _rollouts(self) -> str:
        limit = self._limits.get("rollouts")
        return amount(self._bought) + (f" of {amount(limit)}" if limit else "")

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
        said = [
            f"{share:.0%} of {amount(self._limits[name] or 0)} {name}"
            for name, share in shares.items()
            if name != "rollouts"
        ]
        left = left_of(shares, self._before, self._clock() - self._began)
        return ", ".join([*said, *([] if left is None else [f"at most about {spoken(left)} left"])])

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
            shown: RenderableType = Text(one_line(self._clean(value), 200), overflow="fold")
            if name == "rollouts" and (limit := self._limits.get("rollouts")):
                shown = Columns(
                    [ProgressBar(total=limit, completed=min(self._bought, limit), width=24), shown]
                )
            if value:
                grid.add_row(name, shown)
        title = Text(f"{self._name}  {self._elapsed()}")
        return Panel(grid, title=title, title_align="left", border_style="dim")


def _joined(found: Iterable[Outcome]) -> list[Outcome]:
    """Return outcomes of one kind, role and cause as one."""
    joined: dict[tuple[Any, ...], Outcome] = {}
    for one in found:
        key = (one.kind, one.role, one.cause)
        before = joined.get(key)
        joined[key] = one if before is None else before._replace(number=before.number + one.number)
    return list(joined.values())
