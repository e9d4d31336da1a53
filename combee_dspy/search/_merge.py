"""gepa's merge of two candidates, evaluated by our effects."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from gepa.core.data_loader import ensure_loader
from gepa.proposer.merge import MergeProposer

from combee_dspy.events import CandidatesMerged, WarningRaised
from combee_dspy.rollouts import output_of
from combee_dspy.search._candidates import Candidate, Place
from combee_dspy.search._effects import Effects
from combee_dspy.search._gepa import Gepa
from combee_dspy.search._pool import Pool

__all__ = ["Merging"]

_SUBSAMPLE = 5  # validation rows on which gepa tries a merged candidate


class Merging:
    """Tries one merge between two updates, where gepa would.

    Args:
        effects: The way to the world.
        pool: The validated candidates.
        gepa: gepa's state.
        most: How many merges may be accepted.
        rng: gepa's own stream.
    """

    def __init__(
        self, effects: Effects, pool: Pool, gepa: Gepa, most: int, rng: random.Random
    ) -> None:
        self._effects = effects
        self._pool = pool
        self._gepa = gepa
        self._step = self._iteration = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rows = {id(row.example): row for row in pool.validation}
        examples = [row.example for row in pool.validation]
        self._proposer = MergeProposer(
            self,
            ensure_loader(examples),
            self._evaluate,
            use_merge=True,
            max_merge_invocations=most,
            rng=rng,
            callbacks=list(gepa.callbacks),
        )

    def log(self, message: str) -> None:
        """Take gepa's log lines, which the journal's events say better."""

    def found_candidate(self) -> None:
        """Note that a candidate has joined the pool, after which gepa tries a merge."""
        self._proposer.last_iter_found_new_program = True
        if self._proposer.total_merges_tested < self._proposer.max_merge_invocations:
            self._proposer.merges_due += 1

    async def attempt(self, step: int) -> bool | None:
        """Try a merge where one is due; return whether it was accepted, ``None`` where none was
        tried.
        """
        proposer, room = self._proposer, self._effects.purse.room
        if not (proposer.merges_due > 0 and proposer.last_iter_found_new_program):
            proposer.last_iter_found_new_program = False
            return None
        if room is not None and room < _SUBSAMPLE + self._pool.size:
            return None
        self._step, self._loop = step, asyncio.get_running_loop()
        try:
            # gepa asks for scores in the middle of its proposal, so it runs in a thread and the
            # loop answers.
            proposal = await asyncio.to_thread(proposer.propose, self._gepa.state)
        except ValueError as error:
            # gepa draws a common ancestor by its score, and cannot where the score is 0.
            text = f"gepa could not draw a merge: {error}"
            self._effects.log.emit(WarningRaised(text), step=step)
            proposal = None
        proposer.last_iter_found_new_program = False
        if proposal is None:
            return None
        parents, self._iteration = list(proposal.parent_program_ids), self._gepa.state.i + 1
        self._tell("on_merge_attempted", parent_ids=parents, merged_candidate=proposal.candidate)
        before, after = (
            list(proposal.subsample_scores_before or ()),
            sum(proposal.subsample_scores_after or ()),
        )
        candidate, accepted = (
            Candidate(dict(proposal.candidate)),
            after >= max(before, default=float("-inf")),
        )
        names = tuple(self._pool.members[index].candidate.id for index in parents)
        self._effects.log.emit(candidate.proposed(names, "merge"), step=step)
        self._effects.log.emit(CandidatesMerged(candidate.id, names, accepted), step=step)
        if not accepted:
            reason = f"Merged score {after} worse than both parents {before}"
            self._tell("on_merge_rejected", parent_ids=parents, reason=reason)
            return False
        rollouts = await self._pool.validate(candidate, self._pool.validation, step)
        member = self._pool.join(candidate, parents, step, rollouts)
        proposer.merges_due -= 1
        proposer.total_merges_tested += 1
        self._tell("on_merge_accepted", new_candidate_idx=member.index, parent_ids=parents)
        self._tell(
            "on_candidate_accepted",
            new_candidate_idx=member.index,
            new_score=after,
            parent_ids=parents,
        )
        return True

    def _tell(self, method: str, **event: object) -> None:
        self._gepa.notify(method, {"iteration": self._iteration, **event})

    def _evaluate(
        self, examples: Sequence[Any], texts: Mapping[str, str]
    ) -> tuple[list[Any], list[float], list[dict[str, float]] | None]:
        """Answer gepa's question for scores, from its thread."""
        if self._loop is None:
            raise RuntimeError("gepa's merge asked for scores outside of an attempt")
        candidate, place = Candidate(dict(texts)), Place("screen", self._step)

        async def scored() -> list[Any]:
            rows = [self._rows[id(example)] for example in examples]
            return list(
                await asyncio.gather(
                    *(self._effects.rollout(candidate, row, place) for row in rows)
                )
            )

        rollouts = asyncio.run_coroutine_threadsafe(scored(), self._loop).result()
        outputs = [output_of(rollout) for rollout in rollouts]
        objectives = [dict(rollout.objective_scores) for rollout in rollouts]
        scores = [rollout.score for rollout in rollouts]
        return outputs, scores, objectives if any(objectives) else None
