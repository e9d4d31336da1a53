"""The 139 US GAAP tags of FiNER-139 (``nlpaueb/finer-139``), in alphabetical order."""

from __future__ import annotations

from pathlib import Path

__all__ = ["LABELS"]

LABELS: tuple[str, ...] = tuple(Path(__file__).with_name("labels.txt").read_text(encoding="utf-8").split())
"""Every label that a number can have."""
