"""Random streams derived from a seed and the place where they are used.

No two places share a stream and no stream depends on how often another was
read, so nothing that is drawn depends on the number of workers or on arrival order.
"""

from __future__ import annotations

import hashlib
import random

__all__ = ["derive", "derive_seed"]


def derive_seed(seed: int, *place: str | int) -> int:
    """Return a 128-bit seed for one place of a run, such as ``"shuffle", iteration, component``.

    It is not negative, and the same in every process and Python version.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (seed, *place):
        # The type tag keeps 1 and "1" apart; the length keeps ("ab", "c") and ("a", "bc") apart.
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(8, "big"))
        digest.update(text)
    return int.from_bytes(digest.digest(), "big")


def derive(seed: int, *place: str | int) -> random.Random:
    """Return a fresh random stream for one place of a run (see :func:`derive_seed`)."""
    return random.Random(derive_seed(seed, *place))  # noqa: S311 - simulation and shuffling, not secrets
