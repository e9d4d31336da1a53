"""Shows a run as it happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from combee_dspy.events import Event, RunStarted
from combee_dspy.tracking._base import Hook
from combee_dspy.tracking._progress_state import ProgressState, amount, dollars_of
from combee_dspy.tracking._redact import Redactor

__all__ = ["Progress"]

_BAR = 24


class Progress(Hook):
    """Says what a run is doing and what it has cost.

    On a terminal a panel follows the run: phase, iteration, batch size and
    the reason for it, best validation score against the seed's, rollouts,
    tokens by role and dollars. Anywhere else (a log of continuous integration,
    a file, a notebook) one line is written per phase and iteration. Text that
    an LM wrote is shown without control characters and never read as markup;
    keys are removed.

    Costs are those of the end of the last iteration.

    Args:
        console: Where to write; standard error by default.
        clock: Monotonic seconds.
    """

    def __init__(self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console if console is not None else Console(stderr=True)
        self._clock = clock
        self._began = clock()
        self._redactor = Redactor()
        self._state = ProgressState(redactor=self._redactor)
        # Guards the state against the display's own thread; never held while printing, which takes that thread's lock.
        self._lock = threading.Lock()
        self._live: Live | None = None

    def handle(self, event: Event) -> None:
        """Hear one event and show it."""
        with self._lock:
            lines = self._state.hear(event)
        if isinstance(event, RunStarted):
            self._begin()
        for line in lines:
            text = Text(f"{self._elapsed():>7}  {self._redactor.text(line)}", overflow="fold")
            self.console.print(text, soft_wrap=self._live is None)

    def close(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _begin(self) -> None:
        self._began = self._clock()
        if self._live is None and self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(console=self.console, get_renderable=self._render, refresh_per_second=4, transient=True)
            self._live.start()

    def _elapsed(self) -> str:
        seconds = int(self._clock() - self._began)
        hours, rest = divmod(seconds, 3600)
        return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"

    def _render(self) -> RenderableType:
        with self._lock:
            return self._panel(self._state)

    def _panel(self, state: ProgressState) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        where = f"iteration {state.iteration}, {state.phase}" if state.iteration else state.phase
        grid.add_row("now", Group(Text(where), self._bar(state)))
        rows = (
            ("batch", state.batch),
            ("validation", f"best {state.scores}" if state.best_score is not None else state.scores),
            ("rollouts", amount(state.rollouts)),
            ("lesson", state.lesson),
        )
        for name, value in rows:
            if value:
                grid.add_row(name, Text(self._redactor.text(value), overflow="fold"))
        if state.figures:
            grid.add_row("cost", Group(self._costs(state), Text(dollars_of(state.figures))))
        title = Text(f"{state.name}  {self._elapsed()}")
        return Panel(grid, title=title, title_align="left", border_style="dim")

    def _bar(self, state: ProgressState) -> RenderableType:
        if not state.done:
            return Text("")
        count = Table.grid(padding=(0, 1))
        if state.expected:
            count.add_row(
                ProgressBar(total=state.expected, completed=min(state.done, state.expected), width=_BAR),
                Text(f"{state.done} of {state.expected}"),
            )
        else:
            count.add_row(Text(f"{state.done} rollouts"))
        return count

    def _costs(self, state: ProgressState) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for role, figure in state.figures.items():
            tokens = f"{amount(figure.prompt_tokens)} in, {amount(figure.completion_tokens)} out"
            cached = f", {amount(figure.cached)} cached" if figure.cached else ""
            table.add_row(Text(role), Text(f"{amount(figure.calls)} calls{cached}"), Text(f"{tokens} tokens"))
        return table
