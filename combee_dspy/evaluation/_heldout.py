"""The held-out contract: pinned before the first rollout, never moved, read once. Pure functions over receipts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from combee_dspy.evaluation._baseline import SerialBaseline
from combee_dspy.evaluation._compare import (
    PairedDifference,
    detectable_difference,
    discordance_bound,
    paired_difference,
)
from combee_dspy.evaluation._receipts import HeldoutIdentity, Receipt, heldout_identity
from combee_dspy.exceptions import ArgumentValueError, HeldoutMovedError, HeldoutReadError
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive_seed

_NEW_STUDY = "For another study, with programs that have learned nothing from this one, give a log_dir of its own."


@parameters
class Heldout:
    """What nothing reads before the end, and what is to be claimed from it.

    A study that has read it cannot move it. With a ``log_dir`` a study is the journal; without one it is all runs of
    one user on the same training rows whose programs have the same predictors and fields. Their receipts (hashes, times
    and scores) lie in ``combee_dspy/receipts.sqlite`` in the user's data directory (``$XDG_DATA_HOME`` or
    ``~/.local/share``). The environment variable ``COMBEE_RECEIPTS`` names another folder, or is ``off``.

    Attributes:
        rows: Examples for the final figure: disjoint from the training and validation sets, read once.
        target: Smallest improvement that is to be claimed, in score units; a run whose rows cannot tell it from none is
            refused before its first rollout. ``None``: whatever can be told.
        power: How often an improvement of that size is to be found.
        confidence: Level of the interval that finds it.
        discordance: Share of rows whose score differs between two programs, where a pilot on other rows has shown it;
            for graded scores the mean squared change. ``None``: what earlier receipts of these rows have measured, or
            the worst case.
        baseline: What serial optimization came to on these rows, as figures or as the ``log_dir`` of a serial run that
            has read them: the report then says what each point above it has cost. ``None``: no such figure is stated.
        margin: How much worse than the baseline's result still counts as no worse, in score units. How many times
            faster a search was is stated only where the paired interval excludes more.
    """

    rows: Annotated[Sequence[Any], Field(min_length=1)]
    target: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    power: Annotated[float, Field(gt=0, lt=1)] = 0.8
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    discordance: Annotated[float, Field(ge=0, le=1)] | None = None
    baseline: SerialBaseline | Path | None = None
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.02


def check_unmoved(receipts: Sequence[Receipt], identity: HeldoutIdentity) -> None:
    """Refuse a held-out set that earlier runs of a study have spoilt.

    Args:
        receipts: Of all earlier runs of the study, in any order.
        identity: What this run would hold out, learn from and compare on.

    Raises:
        HeldoutMovedError: The held-out set has changed after it was read, rows that were read are learned from now,
            rows that were learned from are held out now, or another metric would score what one has scored.
    """
    for earlier in receipts:
        if earlier.stage == "begun":
            _check_rows(earlier, identity)
            _check_not_learned(earlier, identity)
        for name in ("train", "validation"):
            if shared := len(set(getattr(earlier.heldout, name)) & set(identity.rows)):
                raise HeldoutMovedError(
                    f"shares {shared} rows with the {name} set of an earlier run of this study: "
                    "what was learned there may be in the program already",
                    {"shared": shared, "earlier run": earlier.run, "at": earlier.at},
                    f"Hold out rows that no run has seen. {_NEW_STUDY}",
                )


def _check_rows(begun: Receipt, identity: HeldoutIdentity) -> None:
    same = identity.content == begun.heldout.content
    if same and identity.metric != begun.heldout.metric:
        raise HeldoutMovedError(
            "has changed after the held-out set was read: choosing the scorer by its scores is a leak, not a tune",
            {"read by": begun.heldout.metric, "now": identity.metric, "read at": begun.at},
            f"Score as before. {_NEW_STUDY}",
            argument="metric",
        )
    shared = len(set(begun.heldout.rows) & set(identity.rows))
    if identity.rows and not same and (shared or set(begun.heldout.train) == set(identity.train)):
        raise HeldoutMovedError(
            "has changed after a run of this study read it: that is a leak, not a tune, "
            "since whoever saw the first figures chose the second set",
            {"read": begun.heldout.content[:16], "now": identity.content[:16], "shared rows": shared},
            f"Give the held-out set that was read at {begun.at}; a new reading is counted as one more look. "
            + _NEW_STUDY,
        )


def _check_not_learned(begun: Receipt, identity: HeldoutIdentity) -> None:
    for argument, hashes in (("trainset", identity.train), ("valset", identity.validation)):
        if shared := len(set(begun.heldout.rows) & set(hashes)):
            raise HeldoutMovedError(
                f"holds {shared} rows that this study has read as held-out: what they showed would now be learned",
                {"shared": shared, "read at": begun.at},
                f"Take them out. {_NEW_STUDY}",
                argument=argument,
            )


def check_unread(receipts: Sequence[Receipt], run: str, programs: Sequence[str]) -> None:
    """Refuse a second reading by one run. One that failed may be tried again with the same programs, given as hashes.

    Raises:
        HeldoutReadError: The run has begun a reading with other programs.
    """
    for earlier in receipts:
        if earlier.stage == "begun" and earlier.run == run and earlier.programs != tuple(programs):
            raise HeldoutReadError(f"this run read it at {earlier.at} with other programs. {_NEW_STUDY}")


@dataclass(frozen=True, slots=True)
class HeldoutPin:
    """A held-out set that a run has pinned, and what it can tell. Made by :func:`pin`.

    Attributes:
        identity: What is held out.
        heldout: As the user gave it.
        detectable: Smallest difference that it can tell from none, in score units.
        basis: What this rests on, in one sentence.
        looks: How often earlier runs have read the same rows.
        warnings: What makes its figures weaker than they look, in sentences.
    """

    identity: HeldoutIdentity
    heldout: Heldout
    detectable: float
    basis: str
    looks: int
    warnings: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return what to say before the first rollout, in two sentences."""
        told = (
            f"tells a paired difference of {self.detectable:.4g} or more from none"
            if self.detectable <= 1
            else f"can tell no difference at all: it would take one of {self.detectable:.4g}"
        )
        return (
            f"Held-out: {len(self.identity.rows)} rows, sha256 {self.identity.digest[:16]}, {self.looks} earlier looks."
            f" It {told} ({self.heldout.power:.0%} power, {self.heldout.confidence:.0%} confidence; {self.basis})."
        )

    def check_same(self) -> None:
        """Check that no row has been edited in place. Call it before and after the reading.

        Raises:
            HeldoutMovedError: One has.
        """
        now = heldout_identity(self.heldout.rows, self.identity.metric)
        if now.content != self.identity.content:
            changed = sum(old != new for old, new in zip(self.identity.rows, now.rows, strict=False))
            remedy = "Let neither program nor metric write to an example."
            raise HeldoutMovedError("has changed since it was pinned", {"changed rows": changed or "inputs"}, remedy)

    def pinned(self, run: str, at: str) -> Receipt:
        """Return the receipt to keep before the first rollout."""
        return Receipt("pinned", run, at, self.identity, detectable=self.detectable, looks=self.looks)

    def begun(self, run: str, at: str, programs: tuple[str, str]) -> Receipt:
        """Return the receipt to keep before the first held-out rollout."""
        return replace(self.pinned(run, at), stage="begun", programs=programs)

    def read(
        self,
        run: str,
        at: str,
        programs: tuple[str, str],
        before: Sequence[float],
        after: Sequence[float],
        *,
        seed: int = 0,
        models: Mapping[str, str] | None = None,
    ) -> Receipt:
        """Return the receipt of a reading, with the paired difference; 0 where both programs are one.

        ``before`` and ``after`` are the two programs' scores per row, in the rows' order; the other arguments are what
        :class:`Receipt` calls so.

        Raises:
            ArgumentValueError: There is not one finite score per row and program.
        """
        if not len(before) == len(after) == len(self.identity.rows):
            lengths = (len(before), len(after), len(self.identity.rows))
            raise ArgumentValueError("scores", lengths, "are not one per row and program", "Score every row once.")
        level = self.heldout.confidence
        found = paired_difference(before, after, confidence=level, seed=derive_seed(seed, "heldout"))
        if programs[0] == programs[1]:
            found = PairedDifference(found.before, found.before, 0.0, 0.0, 0.0, found.n, level)
        warnings = list(self.warnings)
        if max(*before, *after) - min(*before, *after) > 1 + 1e-9:
            warnings.append("Scores span more than the 1 that the detectable difference was computed for.")
        if self.looks:
            said = f"These rows had been read {self.looks} times before"
            warnings.append(f"{said}: the interval does not allow for that.")
        return replace(
            self.begun(run, at, programs),
            stage="read",
            before=tuple(map(float, before)),
            after=tuple(map(float, after)),
            difference=found,
            seed=seed,
            models=dict(models or {}),
            warnings=tuple(warnings),
        )


