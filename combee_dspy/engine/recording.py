"""The reflective records of a minibatch, each made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.scanning import Scanner
from combee_dspy.engine.state import RunState
from combee_dspy.engine.streaming import Streams, stream_key
from combee_dspy.records import Rollout

__all__ = ["Recorder"]

_NOTHING_SAID = "no trajectory says anything about any component that is to be updated"


class Recorder:
    """Makes a minibatch's reflective records, or takes them from the scans that have begun.

    A record depends on its rollout, the component and the run's seed, not on the others of its
    minibatch: so it can be made as soon as its rollout has ended.

    Args:
        scanner: Makes them.
        streams: Have made some already.
        state: Knows the iteration.
    """

    def __init__(self, scanner: Scanner, streams: Streams, state: RunState) -> None:
        self._scanner = scanner
        self._streams = streams
        self._state = state

    def __call__(
        self, candidate: Candidate, rollouts: Sequence[Rollout], components: Sequence[str]
    ) -> tuple[dict[str, list[Any]], Mapping[str, Sequence[int]]]:
        """Return the records by component, and which rollout each is about.

        Raises:
            ValueError: There is none for any component; gepa skips the minibatch.
            Exception: What the metric raised when it was asked for feedback.
        """
        stream = self._streams.get(stream_key(candidate_id(candidate), rollouts))
        known = {} if stream is None else stream.records(rollouts)
        missing = [component for component in components if component not in known]
        program = self._scanner.program(candidate) if missing else None
        for component in missing:
            assert program is not None  # noqa: S101 - tells mypy
            made = (
                (place, self._scanner.record(program, self._state.iteration, component, place, rollout))
                for place, rollout in enumerate(rollouts)
            )
            known[component] = {place: record for place, record in made if record is not None}
        said = {component: known[component] for component in components if known[component]}
        if not said:
            raise ValueError(_NOTHING_SAID)
        placed = {component: sorted(found) for component, found in said.items()}
        return {name: [said[name][place] for place in places] for name, places in placed.items()}, placed
