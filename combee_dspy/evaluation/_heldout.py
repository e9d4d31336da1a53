"""Pins held-out rows, refuses that they move, and counts looks at them. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from combee_dspy.evaluation._baseline import SerialBaseline
from combee_dspy.evaluation._compare import (
    PairedDifference,
    detectable_difference,
    discordance_bound,
    paired_difference,
)
from combee_dspy.evaluation._receipts import HeldoutIdentity, Receipt, heldout_identity
from combee_dspy.exceptions import ArgumentValueError, HeldoutMovedError
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive_seed


@parameters
class Heldout:
    """Rows that nothing reads before the end of a run, and what it claims from them.

    A study that has read a held-out set cannot move it to other rows, and its looks are counted by
    their rows. Only a study with a name, or a run with a ``log_dir``, is held to that:

    - With ``study=``, looks are recorded in ``combee-heldout.jsonl`` of the project folder: the
      nearest folder upwards with ``.git`` or ``pyproject.toml``, else the current one. A study has
      one held-out set, whatever the ``log_dir`` and the training rows.
    - With a ``log_dir`` and no name, all such runs of a project folder are recorded there too, and
      are one study as far as they share rows. Without a project folder the journal is the study:
      nothing outside it is known.
    - With neither, nothing is refused and no look is recorded, and the report says so. Give one of
      them for a claim.

    The file holds hashes, times and scores. With ``COMBEE_RECEIPTS=off`` in the environment only
    named studies are recorded outside the journal.

    Attributes:
        rows: Examples for the final figure: disjoint from the training and validation sets.
        target: Smallest improvement that is to be claimed, in score units; a run whose rows cannot
            tell it from none is refused before its first rollout. ``None``: whatever can be told.
        power: How often an improvement of that size is to be found.
        confidence: Level of the interval that finds it.
        discordance: Share of rows whose score differs between two programs, where a pilot on other
            rows has shown it; for graded scores the mean squared change. ``None``: what earlier
            receipts of these rows have measured, or the worst case.
        baseline: What serial optimization came to on these rows, as figures or as the ``log_dir``
            of a serial run that has read them: the report then says what each point above it has
            cost. ``None``: no such figure is stated.
        margin: How much worse than the baseline's result still counts as no worse, in score units.
            How many times faster a search was is stated only where the paired interval excludes
            more.
        study: Name of the study that these rows are the held-out set of; ``None`` for none.
    """

    rows: Annotated[Sequence[Any], Field(min_length=1)]
    target: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    power: Annotated[float, Field(gt=0, lt=1)] = 0.8
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    discordance: Annotated[float, Field(ge=0, le=1)] | None = None
    baseline: SerialBaseline | Path | None = None
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.02
    study: Annotated[str, Field(min_length=1)] | None = None


def check_unmoved(
    receipts: Sequence[Receipt], identity: HeldoutIdentity, where: str, study: str = ""
) -> None:
    """Refuse a held-out set that earlier runs of a study have spoilt.

    How the rows are scored is no part of it: whoever changes the metric's feedback moves no row.

    Args:
        receipts: Of all earlier runs of the study, in any order.
        identity: What this run would hold out, learn from and compare on.
        where: The file that holds the receipts.
        study: Name of the study; empty for none.

    Raises:
        HeldoutMovedError: The held-out rows have changed after they were read, rows that were read
            are learned from now, or rows that were learned from are held out now.
    """
    record = f"{where} has the record."
    learned = {"trainset": identity.train, "valset": identity.validation}
    for earlier in receipts:
        before = earlier.heldout
        if earlier.stage == "begun":
            for argument, hashes in learned.items():
                if shared := len(set(hashes).intersection(before.rows)):
                    raise HeldoutMovedError(
                        f"holds {shared} rows that this study has read as held-out: what they"
                        " showed would now be learned",
                        {"shared": shared, "read at": earlier.at},
                        f"Take them out. {record}",
                        argument=argument,
                    )
            if _is_moved(earlier, identity, study):
                raise HeldoutMovedError(
                    "has changed after a run of this study read it: that is a leak, not a tune, "
                    "since whoever saw the first figures chose the second set",
                    {"read": before.content[:16], "now": identity.content[:16]},
                    f"Give the held-out set that was read at {earlier.at}: another look at it is"
                    f" counted. {record}",
                )
        for name, hashes in {"train": before.train, "validation": before.validation}.items():
            if shared := len(set(hashes).intersection(identity.rows)):
                raise HeldoutMovedError(
                    f"shares {shared} rows with the {name} set of an earlier run of this study: "
                    "what was learned there may be in the program already",
                    {"shared": shared, "earlier run": earlier.run, "at": earlier.at},
                    f"Hold out rows that no run has seen. {record}",
                )


def _is_moved(receipt: Receipt, identity: HeldoutIdentity, study: str) -> bool:
    """Return whether a run of the same study has read other held-out rows.

    Runs without a name are one study as far as they share rows.
    """
    before = receipt.heldout
    if not identity.rows or identity.content == before.content:
        return False
    learned_before, learned = (
        {*before.train, *before.validation},
        {*identity.train, *identity.validation},
    )
    shares_rows = set(before.rows) & set(identity.rows) or learned_before & learned
    return bool(shares_rows or (study and study == receipt.study))


@dataclass(frozen=True, slots=True)
class HeldoutPin:
    """A held-out set that a run has pinned, and what it can tell. Made by :func:`pin`.

    Attributes:
        identity: What is held out.
        heldout: As the user gave it.
        detectable: Smallest difference that it can tell from none, in score units.
        basis: What this rests on, in one sentence.
        earlier: Receipts of looks at any of its rows, oldest first.
        setting: See :class:`Receipt`.
        warnings: What makes its figures weaker than they look, in sentences.
    """

    identity: HeldoutIdentity
    heldout: Heldout
    detectable: float
    basis: str
    earlier: tuple[Receipt, ...] = ()
    setting: str = ""
    warnings: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return what to say before the first rollout, in two sentences."""
        detects = (
            f"tells a paired difference of {self.detectable:.4g} or more from none"
            if self.detectable <= 1
            else f"can tell no difference at all: it would take one of {self.detectable:.4g}"
        )
        looks = len(self._looks())
        basis = (
            f"{self.heldout.power:.0%} power, {self.heldout.confidence:.0%} confidence;"
            f" {self.basis}"
        )
        return (
            f"Held-out: {len(self.identity.rows)} rows, sha256 {self.identity.digest[:16]}, "
            f"{looks} earlier looks. It {detects} ({basis})."
        )

    def after(self, receipts: Sequence[Receipt]) -> HeldoutPin:
        """Return it with the looks among these receipts: those at any of its rows."""
        rows = set(self.identity.rows)
        looks = (
            receipt
            for receipt in receipts
            if receipt.stage != "pinned" and rows & set(receipt.heldout.rows)
        )
        return replace(self, earlier=tuple(looks))

    def check_same(self) -> None:
        """Check that no row has been edited in place. Call it before and after the reading.

        Raises:
            HeldoutMovedError: One has.
        """
        now = heldout_identity(self.heldout.rows, self.identity.metric)
        if now.content != self.identity.content:
            changed = sum(
                old != new for old, new in zip(self.identity.rows, now.rows, strict=False)
            )
            remedy = "Let neither program nor metric write to an example."
            raise HeldoutMovedError(
                "has changed since it was pinned", {"changed rows": changed or "inputs"}, remedy
            )

    def receipt(
        self,
        stage: Literal["pinned", "begun"],
        run: str,
        at: str,
        programs: tuple[str, ...] = (),
    ) -> Receipt:
        """Return the receipt to keep: ``"pinned"`` before the first rollout, ``"begun"`` before the
        first held-out one, with the programs that are read.
        """
        return Receipt(
            stage,
            run,
            at,
            self.identity,
            programs,
            detectable=self.detectable,
            looks=len(self._looks(run, programs)),
            study=self.heldout.study or "",
            setting=self.setting,
        )

    def _looks(self, run: str = "", programs: tuple[str, ...] = ()) -> list[Receipt]:
        """Return the earlier looks, but for this one: it failed, and goes on."""
        looks = [receipt for receipt in self.earlier if receipt.stage == "begun"]
        return [receipt for receipt in looks if (receipt.run, receipt.programs) != (run, programs)]

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
        """Return the receipt of a reading, with the paired difference; 0 where both programs are
        one.

        ``before`` and ``after`` are the two programs' scores per row, in the rows' order; the other
        arguments are what :class:`Receipt` calls so.

        Raises:
            ArgumentValueError: There is not one finite score per row and program.
        """
        if not len(before) == len(after) == len(self.identity.rows):
            lengths = (len(before), len(after), len(self.identity.rows))
            raise ArgumentValueError(
                "scores", lengths, "are not one per row and program", "Score every row once."
            )
        level = self.heldout.confidence
        difference = paired_difference(
            before, after, confidence=level, seed=derive_seed(seed, "heldout")
        )
        if programs[0] == programs[1]:
            difference = PairedDifference(
                difference.before, difference.before, 0.0, 0.0, 0.0, difference.n, level
            )
        warnings = list(self.warnings)
        if max(*before, *after) - min(*before, *after) > 1 + 1e-9:
            warnings.append(
                "Scores span more than the 1 that the detectable difference was computed for."
            )
        if looks := self._looks(run, programs):
            readings = [receipt for receipt in self.earlier if receipt.stage == "read"]
            warnings.append(_warn_of_looks(looks, readings))
        receipt = replace(
            self.receipt("begun", run, at, programs),
            stage="read",
            before=tuple(map(float, before)),
            after=tuple(map(float, after)),
            difference=difference,
            seed=seed,
            models=dict(models or {}),
        )
        changed = [
            (count, earlier.at) for earlier in self.earlier if (count := receipt.rescored(earlier))
        ]
        if changed:
            count, when = changed[-1]
            warnings.append(
                f"The metric has changed since {when}, and the untouched program scores otherwise"
                f" on {count} of {len(before)} rows: unless its LM samples, these figures are by"
                " another scale than those."
            )
        return replace(receipt, warnings=tuple(warnings))


