"""Eight programs of DSPy's documentation, with ``dspy.GEPA`` and with ``Combee`` in its place.

PROGRAMS.md says which, and what must hold for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dspy
import pytest

from combee_dspy import Combee
from tests.journeys.documented import (
    aime,
    facility,
    haiku,
    invoice,
    monitor,
    papillon,
    search,
    word_limit,
)
from tests.journeys.documented.scene import Optimizer
from tests.journeys.server import Server
from tests.slow import slow_but

PAGES = {
    page.__name__.rpartition(".")[2]: page.PAGE
    for page in (aime, facility, papillon, monitor, haiku, word_limit, search, invoice)
}


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    """The pages say ``dspy.configure``: what they set ends with each test."""
    lm = dspy.settings.lm
    yield
    dspy.configure(lm=lm)


def gepa_until_it_has_learned(**arguments: Any) -> dspy.GEPA:
    """``dspy.GEPA`` as the control: it would go on for minutes after it has found what there is."""

    def has_learned(state: Any) -> bool:
        scores = state.program_full_scores_val_set
        return bool(max(scores) > scores[0])

    return dspy.GEPA(**arguments, gepa_kwargs={"stop_callbacks": has_learned})


@pytest.mark.parametrize("optimizer", [gepa_until_it_has_learned, Combee], ids=["GEPA", "Combee"])
@pytest.mark.parametrize("name", slow_but(("facility",), PAGES))
def test_a_documented_program_learns(name: str, optimizer: Optimizer) -> None:
    page = PAGES[name]
    with Server(page.mind) as server:
        scores = page.script(optimizer, server)
    assert scores.learned > scores.untouched
