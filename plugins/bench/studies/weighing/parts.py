"""Parts of a growing text that can be switched off here, and nowhere else.

No user needs a book without its tests, so the package has no option for it. A part is replaced
in the modules that use it, for the time of one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from combee_dspy.lessons import BookEdit
from combee_dspy.search import _growing, _proving
from combee_dspy.search._candidates import Member
from combee_dspy.search._choices import spare


async def _no_blame(*_: object) -> Sequence[tuple[str, BookEdit]]:
    """Blame no line, and take no rollouts for it."""
    return ()


def _spare_nothing(limit: int | None, validation: int, draws: int, *, judged: bool) -> int:
    """Set a validation of the newest text aside, which is no test of its lines."""
    return spare(limit, validation, draws, judged=judged) and validation


def _return_newest(members: Sequence[Member]) -> tuple[Member, str]:
    """Return the newest text, whatever validation says of it."""
    return members[-1], "the newest text"


async def _test_nothing(_: object) -> None:
    """Test none of the newest text's lines."""


def _compare_nothing(*_: object, **__: object) -> None:
    """Go on from the newest text, whatever validation says of it."""


# What each replaces: an object, the name in it, and what stands there instead.
_REPLACED: Mapping[str, Sequence[tuple[object, str, Callable[..., Any]]]] = {
    "tests": (
        (_growing, "blame", _no_blame),
        (_growing, "spare", _spare_nothing),
        (_proving.Proving, "_test_lines", _test_nothing),
    ),
    "never worse": (
        (_growing, "choose_version", _return_newest),
        (_growing.Growing, "_compare", _compare_nothing),
    ),
}


@contextmanager
def without(parts: Sequence[str]) -> Iterator[None]:
    """Switch parts off: ``tests``, ``never worse``."""
    with ExitStack() as stack:
        for part in parts:
            for owner, name, instead in _REPLACED[part]:
                stack.enter_context(patch.object(owner, name, instead))
        yield