def _warn_of_looks(looks: Sequence[Receipt], readings: Sequence[Receipt]) -> str:
    times = "once" if len(looks) == 1 else f"{len(looks)} times"
    runs = len({receipt.run for receipt in looks})
    text = (
        f"These rows had been read {times} before, by {runs} run{'s' if runs > 1 else ''}: the"
        " interval does not "
    )
    text += "allow for that, and a figure that somebody chose by an earlier look is too good."
    for receipt in readings[:1]:
        if receipt.difference is not None:
            before, after = receipt.difference.before, receipt.difference.after
            text += f" The first look, {receipt.at}: {before:.3f} → {after:.3f}."
    return text


def pin(
    heldout: Heldout, identity: HeldoutIdentity, receipts: Sequence[Receipt] = (), setting: str = ""
) -> HeldoutPin:
    """Pin a held-out set before the first rollout.

    Args:
        heldout: As the user gave it.
        identity: From :func:`heldout_identity`.
        receipts: Of all looks that are recorded anywhere, this run's own too.
        setting: See :class:`Receipt`.

    Raises:
        ArgumentValueError: The target is finer than what the rows can tell.
    """
    same = [earlier for earlier in receipts if earlier.heldout.content == identity.content]
    measured = [share for earlier in same if (share := earlier.discordance()) is not None]
    if heldout.discordance is not None:
        share, basis = heldout.discordance, f"discordance {heldout.discordance:.4g}, as given"
    elif measured:
        # The next pair of programs may differ on more rows than the last: the upper end, of the
        # worst.
        share = discordance_bound(max(measured), identity.n)
        basis = (
            f"discordance {max(measured):.4g} measured by {len(measured)} earlier readings,"
            f" {share:.4g} at most"
        )
    else:
        share, basis = 1.0, "worst case: nothing is measured yet, so every row's score may change"
    power, level = heldout.power, heldout.confidence
    detectable = detectable_difference(identity.n, discordance=share, power=power, confidence=level)
    if heldout.target is not None and heldout.target < detectable:
        needed = math.ceil(identity.n * (detectable / heldout.target) ** 2)
        remedy = (
            f"Set a coarser target, or take more held-out rows: about {needed:,} for this one. If"
            " you know how many rows change their score, from a pilot on other rows, give"
            " discordance=…."
        )
        problem = (
            f"is finer than the {detectable:.4g} that the held-out set can tell from none ({basis})"
        )
        raise ArgumentValueError("target", heldout.target, problem, remedy)
    warnings: list[str] = []
    if detectable > 1:
        warnings.append(
            f"The held-out set of {len(identity.rows)} rows can tell no difference, so this run"
            f" supports no claim: scores between 0 and 1 would have to differ by {detectable:.3g}."
            " Hold out more rows."
        )
    if copies := len(identity.rows) - len(set(identity.rows)):
        warnings.append(
            f"{copies} held-out rows are copies of others: the set tells as much as"
            f" {identity.n:.0f} rows would, and the interval is too narrow."
        )
    pin = HeldoutPin(identity, heldout, detectable, basis, (), setting, tuple(warnings))
    return pin.after(receipts)