def pin(heldout: Heldout, identity: HeldoutIdentity, receipts: Sequence[Receipt] = ()) -> HeldoutPin:
    """Pin a held-out set before the first rollout.

    Args:
        heldout: As the user gave it.
        identity: From :func:`heldout_identity`.
        receipts: Of all earlier runs of the study; a run that goes on leaves out its own.

    Raises:
        HeldoutMovedError: See :func:`check_unmoved`.
        ArgumentValueError: The target is finer than what the rows can tell.
    """
    check_unmoved(receipts, identity)
    same = [earlier for earlier in receipts if earlier.heldout.content == identity.content]
    measured = [share for earlier in same if (share := earlier.discordance()) is not None]
    if heldout.discordance is not None:
        share, basis = heldout.discordance, f"discordance {heldout.discordance:.4g}, as given"
    elif measured:
        # The next pair of programs may differ on more rows than the last: the upper end, of the worst.
        share = discordance_bound(max(measured), identity.n)
        basis = f"discordance {max(measured):.4g} measured by {len(measured)} earlier readings, {share:.4g} at most"
    else:
        share, basis = 1.0, "worst case: nothing is measured yet, so every row's score may change"
    power, level = heldout.power, heldout.confidence
    detectable = detectable_difference(identity.n, discordance=share, power=power, confidence=level)
    if heldout.target is not None and heldout.target < detectable:
        rows = math.ceil(identity.n * (detectable / heldout.target) ** 2)
        remedy = (
            f"Set a coarser target, or take more held-out rows: about {rows:,} for this one. If you know how many "
            "rows change their score, from a pilot on other rows, give discordance=…."
        )
        problem = f"is finer than the {detectable:.4g} that the held-out set can tell from none ({basis})"
        raise ArgumentValueError("target", heldout.target, problem, remedy)
    looks = sum(earlier.stage == "begun" for earlier in same)
    warnings: tuple[str, ...] = ()
    if detectable > 1:
        said = f"The held-out set of {len(identity.rows)} rows can tell no difference, so this run supports no claim"
        warnings = (f"{said}: scores between 0 and 1 would have to differ by {detectable:.3g}. Hold out more rows.",)
    if copies := len(identity.rows) - len(set(identity.rows)):
        said = f"{copies} held-out rows are copies of others: the set tells as much as {identity.n:.0f} rows would"
        warnings = (*warnings, f"{said}, and the interval is too narrow.")
    return HeldoutPin(identity, heldout, detectable, basis, looks, warnings)
