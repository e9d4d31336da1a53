"""Frozen options of a run, grouped by what they are about; each checked when it is made.

Every one can be given in Python, and in the file of ``combee run`` under the same names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from combee_dspy import registry
from combee_dspy.evaluation import Calibration
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.rollouts import PATIENCE
from combee_dspy.strategies import parameters
from combee_dspy.weighers import Weigher

__all__ = ["Privacy", "Search", "Validation", "positive"]


@parameters
class Search:
    """How updates follow each other and what is kept of them.

    Args:
        keep: ``"pareto"`` is GEPA's search: a child of a parent drawn from the front is checked on
            a few examples, validated, and joins the front. ``"trunk"`` serves the book of all
            updates in one text, whose lines are tested. By default ``"trunk"``, and ``"pareto"``
            beside what only GEPA's search can use: an ``instruction_proposer``, a selector
            of candidates or a component selector of one's own, ``gepa_kwargs``, operators that do
            not serve the book, ``children``, ``screen``, ``restart``, an embedder or threshold of
            one's own, and the code of a ``dspy.Flex``. A playbook is always a trunk.
        staleness: Update i runs on a text that is known by update i − 1 − staleness; the first of
            each predictor of a trunk also knows those of the predictors before it. 0 waits for
            every update; 1 or 2 let rollouts, reflection and validation of neighbouring updates
            overlap. Results depend on it; on the number of workers and on timing only by what the
            clock decides, such as planned sizes: with a fixed size, or with ``replay``, the same
            answers give the same program. By default 2 in a trunk, else 1; 0 beside
            ``gepa_kwargs``, an ``instruction_proposer`` or a selector of your own, which are
            written for GEPA's order: 1 or 2 are refused there.
        children: Children made of each minibatch in ``"pareto"``, each by another operator, drawn
            by the seed where there are more operators than children. By default one an operator.
        screen: Examples of its minibatch that a child of a larger minibatch runs on before its
            validation; one that they show to be worse is refused. A minibatch no larger is run
            whole and must be beaten, as in GEPA.
        weigher: Decides by the evidence which lessons of the book are served: a name, a mapping, or
            a :class:`combee_dspy.weighers.Weigher`.
        replay: The ``log_dir`` of an earlier run whose decisions that read the clock (batch sizes,
            when a budget in seconds or dollars ended it) are taken again.
        patience: Seconds that a rollout or call waits for a service that is full (HTTP 429) or
            down, from its last answer on. Then the run ends and loses nothing. A warning comes
            after 30 seconds. A run may go on with another patience.
        require_diagnosis: Whether more than one worker is refused before ``combee diagnose`` has
            said go: its ``diagnosis.json`` lies in ``log_dir`` with ``-serial`` added. Otherwise a
            wide search warns once where a serial search lies there that has not converged.
        reads: What a reader of a predictor gets of a rollout: ``"call"``, one of its calls, as in
            GEPA; ``"rollout"``, that call, what the program's other calls did, and the result, in
            3,000 estimated tokens. Of traces readers always get the latter. An
            ``instruction_proposer`` of your own gets GEPA's records.
    """

    keep: Literal["pareto", "trunk"] | None = None
    staleness: Annotated[int, Field(ge=0, le=2)] | None = None
    children: Annotated[int, Field(ge=1)] | None = None
    screen: Annotated[int, Field(ge=1)] = 8
    weigher: str | Mapping[str, Any] | Weigher = "posterior"
    replay: str | None = None
    patience: Annotated[float, Field(ge=0, allow_inf_nan=False)] = PATIENCE
    require_diagnosis: bool = False
    reads: Literal["call", "rollout"] = "call"

    def build_weigher(self) -> Weigher:
        """Return the weigher.

        Raises:
            ArgumentError: It is no weigher, or not installed.
            PluginError: It is installed but cannot be loaded.
        """
        return cast("Weigher", registry.resolve("weigher", self.weigher))


@parameters
class Validation:
    """How candidates are judged and the result is chosen.

    Args:
        draws: Answers of the task LM that one validation averages, for each example.
        calibration: Compares a judge with a trusted reference on a share of the rollouts and ends
            the run where they disagree. Needed where the metric's LM is the one that proposes.
        probe: Whether the run asks each LM for one token, and runs one row of each split through
            program and metric, before more than eight effects begin. An error there is a warning.
            Where cost or time is limited, the probe comes first and takes a validation row alone.
        warn_failures: Share of the rollouts of a split, or of the LM calls of a role, that may
            fail. From there on the run warns and supports no claim. Failures are answers that do
            not parse, programs and metrics that raise, and calls that are refused or time out.
        stop_failures: The share at which the run ends with an error that says what to look at,
            where it holds for every candidate and 8 of them have been tried; above 1 for never. A
            run that it ended goes on with another.
        rollout_seconds: Seconds that program and metric may take for one example, an hour by
            default; waits for a service that is full are left out. A rollout that takes longer has
            failed, says so, and is given up: its later LM calls are refused. So is the metric's
            feedback on one predictor, and an LM call of a strategy. ``None`` for no limit. A run
            may go on with another.
    """

    draws: Annotated[int, Field(ge=1)] = 1
    calibration: Calibration | None = None
    probe: bool = True
    warn_failures: Annotated[float, Field(gt=0)] = 0.1
    stop_failures: Annotated[float, Field(gt=0)] = 0.9
    rollout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 3600.0


@parameters
class Privacy:
    """What is written of the examples and of who ran what, and what a reflector is shown.

    ``"redacted"`` and ``"hashes"`` put marks (``[email]``, ``[phone]``, ``[card]``) for personal
    data into everything that leaves a rollout: the journal, prompts to the reflector and the
    proposer, lessons, demonstrations. The program and its metric see the rows as they are, and so
    does the task LM. Two things follow: feedback is the metric's on the whole program, never asked
    for again for one predictor, and a calibration's reference judges the answer with its marks.
    Patterns read texts, no numbers, names or images; ``docs/results/reliability.md`` measures what
    they miss. DSPy's own cache and the LM service are not ours: they hold what they are sent.

    ``"hashes"`` also writes inputs, outputs, feedback, errors and LM answers as hashes alone. Their
    key lives in the run's memory, so they tell equal from different within a run, and nobody can
    guess them. Scores, costs, times and what was learned (lessons and candidates, with
    marks) stay readable, and so do the hashes of whole rows and prompts, which have no key:
    held-out receipts need those of rows, in the project's file too (see
    :class:`~combee_dspy.Heldout`). Such a run cannot go on after it was stopped, since its answers
    are missing: its ``log_dir`` is refused. ``cache``, operators that put examples into prompts,
    and a memory, which looks lessons up by words of the rows, are refused too.

    Args:
        texts: What is kept of inputs, outputs and feedback: ``"all"``, ``"redacted"`` or
            ``"hashes"``.
        patterns: Further personal data: regular expressions by the name in their mark.
            Each is searched in every text: keep it simple enough to be fast.
        who: How the audit row of each compilation names user and host, which are personal data
            themselves: ``"name"``, ``"hash"`` (the same for the same two, and guessable from
            them) or ``"none"``.
    """

    texts: Literal["all", "redacted", "hashes"] = "all"
    patterns: Mapping[str, str] = Field(default_factory=dict)
    who: Literal["name", "hash", "none"] = "name"

    def __post_init__(self) -> None:
        if self.patterns and self.texts == "all":
            remedy = "Give texts='redacted' or 'hashes' as well."
            raise ArgumentValueError(
                "Privacy.patterns", self.patterns, "are of no use to texts='all'", remedy
            )
        for name, pattern in self.patterns.items():
            where = f"Privacy.patterns[{name!r}]"
            if not name.replace("-", "_").isidentifier():
                raise ArgumentValueError(
                    where, name, "is no name for a mark", "Use letters, digits, - and _."
                )
            try:
                if re.compile(pattern).match(""):
                    raise ArgumentValueError(
                        where, pattern, "matches the empty text", "Ask for one character or more."
                    )
            except re.error as error:
                remedy = "Write it as Python's re module reads it."
                raise ArgumentValueError(
                    where, pattern, f"is no regular expression: {error}", remedy
                ) from error


def positive(argument: str, value: object) -> int | None:
    """Return a whole number from 1, or ``None``.

    Raises:
        ArgumentError: It is something else.
    """
    if value is None:
        return None
    remedy = "Give a whole number of at least 1."
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(argument, value, "is no whole number", remedy)
    if value < 1:
        raise ArgumentValueError(argument, value, "is below 1", remedy)
    return value
