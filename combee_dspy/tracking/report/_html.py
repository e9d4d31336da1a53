"""HTML and SVG elements from Python values. Foreign text can only enter escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Union

__all__ = ["Child", "Markup", "el", "join", "number", "visible"]

# Control characters, reversals of the writing direction, and characters that nobody sees (Unicode 15, ch. 23).
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\uffff"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_VOID = frozenset({"br", "meta", "hr"})


@dataclass(frozen=True, slots=True)
class Markup:
    """Finished markup. Made by :func:`el` and :func:`join` alone, from text that they escaped."""

    text: str


Child = Union[str, int, float, Markup, None, Iterable["Child"]]  # noqa: UP007 - the name is not yet bound for `|`


def visible(text: str) -> str:
    """Return text in which what would be invisible, or would steer a display, stands as a visible mark.

    Line feeds and tabs stay. Control characters become their Unicode pictures;
    the others ``⟨U+202E⟩``.
    """
    return _HIDDEN.sub(_picture, text.replace("\r\n", "\n"))


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if 0xD800 <= code <= 0xDFFF or code == 0xFFFD:
        return "\ufffd"
    return f"⟨U+{code:04X}⟩"


def el(tag: str, *children: Child, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        tag: Its name: ours, never foreign.
        children: Text, which is escaped; numbers; markup; ``None``, which is left out; or iterables of these.
        attributes: ``class_`` is ``class``; an underscore within a name is a hyphen. Values are
            escaped; ``None`` leaves one out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_escape(number(value) if isinstance(value, float) else str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{join(*children).text}</{tag}>")


def join(*children: Child) -> Markup:
    """Return children, one after the other, as markup."""
    return Markup("".join(_text(child) for child in children))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child.text
    if isinstance(child, str):
        return _escape(child)
    if isinstance(child, (int, float)):
        return number(child)
    return join(*child).text


def _escape(text: str) -> str:
    return html.escape(visible(text), quote=True)


def number(value: float) -> str:
    """Return a number in at most two decimals, for coordinates."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
