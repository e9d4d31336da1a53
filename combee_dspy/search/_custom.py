"""Children by a proposer of GEPA's kind, in the place of aggregator and operators."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dspy.utils.exceptions import LMError

from combee_dspy._private import DspyAdapter
from combee_dspy.events import ErrorRaised
from combee_dspy.operators import visible
from combee_dspy.records import described
from combee_dspy.search._candidates import Candidate, EffectPlace
from combee_dspy.search._describe import stable_repr
from combee_dspy.search._effects import Effects
from combee_dspy.search._keeper import Child, Learned

logger = logging.getLogger("combee_dspy")

Dataset = Mapping[str, list[dict[str, object]]]


@dataclass(eq=False)
class CustomProposer:
    """Asks a proposer of the user's, or DSPy's own for code, with GEPA's records, as one effect."""

    adapter: DspyAdapter
    effects: Effects

    async def children(self, learned: Learned, base: Candidate) -> Sequence[Child]:
        """Return the child that the proposer made, or none."""
        step = learned.plan.step
        dataset = {name: records for name, records in learned.dataset.items() if records}
        if not dataset:
            return ()
        records = stable_repr(dataset).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(records, digest_size=8).hexdigest()
        key = f"proposal/{step}/{base.id}/{','.join(dataset)}/{digest}"
        propose = partial(self._propose, base, dataset)
        answer: Mapping[str, Any] = await self.effects.work(
            key, EffectPlace("proposal", step), "proposer", "call", propose
        )
        if "error" in answer:
            error = self.effects.texts.error(answer["error"])
            logger.warning("update %d proposes nothing: the proposer failed with %s", step, error)
            self.effects.emit(ErrorRaised("instruction_proposer", error), step=step)
        texts = {
            name: text
            for name, text in answer.get("texts", {}).items()
            if base.texts.get(name) != text
        }
        if not texts:
            return ()
        return (Child(base.edited(texts), "instruction_proposer", tuple(texts)),)

    def _propose(self, base: Candidate, dataset: Dataset) -> Mapping[str, object]:
        current = {name: base.texts[name] for name in visible(base.texts)}
        try:
            texts = self.adapter.propose_new_texts(current, dataset, list(dataset))
        except LMError:
            raise  # a service that fails says nothing about the proposer, and ends the run
        except BaseException as error:  # noqa: BLE001 - whatever it raises, it proposes nothing then, as in gepa
            return {"error": described(error)}
        return {"texts": {str(name): str(text) for name, text in texts.items()}}
