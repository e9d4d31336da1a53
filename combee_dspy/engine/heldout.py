"""The held-out set of a run: pinned before the first rollout, read once at its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from combee_dspy.checks import Splits
from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.settings import Settings
from combee_dspy.evaluation import (
    HeldoutContract,
    ReadContext,
    Receipt,
    ReceiptBook,
    SplitRows,
    final_evaluate,
    note_unheld_run,
)
from combee_dspy.events import Event, HeldoutEvaluated, HeldoutPinned
from combee_dspy.hashing import row_hash
from combee_dspy.rollouts import scorer_fingerprint

__all__ = ["HeldoutSet"]

logger = logging.getLogger("combee_dspy")


class HeldoutSet:
    """What a run knows of its held-out set, which may be empty.

    Args:
        settings: The run's settings.
        splits: The data.
        scorer: The metric that will read it.
        run: The run's name.
        models: Model name by role.

    Raises:
        HeldoutMovedError: The study has read another held-out set, or spoilt this one.
        ArgumentValueError: The target is finer than what the set can tell.
        ReceiptError: The book of receipts is not as it was written.
    """

    def __init__(
        self, settings: Settings, splits: Splits, scorer: Callable[..., Any], run: str, models: Mapping[str, str]
    ) -> None:
        self._context = ReadContext(scorer_fingerprint(scorer), settings.seed, run, models)
        self._digest = splits.digests.get("heldout", "")
        book = ReceiptBook.at(settings.receipts, settings.log_dir)
        train = [row_hash(row) for row in splits.train]
        # Anchors are learned from too: no later run of the study may hold them out.
        validation = [row_hash(row) for row in (*splits.validation, *settings.anchors)]
        self.contract: HeldoutContract | None = None
        if splits.heldout:
            self.contract = HeldoutContract.pin(
                splits.heldout,
                scorer=self._context.scorer,
                train=train,
                validation=validation,
                digest=self._digest,
                terms=settings.heldout_terms,
                book=(book, run),
            )
        elif book is not None:
            time = datetime.now(UTC).isoformat(timespec="seconds")
            note_unheld_run(book, SplitRows(tuple(train), tuple(validation)), run=run, time=time)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes its figures weaker than they look."""
        return () if self.contract is None else self.contract.warnings

    def announce(self, emit: Callable[[Event], None]) -> None:
        """Say what the set can tell, before the first rollout."""
        if self.contract is None:
            return
        logger.warning("%s", self.contract.summary())
        emit(
            HeldoutPinned(
                digest=self.contract.digest,
                size=len(self.contract.rows),
                margin=self.contract.margin,
                power=self.contract.terms.power,
                basis=self.contract.basis,
            )
        )

    def read(
        self,
        seed: Candidate,
        best: Candidate,
        score: Callable[[Sequence[Candidate], Sequence[Any]], Sequence[Sequence[float]]],
        emit: Callable[[Event], None],
        iteration: int,
    ) -> Receipt | None:
        """Read the set, once; ``None`` where there is none."""
        if self.contract is None:
            return None
        receipt = final_evaluate(seed, best, self.contract, score, self._context, hash_of=candidate_id)
        found = receipt.difference()
        emit(
            HeldoutEvaluated(
                iteration=iteration,
                before=found.before,
                after=found.after,
                interval=(found.low, found.high),
                confidence=found.confidence,
                size=found.size,
                digest=self._digest,
            )
        )
        return receipt
