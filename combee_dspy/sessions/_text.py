"""Long outputs, cut."""

from __future__ import annotations

__all__ = ["shorten"]


def shorten(text: str, limit: int) -> str:
    """Return a text of at most about ``limit`` characters: its head and its tail, with what was left out counted."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out …]\n{text[len(text) - tail :]}"
