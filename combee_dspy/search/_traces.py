"""Chooses the traces that a run learns from, and makes rows of them that nobody has to run."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import dspy
from pydantic_core import to_jsonable_python

from combee_dspy.evaluation import Judge
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.hashing import digest_of, row_hash
from combee_dspy.journal import JOURNAL, Reader, RunHistory, journal_file
from combee_dspy.lms.redact import make_mask
from combee_dspy.options import Privacy
from combee_dspy.rollouts import fields_with_texts
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
    as_example,
    make_matcher,
    measure_coverage,
    open_traces,
)

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
        problem = "teach a trunk, and this search keeps several texts"
        remedy = (
            "Leave out what only GEPA's search can use: Search(keep='pareto'), proposers and"
            " selectors of your own, gepa_kwargs, parts of dspy.Flex."
        )
        raise ArgumentValueError("traces", settings.keep, problem, remedy)
    selection = data.selection or Selection(perfect=settings.perfect_score)
    if isinstance(settings.metric, Judge):
        selection = replace(selection, unjudged=True)
    compared = () if data.valset is None else splits.validation
    most = _seen_before(settings.log_dir, run)
    traces = islice(open_traces(data.traces), most)
    chosen = _choose(traces, selection, student, settings, (*compared, *splits.heldout))
    try:
        chosen.selected.check(str(chosen))
    except ArgumentValueError as error:
        if not splits.train:
            raise
        logger.warning("%s The trainset teaches without them.", error)
    logger.info("%s", chosen)
    digests = {**splits.digests, "traces": digest_of(row.hash for row in chosen.rows)}
    return replace(splits, digests=digests, traces=chosen)


def _choose(
    traces: Iterable[Trace],
    selection: Selection,
    student: dspy.Module,
    settings: Settings,
    reserved: Iterable[Row],
) -> TraceRows:
    """Choose the traces that a run learns from; rows that are reserved are learned by nobody."""
    counts: Counter[str] = Counter()
    paths = {path for path, _ in student.named_predictors()}
    scrub, match = make_scrub(settings), make_matcher(student)
    compared = _Reserved(reserved, scrub)

    def teaching() -> Iterator[Trace]:
        for trace in traces:
            counts["seen"] += 1
            if compared.has(trace):
                counts["shared"] += 1
                continue
            matched = match(trace)
            # Without an instruction to edit, whole trajectories teach.
            calls = (call.predictor in paths for call in matched.calls)
            if settings.edits_instructions and not any(calls):
                counts["unmatched"] += 1
                continue
            yield matched

    selected = selection.choose(teaching(), scrub)
    own = (Candidate(settings.artifact.seed(student)).id, models_by_role(settings).get("task", ""))
    for names, count in measure_coverage(selected.traces, student).prompts.items():
        if not any(names):
            counts["nameless"] += count
        elif any(name and name != mine for name, mine in zip(names, own, strict=True)):
            counts["foreign"] += count
    return TraceRows(
        tuple(_make_row(number, item) for number, item in enumerate(selected.recordings)),
        selection,
        selected,
        **counts,
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
    """Return a function that takes keys and personal data out of traces, always."""
    privacy = settings.privacy
    if privacy.texts == "all":
        privacy = Privacy(texts="redacted")
    return Texts(privacy, make_mask([settings.reflection_lm])).scrub


class _Reserved:
    """Recognises traces of the rows that candidates are compared on. Not thread-safe.

    A trace is of a row where it carries the row's hash, or where its inputs are the row's: as
    texts, redacted or not, whatever case, space or JSON does to them. One of the two may have
    further fields, and empty ones do not count. Their names do not matter where a text that they
    share is long enough to tell rows apart. What is rewritten, or cut, and carries no hash of the
    row as it is here, is not recognised.
    """

    def __init__(self, rows: Iterable[Row], scrub: Callable[[str], str]) -> None:
        self._hashes: set[str] = set()
        self._by_longest: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
        self._by_text: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
        for row in rows:
            self._hashes.add(row.hash)
            inputs = dict(row.example.inputs().items())
            redacted = fields_with_texts(inputs, scrub)
            for fields in filter(None, map(_as_texts, (inputs, redacted))):
                self._by_longest[max(fields.values(), key=len)].append(fields)
                for text in set(fields.values()):
                    self._by_text[text].append(fields)

    def has(self, trace: Trace) -> bool:
        """Return whether a trace is of one of the rows."""
        if trace.row in self._hashes:
            return True
        fields = _as_texts(trace.inputs) if self._by_text else {}
        if not fields:
            return False
        # Of two that are one row the smaller one's longest text is in the other.
        texts = set(fields.values())
        within = (row for text in texts for row in self._by_longest.get(text, ()))
        around = self._by_text.get(max(texts, key=len), ())
        return any(_are_one(fields, row) for row in chain(within, around))


def _are_one(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Return whether the fields of one hold all of the other's."""
    few, many = sorted((first, second), key=len)
    if few.items() <= many.items():
        return True
    texts = set(few.values())
    return texts <= set(many.values()) and any(len(text) >= _TELLING for text in texts)


def _as_texts(inputs: Mapping[str, object]) -> dict[str, str]:
    """Return the inputs that are not empty, as texts that are equal where they say the same."""
    texts = {}
    for name, value in inputs.items():
        plain = to_jsonable_python(value, bytes_mode="base64", fallback=str)
        text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
        if value is not None and text:
            texts[name] = normalised(text) or text
    return texts
