"""What the pictures share: matplotlib, loaded when one is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import MissingDistributionError

__all__ = ["figure"]


@contextmanager
def figure(path: Path, title: str, panels: int, *, height: float = 3.6) -> Iterator[list[Any]]:
    """Give axes side by side, and write them as SVG or PNG, by the file's name, when they are drawn.

    Raises:
        MissingDistributionError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDistributionError("a picture", "combee-bench[pictures]") from error
    drawn = Figure(figsize=(5.2 * panels, height), layout="constrained")
    drawn.suptitle(title, fontsize=10)
    axes = list(drawn.subplots(1, panels, squeeze=False)[0])
    yield axes
    # No date in the file: equal figures give equal bytes.
    drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
