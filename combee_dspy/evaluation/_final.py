"""The one reader of a held-out set."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from combee_dspy.evaluation._bootstrap import paired_difference
from combee_dspy.evaluation._heldout import HeldoutContract, now
from combee_dspy.evaluation._receipts import Receipt
from combee_dspy.evaluation._study import check_study, content_of, looks_at
from combee_dspy.exceptions import ArgumentValueError, HeldoutMovedError
from combee_dspy.hashing import canonical_json
from combee_dspy.streams import derive_seed

__all__ = ["ReadContext", "ScoreFn", "final_evaluate", "program_hash"]

ScoreFn = Callable[[Sequence[Any], Sequence[Any]], Sequence[Sequence[float]]]
"""``(programs, rows)`` to one sequence of scores per program, in the order of the rows."""


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Who reads the held-out set, for the receipt.

    Attributes:
        scorer: What scores now: must be what was pinned.
        seed: The run's seed; the interval's resampling is derived from it.
        run: The run's name.
        models: Model name by role.
    """

    scorer: str
    seed: int = 0
    run: str = ""
    models: Mapping[str, str] = field(default_factory=dict)


def final_evaluate(
    before: Any,
    after: Any,
    contract: HeldoutContract,
    score_fn: ScoreFn,
    context: ReadContext,
    *,
    hash_of: Callable[[Any], str] | None = None,
) -> Receipt:
    """Read the held-out set: the one reader, once per contract.

    A reading that fails because ``score_fn`` raises may be tried again with the
    same two programs; the book counts it as a look. Where both programs are one
    they are scored once, and the difference is zero.

    Args:
        before: The program that the run began with.
        after: The program that it chose.
        contract: The pinned set.
        score_fn: Scores programs on rows, all together.
        context: Who reads.
        hash_of: Content hash of a program in hexadecimal; :func:`program_hash` by default.

    Returns:
        The receipt. It is in the book, if the study keeps one, before this returns.

    Raises:
        HeldoutReadError: The contract has been read before.
        HeldoutMovedError: Rows or scorer are not what was pinned, before or after the reading.
        ArgumentValueError: ``score_fn`` returned something else than one finite score per row.
        ReceiptError: The book is not as it was written.
    """
    identify = hash_of or program_hash
    programs = (identify(before), identify(after))
    if context.scorer != contract.scorer:
        remedy = "Score with the metric that was pinned."
        values = {"pinned": contract.scorer, "now": context.scorer}
        raise HeldoutMovedError("is not the one that was pinned", values, remedy, argument="metric")
    contract.begin((*programs, context.scorer))
    ended = "read, but what it showed is not known: its rows or its book have changed"
    try:
        contract.verify()
        looks = _note_begun(contract, programs, context)
        scored: list[tuple[float, ...]] = []
        try:
            chosen = [before] if programs[0] == programs[1] else [before, after]
            scored = _scores(score_fn(chosen, list(contract.rows)), len(chosen), len(contract.rows))
        except BaseException:
            ended = "failed"
            raise
        contract.verify()
        receipt = _receipt(contract, context, programs, (scored[0], scored[-1]), looks)
        if contract.book is not None:
            with contract.book.opened() as entries:
                entries.append("read", receipt=receipt.to_dict())
        ended = "read already"
    finally:
        contract.end(ended)
    return receipt


def _note_begun(contract: HeldoutContract, programs: tuple[str, str], context: ReadContext) -> int | None:
    if contract.book is None:
        return None
    with contract.book.opened() as entries:
        # Another run may have written to the book since this one was pinned.
        check_study(entries, contract.splits, contract.scorer)
        looks = looks_at(entries, contract.content)
        entries.append(
            "begun",
            content=contract.content,
            train=content_of(contract.splits.train),
            scorer=contract.scorer,
            programs=list(programs),
            run=context.run,
            time=now(),
        )
    return looks


def _receipt(
    contract: HeldoutContract,
    context: ReadContext,
    programs: tuple[str, str],
    scores: tuple[tuple[float, ...], tuple[float, ...]],
    looks: int | None,
) -> Receipt:
    before, after = scores
    terms = contract.terms
    interval_seed = derive_seed(context.seed, "heldout")
    found = paired_difference(before, after, seed=interval_seed, confidence=terms.confidence)
    warnings = list(contract.warnings)
    if max(*before, *after) - min(*before, *after) > terms.span * (1 + 1e-9):
        warnings.append(f"Scores span more than the {terms.span:g} that the detectable margin was computed for.")
    if looks:
        warnings.append(f"This set had been read {looks} times before: the interval does not allow for that.")
    return Receipt(
        split=contract.content,
        digest=contract.digest,
        train=content_of(contract.splits.train),
        programs=programs,
        scorer=contract.scorer,
        seeds={"run": context.seed, "interval": interval_seed},
        models=dict(context.models),
        before=before,
        after=after,
        interval=(found.low, found.high),
        confidence=found.confidence,
        margin=contract.margin,
        looks=looks,
        time=now(),
        run=context.run,
        warnings=tuple(warnings),
    )


def _scores(returned: Any, programs: int, rows: int) -> list[tuple[float, ...]]:
    remedy = "Return one finite score per row, for each program."
    found = [tuple(float(score) for score in scores) for scores in returned]
    if len(found) != programs or any(len(scores) != rows for scores in found):
        lengths = [len(scores) for scores in found]
        raise ArgumentValueError("score_fn", lengths, f"did not score {programs} programs on {rows} rows", remedy)
    if not all(math.isfinite(score) for scores in found for score in scores):
        raise ArgumentValueError("score_fn", "NaN or infinite", "returned scores that cannot be compared", remedy)
    return found


def program_hash(program: Any) -> str:
    """Return a program's content hash, 64 hex digits.

    Args:
        program: A ``dspy.Module``, by its class and dumped state; or text by component.

    Raises:
        ArgumentValueError: It is neither.
    """
    dump = getattr(program, "dump_state", None)
    if callable(dump):
        content: Any = [f"{type(program).__module__}.{type(program).__qualname__}", dump()]
    elif isinstance(program, Mapping):
        content = dict(program)
    else:
        raise ArgumentValueError("program", program, "has no state to hash", "Give a dspy.Module, or a candidate.")
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()
