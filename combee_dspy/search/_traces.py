"""The traces that a run learns from, as rows that nobody has to run."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import dspy
from pydantic_core import to_jsonable_python

from combee_dspy.evaluation import Judge
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.hashing import digest_of, row_hash
from combee_dspy.journal import JOURNAL, Reader, RunHistory, journal_file
from combee_dspy.lms.redact import forms_of, mask, secret_variables, secrets_of
from combee_dspy.options import Privacy
from combee_dspy.rollouts import with_texts
from combee_dspy.search._candidates import Candidate, Row, Splits, TraceRows
from combee_dspy.search._describe import models_by_role
from combee_dspy.search._privacy import Texts
from combee_dspy.search._splits import Data
from combee_dspy.settings import Settings
from combee_dspy.texts import normalised
from combee_dspy.traces import (
    Recording,
    Selection,
    Trace,
    Traces,
    as_example,
    make_matcher,
    measure_coverage,
    open_traces,
)

__all__ = ["add_traces", "make_scrub"]

_Values: TypeAlias = frozenset[tuple[str, str]]

# Characters from which a text is taken for one row's, whatever its field is called.
_TELLING = 40

logger = logging.getLogger("combee_dspy")


def add_traces(
    splits: Splits, data: Data, student: dspy.Module, settings: Settings, run: str
) -> Splits:
    """Return the data of a run with the traces that it learns from.

    A run of this name that began and has not ended goes on with the traces that its source held
    then: what a source has got since is left to the next run.

    Raises:
        ArgumentError: They cannot be used, would have to be compared with, or teach nothing where
            there is no trainset; where there is one, a warning says so.
        TraceSourceError: They cannot be read.
    """
    if data.traces is None:
        return splits
    if settings.keep != "trunk":
        problem = "teach one text that grows, and this search keeps several"
        remedy = (
            "Leave out what only GEPA's search can use: Search(keep='pareto'), proposers and"
            " selectors of your own, gepa_kwargs, parts of dspy.Flex."
        )
        raise ArgumentValueError("traces", settings.keep, problem, remedy)
    selection = data.selection or Selection(perfect=settings.perfect_score)
    if isinstance(settings.metric, Judge):
        selection = replace(selection, unjudged=True)
    compared = () if data.valset is None else splits.validation
    chosen = _read_traces(
        data.traces,
        selection,
        student,
        (*compared, *splits.heldout),
        make_scrub(settings),
        by_call=settings.edits_instructions,
        most=_seen_before(settings.log_dir, run),
    )
    own = (Candidate(settings.artifact.seed(student)).id, models_by_role(settings).get("task", ""))
    chosen = _with_answerers(chosen, own)
    try:
        chosen.selected.check(str(chosen))
    except ArgumentValueError as error:
        if not splits.train:
            raise
        logger.warning("%s The trainset teaches without them.", error)
    logger.info("%s", chosen)
    digests = {**splits.digests, "traces": digest_of(row.hash for row in chosen.rows)}
    return replace(splits, digests=digests, traces=chosen)


def _with_answerers(chosen: TraceRows, own: tuple[str, str]) -> TraceRows:
    """Return traces with how many of them are not known to be the own prompt's and model's."""
    counts: Counter[str] = Counter()
    for names, count in chosen.coverage.prompts.items():
        if not any(names):
            counts["nameless"] += count
        elif any(name and name != mine for name, mine in zip(names, own, strict=True)):
            counts["foreign"] += count
    return replace(chosen, foreign=counts["foreign"], nameless=counts["nameless"])


def _read_traces(
    traces: Traces,
    selection: Selection,
    student: dspy.Module,
    reserved: Iterable[Row],
    scrub: Callable[[str], str],
    *,
    by_call: bool,
    most: int | None,
) -> TraceRows:
    """Choose the traces that a run learns from.

    Args:
        traces: A source, or any iterable of traces.
        selection: Which are chosen.
        student: The program; calls are matched to its predictors.
        reserved: Rows that candidates are compared on: nothing is learned from them.
        scrub: Takes out of a text what no reader may see.
        by_call: Whether only calls of the program's predictors teach, and not whole trajectories.
        most: How many are read at most; ``None`` for all.

    Raises:
        ArgumentError: The traces cannot be used.
        TraceSourceError: They cannot be read.
    """
    counts: Counter[str] = Counter()
    paths = {path for path, _ in student.named_predictors()}
    compared, match = _Reserved(reserved, scrub), make_matcher(student)

    def teaching() -> Iterator[Trace]:
        for trace in islice(open_traces(traces), most):
            counts["seen"] += 1
            if compared.has(trace):
                counts["shared"] += 1
                continue
            matched = match(trace)
            if by_call and not any(call.predictor in paths for call in matched.calls):
                counts["unmatched"] += 1
                continue
            yield matched

    selected = selection.choose(teaching(), scrub)
    rows = tuple(_make_row(number, item) for number, item in enumerate(selected.recordings))
    return TraceRows(
        rows,
        selection,
        selected,
        measure_coverage(selected.traces, student),
        counts["seen"],
        counts["shared"],
        counts["unmatched"],
    )


def _seen_before(log_dir: str | None, run: str) -> int | None:
    """Return how many traces a run that goes on saw when it began; ``None`` where none does."""
    if log_dir is None or not (Path(log_dir) / JOURNAL).is_file():
        return None
    with Reader(journal_file(log_dir)) as reader:
        begun = reader.rows("SELECT id FROM run WHERE name = ? AND state != 'finished'", (run,))
        return RunHistory(reader, begun[0]["id"]).about.traces_seen if begun else None


def _make_row(number: int, recording: Recording) -> Row:
    trace = recording.redacted
    # Where it lies at its source, and what it is called there, may change.
    content = [trace.id, trace.inputs, trace.outputs, trace.calls, trace.expected]
    verdict = [trace.score, trace.feedback, trace.error]
    digest = row_hash({"content": content, "verdict": verdict})
    return Row("train", -1 - number, as_example(trace), digest, recording)


def make_scrub(settings: Settings) -> Callable[[str], str]:
    """Return what takes keys and personal data out of traces, whatever is done to other texts."""
    privacy, lm = settings.privacy, settings.reflection_lm
    if privacy.texts == "all":
        privacy = Privacy(texts="redacted")
    secrets = forms_of({*(secrets_of(lm) if lm is not None else ()), *secret_variables()})
    return Texts(privacy, lambda text: mask(text, secrets)).scrub


class _Reserved:
    """Rows that nothing is learned from, in whatever form traces hold them. Not thread-safe.

    A trace is of a row where it carries the row's hash, or where its inputs are the row's: as
    texts, redacted or not, whatever case, space or JSON does to them. One of the two may have
    further fields, and empty ones do not count. Their names do not matter where a text that they
    share is long enough to tell rows apart. What is rewritten, or cut, and carries no hash of the
    row as it is here, is not recognised.
    """

    def __init__(self, rows: Iterable[Row], scrub: Callable[[str], str]) -> None:
        self._hashes: set[str] = set()
        self._inputs: defaultdict[frozenset[str], list[Mapping[str, str]]] = defaultdict(list)
        self._seen: dict[tuple[frozenset[str], frozenset[str]], set[_Values]] = {}
        self._by_text: defaultdict[str, list[frozenset[str]]] = defaultdict(list)
        for row in rows:
            self._hashes.add(row.hash)
            inputs = dict(row.example.inputs().items())
            redacted = {name: with_texts(value, scrub) for name, value in inputs.items()}
            for fields in map(_as_texts, (inputs, redacted)):
                self._inputs[frozenset(fields)].append(fields)
                texts = frozenset(fields.values())
                for text in _long(texts):
                    self._by_text[text].append(texts)

    def has(self, trace: Trace) -> bool:
        """Return whether a trace is of one of the rows."""
        fields = _as_texts(trace.inputs) if self._inputs else {}
        return (
            trace.row in self._hashes
            or any(
                _values(fields, common) in self._values_of(names, common)
                for names in self._inputs
                if (common := names.intersection(fields)) and common in (names, fields.keys())
            )
            or self._has_renamed(frozenset(fields.values()))
        )

    def _has_renamed(self, texts: frozenset[str]) -> bool:
        return any(
            texts <= row or row <= texts
            for text in _long(texts)
            for row in self._by_text.get(text, ())
        )

    def _values_of(self, names: frozenset[str], common: frozenset[str]) -> set[_Values]:
        """Return what rows that have some fields hold in those that a trace has too."""
        if (names, common) not in self._seen:
            values = {_values(fields, common) for fields in self._inputs[names]}
            self._seen[names, common] = values
        return self._seen[names, common]


def _long(texts: Iterable[str]) -> Iterator[str]:
    return (text for text in texts if len(text) >= _TELLING)


def _values(fields: Mapping[str, str], names: frozenset[str]) -> _Values:
    return frozenset((name, fields[name]) for name in names)


def _as_texts(inputs: Mapping[str, object]) -> dict[str, str]:
    """Return the inputs that are not empty, as texts that are equal where they say the same."""
    texts = {}
    for name, value in inputs.items():
        plain = to_jsonable_python(value, bytes_mode="base64", fallback=str)
        text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
        if value is not None and text:
            texts[name] = normalised(text) or text
    return texts
