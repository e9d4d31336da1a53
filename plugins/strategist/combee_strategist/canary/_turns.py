"""One request's part in the canary, and the tries of the versions that answer it."""

from __future__ import annotations

import contextvars
import hashlib
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.costs import Meter
from combee_dspy.rollouts import predictors_of
from combee_strategist.canary._arms import Arm, View, answer_of
from combee_strategist.canary._options import Serving
from combee_strategist.canary._pairs import Answer
from combee_strategist.canary._recording import Recorder
from combee_strategist.canary._stamps import stamp_request

__all__ = ["Attempt", "Turn", "take_turn"]


@dataclass(slots=True)
class Turn:
    """One request's part in the canary.

    Attributes:
        request: What it goes by in the journal.
        inputs: The program's.
        view: The versions as the server knew them when it came.
        arms: Who answers, in this order: the second where the first fails.
        other: Who answers in the shadow.
        sampled: Whether somebody does.
        context: What the shadow runs in: the caller's settings.
        failed: The answer of a challenger that failed.
    """

    request: str
    inputs: Mapping[str, Any]
    view: View
    arms: tuple[Arm, ...]
    other: Arm | None
    sampled: bool
    context: contextvars.Context
    failed: Answer | None = None


def take_turn(
    view: View,
    serving: Serving,
    recorder: Recorder,
    request_id: str | None,
    inputs: Mapping[str, Any],
) -> Turn:
    """Return a request's part, which follows from its id, the program's name and the trial."""
    named = str(uuid.uuid4()) if request_id is None else str(request_id)
    trial = view.challenger.version.number if view.challenger else 0
    text = f"{recorder.name}\0{trial}\0{named}"
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    positions = [int.from_bytes(part, "big") / 2**64 for part in (digest[:8], digest[8:])]
    sampled, live = positions[0] < serving.shadow, positions[1] < serving.live
    arms = (view.challenger, view.production) if live and view.challenger else (view.production,)
    return Turn(
        recorder.request(named),
        inputs,
        view,
        arms,
        view.production if live else view.challenger,
        sampled,
        contextvars.copy_context() if sampled else contextvars.Context(),
    )


class Attempt:
    """One version's try at a request.

    Swallows the error of a challenger, since the incumbent is asked then.
    """

    def __init__(
        self, turn: Turn, arm: Arm, recorder: Recorder, shadow: Callable[[Turn, Answer], None]
    ) -> None:
        self._turn, self._arm, self._recorder, self._shadow = turn, arm, recorder, shadow
        self._meter = Meter(recorder.tariff, "serving")
        self._keeping = recorder.keeping
        self._trace: list[Any] = []
        self.prediction: Any = None

    def __enter__(self) -> Attempt:
        traced = {"trace": self._trace} if self._keeping.every else {}
        self._scope = dspy.context(**traced, **self._meter.settings())
        self._scope.__enter__()
        version = self._arm.version
        stamp_request(self._turn.request, version.number, version.candidate)
        self._began, self._started = self._keeping.clock(), time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> bool:
        seconds = time.perf_counter() - self._started
        self._scope.__exit__(kind, error, trace)
        turn, sampled = self._turn, self._turn.sampled
        answer = answer_of(
            self._arm, "serving", self._began, seconds, self._meter, self.prediction, error
        )
        self._recorder.ended(answer)
        if self._keeping.every:
            if dspy.settings.trace is not None:
                dspy.settings.trace.extend(self._trace)  # the caller's
            calls = predictors_of(self._arm.program).calls(self._trace)
            answer.calls = tuple(calls) if len(calls) > 1 else ()
            self._recorder.write(turn.request, answer, turn.inputs)
        swallows = self._arm is not turn.arms[-1] and isinstance(error, Exception)
        if swallows and sampled:
            turn.failed = answer
        elif not swallows and sampled and (error is None or isinstance(error, Exception)):
            self._shadow(turn, answer)
        else:
            self._recorder.write(turn.request, answer)
        return swallows
