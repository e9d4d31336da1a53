"""A server whose requests and labels are kept, so that they teach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import Rollout
from combee_dspy.rollouts import encode_rollout
from combee_strategist.canary import Answer, CanaryProgram, RequestLabelled
from combee_strategist.live._leftovers import Leftovers
from combee_strategist.live._options import Setup, slip_of

__all__ = ["LiveProgram"]

_SAID = ("score", "comment", "trusted")


class LiveProgram(CanaryProgram):
    """The canary's server, which keeps what it is asked and what is said of it.

    Made by :meth:`Live.serve <combee_strategist.live.Live.serve>`. Called from any threads and
    event loops, by any number of processes. A request is on disk, with its texts, before its caller
    has the answer; where the disk is full the caller is answered all the same, and it is counted
    as ``requests not kept``.
    """

    def __init__(self, setup: Setup, prometheus: Any = None) -> None:
        # Before it is polled.
        self._leftovers = None if setup.judge is None else Leftovers(setup)
        super().__init__(
            setup.name,
            setup.program,
            metric=setup.metric,
            judge=setup.judge,
            serving=setup.serving,
            log_dir=setup.requests,
            privacy=setup.privacy,
            keep=True,
            clock=setup.clock,
            uri=setup.uri,
            prometheus=prometheus,
        )
        # Replaced as a whole, so that every thread may read it.
        self._fields = setup.output_fields().union(*(row.labels().keys() for row in setup.trusted))
        self._observe = self._recorder.observe
        self._recorder.observe = self._learn_fields

    def refresh(self) -> None:
        """As the canary's; and take over what servers that have ended left to the judge."""
        super().refresh()
        for pair in self._leftovers.take() if self._leftovers else ():
            self._recorder.wait(pair)

    def close(self, seconds: float = 5.0) -> None:
        """As the canary's; another server takes over what is left to the judge."""
        super().close(seconds)
        if self._leftovers is not None:
            self._leftovers.close()

    def feedback(
        self,
        request_id: str,
        *,
        score: float | None = None,
        comment: str = "",
        trusted: bool = False,
        **labels: Any,
    ) -> bool:
        """Say how a request went; it is on disk when this returns.

        May come hours later, to any server with this ``log_dir``, also after a restart, and again.

            qa.feedback("r-17", score=False)                      # a thumb
            qa.feedback("r-17", answer="42", comment="Not 41.")   # a correction

        Args:
            request_id: The request's, as it was served.
            score: From 0 to 1, or a thumb as a bool. Speaks of the answer that was served.
            comment: What was said, in words.
            trusted: Whether the team vouches for the labels: they prove lessons, and never teach.
            **labels: The output fields that would have been right.

        Returns:
            Whether anything was said.

        Raises:
            ArgumentTypeError: The score is no number, the comment no text, or a label is no field
                and nearly has the name of one.
            ArgumentValueError: The score is not between 0 and 1.
            JournalError: The label could not be written.
        """
        _check_score(score)
        if not isinstance(comment, str):
            raise ArgumentTypeError("comment", comment, "is no text", "Say it in words.")
        self._check_names(labels)
        if score is None and not comment and not labels:
            return False
        self._recorder.keep_label(
            RequestLabelled(
                self._recorder.request(request_id),
                self._recorder.keeping.clock(),
                None if score is None else float(score),
                comment,
                _encoded(labels),
                trusted,
            )
        )
        # A pair rests on right answers: how the served answer was liked says nothing of the other.
        if labels and self.versions[1] is not None:
            super().feedback(request_id, **labels)
        return True

    def _learn_fields(self, answer: Answer) -> None:
        if not self._fields.issuperset(answer.prediction or ()):
            self._fields |= frozenset(answer.prediction or ())
        self._observe(answer)

    def _check_names(self, labels: Mapping[str, Any]) -> None:
        """Refuse a slip of a name; another name may be one that the metric alone knows."""
        fields = self._fields
        for name, value in labels.items():
            meant = "" if name in fields else slip_of(name, (*fields, *_SAID))
            if meant:
                remedy = f"Did you mean {meant!r}? Labels are what the program answers with."
                raise ArgumentTypeError(name, value, "is no field of an answer", remedy)


def _check_score(score: float | None) -> None:
    remedy = "Give a score from 0 to 1, or True and False for a thumb."
    try:
        is_score = score is None or 0 <= score <= 1
    except TypeError:
        raise ArgumentTypeError("score", score, "is no number", remedy) from None
    if not is_score:
        raise ArgumentValueError("score", score, "is not between 0 and 1", remedy)


def _encoded(labels: Mapping[str, Any]) -> Mapping[str, Any]:
    fields: Any = encode_rollout(Rollout("", 0.0, prediction=labels))["prediction"]
    return dict(fields)
