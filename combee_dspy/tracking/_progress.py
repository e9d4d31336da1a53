"""Shows a run as it happens: a panel on a terminal, lines anywhere else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import ClassVar

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from combee_dspy.journal import Reader
from combee_dspy.strategies import parameters
from combee_dspy.tracking._base import Follower, Tracker, page_file
from combee_dspy.tracking._news import News
from combee_dspy.tracking._text import cleaner, one_line

_SILENCE = 30.0  # seconds after which a line says what is being done, where there is no panel
# Several runs of one process share a terminal: the first to come has the panel, the others write
# lines above it.
_PANEL = threading.Lock()

_logger = logging.getLogger("combee_dspy.progress")


@parameters
class Progress(Tracker):
    """Says on standard error what a run is doing and what it has cost.

    On a terminal a panel follows the run: what is being done, batch, validation, what is
    used of the budget and how long that lasts, tokens by role and dollars. Each update is a
    line, there and anywhere else: of the logger ``combee_dspy.progress`` at INFO where
    logging is set up, else on standard error, as in a notebook. After half a minute of
    silence a line says what is being done. ``combee report`` shows details while the run
    goes on. Text that an LM wrote is shown without control characters and never read as
    markup; keys are removed.

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
        self.news = News(reader, run, clock)
        about = self.news.history.about
        self._name = one_line(self._clean(self.news.history.record.name), 60)
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
        for line in self.news.read():
            if self._result or not line.is_result:
                self._say(line.text, logging.WARNING if line.warns else logging.INFO)
        if self._live is None and self._clock() - self._spoke >= _SILENCE:
            news = self.news
            used = ", ".join(filter(None, (f"{news.rollouts} rollouts", news.used, news.cost)))
            self._say(f"now: {str(news.doing) or 'waiting'}; {used}")
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)

    def close(self) -> None:
        """Give the terminal back, and say what the run has cost."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            _PANEL.release()
        news, record = self.news, self.news.history.record
        state = record.state
        if not self._result and state == "finished":
            return
        facts = news.gain, news.scores, f"{news.rollouts} rollouts", news.cost, news.failed
        now = "not over" if state == "running" else state
        self._say(f"{now}: {', '.join(filter(None, facts))}")
        page = page_file(self._reader.path, self._run, record.name)
        if state != "running" and page.is_file():
            self._say(f"report: {page}")

    def _say(self, line: str, level: int = logging.INFO) -> None:
        self._spoke = self._clock()
        name = "" if self._name == "main" else f"{self._name}  "
        message = f"{self._elapsed():>7}  {name}{one_line(self._clean(line), 300)}"
        if self._logs:
            _logger.log(level, "%s", message)
        else:
            self._console.print(Text(message, overflow="fold"), soft_wrap=self._live is None)

    def _elapsed(self) -> str:
        seconds = int(self._clock() - self._began)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _panel(self) -> RenderableType:
        grid, news = Table.grid(padding=(0, 2)), self.news
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        facts = {
            "now": str(news.doing),
            "batch": news.facts.get("batch", ""),
            "lesson": news.facts.get("lesson", ""),
            "validation": news.scores,
            "rollouts": news.rollouts,
            "budget": news.used,
            "in flight": news.facts.get("in flight", ""),
            "cost": news.cost,
            "failed": news.failed,
        }
        for name, value in facts.items():
            cell: RenderableType = Text(one_line(self._clean(value), 200), overflow="fold")
            if name == "rollouts" and (limit := news.limits.get("rollouts")):
                bar = ProgressBar(total=limit, completed=min(news.bought, limit), width=24)
                cell = Columns([bar, cell])
            if value:
                grid.add_row(name, cell)
        title = Text(f"{self._name}  {self._elapsed()}")
        return Panel(grid, title=title, title_align="left", border_style="dim")
