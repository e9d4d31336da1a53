"""A page as Markdown, which reads well as plain text, and the same as HTML, which loads nothing."""

from __future__ import annotations

import functools
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from combee_dspy.files import write_plain

if TYPE_CHECKING:
    import jinja2

__all__ = ["beside", "write_page"]

_MARKS = re.compile(r"([\\`*\[\]<>|#])")
_HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff;
  max-width: 58rem; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.6rem }}
h2 {{ font-size: 1.2rem; margin-top: 2rem; border-bottom: 1px solid #d0d7de }}
table {{ border-collapse: collapse; margin: 1rem 0; width: 100%; display: block; overflow-x: auto }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem .6rem;
  border-bottom: 1px solid #d8dee4; min-width: 6rem; overflow-wrap: break-word }}
pre {{ background: #f6f8fa; padding: .8rem; overflow-x: auto; line-height: 1.25 }}
blockquote {{ margin: 1rem 0; padding: .2rem 1rem; border-left: 4px solid #0969da;
  background: #f0f6fc }}
</style>
"""


def _written(value: object) -> str:
    """Return a value as one line in which nothing is markup."""
    text = (
        f"{value:,.4g}"
        if isinstance(value, float)
        else f"{value:,}"
        if type(value) is int
        else str(value)
    )
    return _MARKS.sub(
        r"\\\1", re.sub(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", " ", text)
    )


def beside(path: Path, ending: str) -> Path:
    """Return a path with an ending added; a dot in its name begins none."""
    return path.with_name(path.name + ending)


def write_page(path: Path, package: str, template: str, **values: Any) -> str:
    """Write a page of a package's template as ``.md`` and ``.html``; return the Markdown.

    Every value is escaped: it may come from a journal or a file.
    """
    from markdown_it import MarkdownIt

    text = _environment(package).get_template(template).render(**values)
    # Raw HTML is shown and not obeyed; links and images are no part of these pages.
    body = (
        MarkdownIt("commonmark", {"html": False})
        .enable("table")
        .disable(["link", "image", "autolink"])
        .render(text)
    )
    title = re.sub(r"[^\w .,:-]", "", text.partition("\n")[0]).strip()
    write_plain(beside(path, ".md"), text)
    write_plain(beside(path, ".html"), f"{_HEAD.format(title=title)}<body>\n{body}</body></html>\n")
    return text


@functools.cache
def _environment(package: str) -> jinja2.Environment:
    """Return the environment of a package's templates, which keeps them compiled."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(
            lambda name: resources.files(package).joinpath(name).read_text("utf-8")
        ),
        autoescape=False,  # noqa: S701 - Markdown: finalize escapes, raw HTML is off
        finalize=_written,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["points"] = lambda value: f"{round(100 * value, 1) + 0.0:+.1f}"
    return environment
