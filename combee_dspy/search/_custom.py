"""Proposers of GEPA's kind in the place of aggregator and operators: instructions, and the code of ``dspy.Flex``."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from dspy.utils.exceptions import LMError

from combee_dspy._private import DspyAdapter
from combee_dspy.operators import visible
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._describe import stable_repr
from combee_dspy.search._effects import Effects, Place
from combee_dspy.search._propose import Child
from combee_dspy.search._update import Learned

__all__ = ["CustomProposer"]

logger = logging.getLogger("combee_dspy")


class CustomProposer:
    """Asks a proposer of the user's, or DSPy's own for code, with GEPA's records.

    Args:
        adapter: DSPy's gepa adapter, which knows the proposers.
        effects: The way to the world: what a proposer returns is one effect.
    """

    def __init__(self, adapter: DspyAdapter, effects: Effects) -> None:
        self._adapter = adapter
        self._effects = effects

    async def children(self, learned: Learned, base: Candidate) -> Sequence[Child]:
        """Return the child that the proposer made, or none."""
        step = learned.plan.step
        dataset = {name: [dict(one.record) for one in found] for name, found in learned.reflections.items() if found}
        if not dataset:
            return ()

        shown = {name: base.texts[name] for name in visible(base.texts)}

        def ask() -> Mapping[str, Any]:
            try:
                texts = self._adapter.propose_new_texts(shown, dataset, list(dataset))
            except LMError:
                raise  # a service that fails says nothing about the proposer, and ends the run
            except Exception as error:  # noqa: BLE001 - it may fail in any way: it has proposed nothing then, as in gepa
                return {"error": f"{type(error).__name__}: {error}"}
            return {"texts": {str(name): str(text) for name, text in texts.items()}}

        told = hashlib.blake2b(stable_repr(dataset).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        key = f"proposal/{step}/{base.id}/{','.join(dataset)}/{told}"
        made: Mapping[str, Any] = await self._effects.work(key, Place("proposal", step), "proposer", "call", ask)
        if "error" in made:
            logger.warning("update %d proposes nothing: the proposer failed with %s", step, made["error"])
            self._effects.log.emit("error", {"where": "instruction_proposer", "error": made["error"]}, step=step)
        texts = {name: text for name, text in made.get("texts", {}).items() if base.texts.get(name) != text}
        if not texts:
            return ()
        return (Child(base.edited(texts), "instruction_proposer", tuple(texts)),)
