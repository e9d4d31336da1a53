"""A page as Markdown, which reads well as plain text, and the same as HTML, which loads nothing."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from combee_dspy.files import write_plain
from combee_dspy.tracking.report import page_style

if TYPE_CHECKING:
    import jinja2
    from markdown_it.renderer import RendererHTML

__all__ = ["beside", "write_page"]

# An underscore inside a word marks nothing.
_MARKS = re.compile(r"([\\`*\[\]<>|#&]|(?<![^\W_])_|_(?![^\W_]))")
_ORIGINS = "measured|simulated|computed|default|assumption"
_TONES = {"survives": "better", "fails": "worse", "inconclusive": "unshown", "not tried": "unshown"}
_SIGNS = {"+": "added", "−": "gone", "⋯": "between"}
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}
h1 {{ font-size: 1.5rem }}
td {{ min-width: 6rem; overflow-wrap: anywhere }}
table {{ display: block; overflow-x: auto }}
pre {{ background: var(--bg); padding: .8rem; overflow-x: auto; line-height: 1.25 }}
blockquote {{ margin: 12px 0; padding: .2rem 1rem; border-left: 4px solid #e69f00;
  background: var(--soft) }}
svg {{ width: 100%; max-width: 720px; font-size: 12px; fill: currentColor }}
figcaption {{ color: var(--dim); font-size: .83rem }}
.chip {{ white-space: nowrap }}
.chip.better, .chip.worse, .chip.unshown {{ background: var(--bg); border: 1px solid }}
.bar {{ display: grid; grid-template-columns: minmax(3rem, 16rem) 1fr 6rem; gap: 10px;
  align-items: center; margin: 3px 0; font-size: .83rem }}
.bar b {{ font-weight: 400; text-align: right; overflow-wrap: anywhere }}
.bar span {{ position: relative; background: var(--bg); height: 16px; display: block }}
.bar i {{ display: block; height: 10px; position: relative; top: 3px; background: #0072b2;
  opacity: .75; min-width: 2px }}
.bar.better i {{ background: #00805c }}
.bar.worse i {{ background: #d55e00 }}
.bar.unshown i {{ background: #999 }}
.bar u, .bar em {{ position: absolute; top: 0; height: 16px; border-left: 2px solid var(--dim) }}
.bar u.limit {{ border-left: 2px dashed var(--ink) }}
.bar em {{ border-left: 3px solid var(--ink) }}
.added td {{ background: color-mix(in srgb, #009e73 16%, transparent) }}
.gone td {{ background: color-mix(in srgb, #d55e00 16%, transparent) }}
.between td {{ color: var(--dim) }}
td:empty, :is(.added, .gone, .between) td:first-child {{ min-width: 1.5rem; padding-left: 8px }}
h4 {{ font-size: .86rem; margin: 12px 0 0; overflow-wrap: anywhere }}
@media (max-width: 600px) {{ .bar {{ grid-template-columns: 7rem 1fr 4.5rem }}
  thead {{ display: none }} tbody, tr, td {{ display: block }} tr {{ padding: 8px 0;
  border-bottom: 1px solid var(--line) }}
  td {{ border: 0; padding: 0; text-align: left !important }} td:empty {{ display: none }}
  td:not(:first-child, [data-l=""])::before {{ content: attr(data-l) ": "; color: var(--dim) }}
  td:first-child {{ font-weight: 600 }} }}
</style></head>
"""


def _written(value: object) -> str:
    """Return a value as one line in which nothing is markup, and nothing is hidden."""
    text = (
        f"{value:,.4g}"
        if isinstance(value, float)
        else f"{value:,}"
        if type(value) is int
        else str(value)
    )
    plain = re.sub(r"\s", " ", text)
    return _MARKS.sub(r"\\\1", "".join(map(_visible, plain)))


def _visible(letter: str) -> str:
    """Return a character, or its number where it cannot be seen or turns others round."""
    return letter if letter.isprintable() else f"<U+{ord(letter):04X}>"


def beside(path: Path, ending: str) -> Path:
    """Return a path with an ending added; a dot in its name begins none."""
    return path.with_name(path.name + ending)


def write_page(
    path: Path,
    package: str,
    template: str,
    charts: Mapping[str, str] = MappingProxyType({}),
    **values: Any,
) -> str:
    """Write a page of a package's template as ``.md`` and ``.html``; return the Markdown.

    Every value is escaped: it may come from a journal or a file. A fenced block whose language is
    the name of one of the ``charts`` stays text in the Markdown, and is that chart in the HTML.
    """
    from markdown_it import MarkdownIt

    text = _environment(package).get_template(template).render(**values)
    # Raw HTML is shown and not obeyed; links and images are no part of these pages.
    markdown = MarkdownIt("commonmark", {"html": False})
    markdown.enable("table").disable(["link", "image", "autolink"])

    def chart(renderer: RendererHTML, tokens: Any, place: int, options: Any, env: Any) -> str:
        return charts.get(tokens[place].info) or renderer.fence(tokens, place, options, env)

    markdown.add_render_rule("fence", chart)
    body = markdown.render(text)
    title = re.sub(r"[^\w .,:-]", "", text.partition("\n")[0]).strip()
    head = _HEAD.format(title=title, style=page_style())
    write_plain(beside(path, ".md"), text)
    write_plain(beside(path, ".html"), f"{head}<body><main>\n{_cards(body)}</main></body></html>\n")
    return text


def _cards(body: str) -> str:
    """Return a page as one card a heading, with a chip for each verdict and origin."""
    body = re.sub(
        r"<td>(survives|fails|inconclusive|not tried)</td>",
        lambda cell: f'<td><span class="chip {_TONES[cell[1]]}">{cell[1]}</span></td>',
        body,
    )
    body = re.sub(rf"<td>({_ORIGINS})(?:: *|(?=</td>))", r'<td><span class="chip">\1</span> ', body)
    body = re.sub(r"<tr>(?=\n<td>([+−⋯])</td>)", lambda row: f'<tr class="{_SIGNS[row[1]]}">', body)
    body = re.sub(r"<table>.*?</table>", lambda table: _label(table[0]), body, flags=re.DOTALL)
    return "".join(f"<section>{part}</section>\n" for part in re.split(r"(?=<h2>)", body))


def _label(table: str) -> str:
    """Return a table whose cells carry the head of their column: a phone shows no heads."""
    heads = re.findall(r"<th[^>]*>(.*?)</th>", table)

    def label_row(row: re.Match[str]) -> str:
        numbers = itertools.count()
        return re.sub(r"<td", lambda _: f'<td data-l="{heads[next(numbers)]}"', row[0])

    return re.sub(r"<tr[^>]*>\n?<td.*?</tr>", label_row, table, flags=re.DOTALL)


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
