"""Puts a run's facts on the page."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import logging
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from combee_dspy.files import write_plain
from combee_dspy.journal import Reader, journal_file
from combee_dspy.tracking._base import page_file
from combee_dspy.tracking._queries import run_number
from combee_dspy.tracking._text import clean_values, cleaner
from combee_dspy.tracking.report._facts import facts

if TYPE_CHECKING:
    import jinja2
    from jinja2.runtime import Context

__all__ = ["keep_report", "page_style", "render_report", "write_report"]

_logger = logging.getLogger(__name__)


def keep_report(journal: Path, run: int, name: str) -> None:
    """Write the page of a run that has ended beside its journal. What goes wrong is told, and
    breaks no run.
    """
    try:
        with Reader(journal) as reader:
            _write(render_report(reader, run), page_file(journal, run, name))
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
    with Reader(journal_file(place), checked=True) as reader:
        number = run_number(reader, run)
        name = reader.rows("SELECT name FROM run WHERE id = ?", (number,))[0][0]
        return _write(
            render_report(reader, number),
            page_file(reader.path, number, name) if out is None else Path(out),
        )


def _write(page: str, out: Path) -> Path:
    # As bytes: the hashes of the scripts hold for these, whatever a system's line ends are.
    write_plain(out, page.encode("utf-8", "replace"))
    return out


def render_report(reader: Reader, run: int) -> str:
    """Return the page of one run of a journal that is open."""
    page_facts = clean_values(facts(reader, run), cleaner())
    scripts = {"plot": _file("plot.min.js"), "js": _file("report.js")}
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts.values())
    # The template does not escape these four. "<" is all that could end a script of data.
    data = json.dumps(page_facts, separators=(",", ":")).replace("<", "\\u003c")
    return _template().render(
        d=page_facts, hashes=hashes, css=_file("report.css"), data=data, **scripts
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
        undefined=jinja2.StrictUndefined,
    )

    @jinja2.pass_context
    def score(context: Context, value: Any) -> str:
        return _score(value, context["d"]["percent"])

    @jinja2.pass_context
    def gain(context: Context, value: Any) -> str:
        return _score(value, context["d"]["percent"], "+")

    environment.filters.update(score=score, gain=gain)
    return environment.get_template("report.html.j2")


@functools.cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _score(value: Any, percent: bool, sign: str = "") -> str:
    if not percent:
        return f"{value:{sign}.4g}"
    # A space that no line breaks at.
    return f"{round(100 * value, 1):{sign}g}\N{NO-BREAK SPACE}{'points' if sign else '%'}"
