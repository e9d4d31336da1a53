"""What the pictures share: matplotlib, loaded when one is drawn."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import MissingDistributionError
from combee_dspy.files import write_plain

__all__ = ["figure"]


@contextmanager
def figure(path: Path, title: str, panels: int, *, height: float = 3.6) -> Iterator[list[Any]]:
    """Give axes side by side, and write them as SVG or PNG, by the file's name.

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
    picture = io.BytesIO()
    # No date in the file: equal figures give equal bytes.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    drawn.savefig(picture, format=path.suffix.removeprefix(".") or "png", metadata=metadata)
    write_plain(path, picture.getvalue())
