"""How much the slow tests do, and what they write for a page of results.

``COMBEE_SIZES="kills=5 examples=120" python -m pytest -s plugins/bench/tests/test_kills.py``
"""

from __future__ import annotations

import os
import sys


def size(name: str, small: int) -> int:
    """Return the size of this name in ``COMBEE_SIZES``, or the small one."""
    sizes = dict(part.split("=") for part in os.environ.get("COMBEE_SIZES", "").split())
    return int(sizes.get(name, small))


def show(row: object) -> None:
    """Write a row of figures; ``pytest -s`` shows it."""
    sys.stdout.write(f"\n{row}")
