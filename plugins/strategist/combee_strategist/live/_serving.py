"""A server whose requests and labels are kept, so that they teach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Rollout
from combee_dspy.rollouts import encode_rollout
from combee_strategist.canary import CanaryProgram, RequestLabelled
from combee_strategist.live._options import Setup

__all__ = ["LiveProgram"]


class LiveProgram(CanaryProgram):
    """The canary's server, which keeps what it is asked and what is said of it.

    Made by :meth:`Live.serve <combee_strategist.live.Live.serve>`. Called from any threads and
    event loops, by any number of processes. A request is on disk, with its texts, before its caller
    has the answer; where the disk is full the caller is answered all the same, and it is counted
    as ``requests not kept``.
    """

    def __init__(self, setup: Setup, prometheus: Any = None) -> None:
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
            ArgumentValueError: The score is not between 0 and 1.
            JournalError: The label could not be written.
        """
        if score is not None and not 0 <= score <= 1:
            remedy = "Give a score from 0 to 1, or True and False for a thumb."
            raise ArgumentValueError("score", score, "is not between 0 and 1", remedy)
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


def _encoded(labels: Mapping[str, Any]) -> Mapping[str, Any]:
    fields: Any = encode_rollout(Rollout("", 0.0, prediction=labels))["prediction"]
    return dict(fields)
