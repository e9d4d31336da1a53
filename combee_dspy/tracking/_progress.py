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
# Several runs of one process share a terminal: the first has the panel, the others write lines
# above it.
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
    """Shows what is new of one run's journal.

    Args:
        reader: Of the journal. Borrowed.
        run: The run's number.
        console: Where to write; standard error by default, or the logger where logging is set up.
        clock: Returns Unix time.
        result: Whether to end with the result.
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
        # In a notebook too lines go to standard error: rich's own way shows them where the cursor
        # was.
        self._console = console or Console(stderr=True, force_jupyter=False)
        self._logs = console is None and not self._console.is_terminal and _logger.hasHandlers()
        self._clock, self._result = clock, result
        self._began = self._last_line = clock()
        self._clean = cleaner()
        self.news = News(reader, run, clock)
        about, record = self.news.history.about, self.news.history.record
        self._name = one_line(self._clean(record.name), 60)
        self._page = page_file(reader.path, run, record.name)
        self._live: Live | None = None
        screen = self._console.is_terminal and not self._console.is_dumb_terminal
        if screen and _PANEL.acquire(blocking=False):
            self._live = Live(
                self._panel(), console=self._console, auto_refresh=False, transient=True
            )
            self._live.start()
        sizes = ", ".join(f"{size} {split}" for split, size in about.sizes.items())
        models = (f"{role} {model}" for role, model in about.models.items())
        self._write("; ".join((sizes, *models)))

    def follow(self) -> None:
        """Show what is new."""
        news = self.news
        for line in news.read():
            if self._result or not line.is_result:
                self._write(line.text, logging.WARNING if line.warns else logging.INFO)
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)
        elif self._clock() - self._last_line >= _SILENCE:
            spent = ", ".join(filter(None, (f"{news.rollouts} rollouts", news.used, news.cost)))
            self._write(f"now: {str(news.doing) or 'waiting'}; {spent}")

    def close(self) -> None:
        """Give the terminal back, and write what the run has cost."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            _PANEL.release()
        news, state = self.news, self.news.history.record.state
        if not self._result and state == "finished":
            return
        facts = news.gain, news.scores, f"{news.rollouts} rollouts", news.cost, news.failed
        now = "not over" if state == "running" else state
        self._write(f"{now}: {', '.join(filter(None, facts))}")
        if state != "running" and self._page.is_file():
            self._write(f"report: {self._page}")

    def _write(self, line: str, level: int = logging.INFO) -> None:
        self._last_line = self._clock()
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
