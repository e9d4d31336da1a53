"""Puts a run's facts on the page."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import logging
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from combee_dspy.files import write_plain
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.tracking._base import page_file
from combee_dspy.tracking._queries import run_number
from combee_dspy.tracking._text import clean_values, cleaner
from combee_dspy.tracking.report._facts import facts

if TYPE_CHECKING:
    import jinja2

_logger = logging.getLogger(__name__)

# What the charts and the table of rollouts are drawn from.
_DRAWN = (
    *("percent", "candidates", "grid", "scans", "work", "commits", "spent", "updates_with_cost"),
    *("batches", "delays", "law", "rolls"),
)


def keep_report(journal: Path, run: int, name: str) -> None:
    """Write the page of a run that has ended beside its journal. An error is logged, and breaks no
    run.
    """
    try:
        with Reader(journal, many=True) as reader:
            _write(render_report(RunHistory(reader, run)), page_file(journal, run, name))
    except Exception as error:  # noqa: BLE001 - a page can be written again, a run cannot
        _logger.warning(
            "The report could not be written: %s. Run: combee report %s", error, journal.parent
        )


def write_report(
    place: Path | str, out: Path | str | None = None, run: int | str | None = None
) -> Path:
    """Write one page about a run, and return its path. Works while the run goes on, and after it
    was killed.

    Args:
        place: A ``log_dir``, or its journal.
        out: The file to write; by default the page beside the journal that a run writes when it
            ends.
        run: Id or name of one run; the newest by default.

    Raises:
        ArgumentValueError: There is no journal, or no such run.
        NotPlainFileError: A link or a special file lies in its place.
        OSError: The file cannot be written.
    """
    with Reader(journal_file(place), checked=True, many=True) as reader:
        history = RunHistory(reader, run_number(reader, run))
        record = history.record
        beside = page_file(reader.path, record.id, record.name)
        return _write(render_report(history), beside if out is None else Path(out))


def _write(page: str, out: Path) -> Path:
    # As bytes: the hashes of the scripts hold for these, whatever a system's line ends are.
    write_plain(out, page.encode("utf-8", "replace"))
    return out


def render_report(history: RunHistory) -> str:
    """Return the page of one run."""
    page = clean_values(facts(history), cleaner())
    scripts = {"plot": _file("plot.min.js"), "js": _file("report.js")}
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts.values())
    # The template does not escape these four. "<" is all that could end a script of data.
    drawn = {name: page[name] for name in _DRAWN}
    data = json.dumps(drawn, separators=(",", ":")).replace("<", "\\u003c")
    score = functools.partial(_score, percent=page["percent"])
    return _template().render(
        d=page,
        score=score,
        gain=functools.partial(score, sign="+"),
        hashes=hashes,
        css=_file("report.css"),
        data=data,
        **scripts,
    )


def page_style() -> str:
    """Return the report's style sheet, for other pages in its look."""
    return _file("report.css")


@functools.cache
def _template() -> jinja2.Template:
    """Return the page's template, compiled once a process: that takes longer than to fill it in."""
    # A run without a report does not pay for the import.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )

    environment.filters.update(thousands="{:,}".format, dollars=_dollars)
    return environment.get_template("report.html.j2")


@functools.cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _score(value: float | None, percent: bool, sign: str = "") -> str:
    """Return a score, or with ``sign`` a difference; empty where it is not known."""
    if value is None:
        return ""
    if not percent:
        return f"{value:{sign}.4g}"
    # A space that no line breaks at.
    return f"{round(100 * value, 1):{sign}g}\N{NO-BREAK SPACE}{'points' if sign else '%'}"


def _dollars(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"
