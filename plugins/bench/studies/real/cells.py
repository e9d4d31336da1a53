"""One cell of the study: a search and the reading of what it chose, or one aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from combee_bench import retention
from combee_bench.endpoints import Endpoint, as_proposer, model_lm
from combee_bench.options import Count, ModelOptions, RealOptions, RetentionOptions
from combee_bench.real import METHODS, Learned, Method, Spent, count_rules, learn, prompt_of
from combee_bench.retention import RetentionRow
from combee_bench.scoring import scores_of
from combee_bench.surroundings import load_rows
from combee_dspy.artifacts import Memory
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.lessons import Book, Taught
from combee_dspy.lms import ConstrainedJSONAdapter
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive
from combee_dspy.traces import Trace
from studies.real.labels import load_labels
from studies.real.plan import PARTS, Cell

__all__ = ["Finished", "Learning", "StudyOptions", "load_study_rows", "measure"]


@parameters
class StudyOptions(ModelOptions):
    """Run the study on a real model whose plan is studies/real/README.md, or go on with it.

    Args:
        folder: Where cells.jsonl lies; the same folder goes on.
        parts: Parts, by comma, in their order.
        cells: Cells at once, each in a process of its own.
        limit: Seconds that one cell may take.
        seconds: Seconds after which no cell goes on.
        api_base: Address of an OpenAI-compatible service that has the model, or several by comma,
            which take turns.
        labels: Folder of FiNER's rows, for the part labels.
        only: Run the cells with these methods alone, by comma; for rehearsals.
        tokens: Tokens of each search in the place of the plan's; for rehearsals.
    """

    folder: Path = Path("real")
    parts: tuple[str, ...] = PARTS
    cells: Count = 1
    limit: Count = 3_600
    seconds: Count = 36_000
    labels: Path | None = None
    only: tuple[str, ...] = ()
    tokens: Count | None = None
    lm: str = "embedded"


@dataclass(frozen=True, slots=True)
class Learning:
    """What a method learned.

    Attributes:
        scores: Of each held-out row, in order.
        tokens: Of the search, by role.
        seconds: Of the search, beside other cells on one service.
        kept: Rules, written by hand, that the prompt holds.
        calls: Calls of the held-out reading.
        prompt_tokens: Tokens that those calls read.
        prompt: What the chosen program says.
    """

    scores: tuple[float, ...]
    tokens: Mapping[str, int]
    seconds: float
    kept: int
    calls: int
    prompt_tokens: int
    prompt: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A cell with what it came to: one of both, by its part."""

    cell: Cell
    date: str
    model: str
    learned: Learning | None = None
    retained: RetentionRow | None = None


def measure(cell: Cell, options: StudyOptions) -> Finished:
    """Run one cell.

    Raises:
        ArgumentValueError: The key is not set.
        OSError: The rows of ``labels`` cannot be read.
    """
    date = datetime.now(UTC).isoformat(timespec="seconds")
    model = Path(options.file.partition(",")[0]).name if options.file else str(options.lm)
    finished = Finished(cell, date, model)
    if cell.part == "retention":
        chosen = RetentionOptions(
            aggregators=(cell.method,),
            sizes=(cell.size,),
            seeds=(cell.number,),
            mixed=True,
            constrained=True,
            max_tokens=3_000,
            **_where(options),
        )
        return replace(finished, retained=next(retention.run(chosen)))
    return replace(finished, learned=_learned(cell, options))


def _where(options: ModelOptions) -> dict[str, Any]:
    return {
        name: getattr(options, name)
        for name in ("lm", "api_base", "api_key_env", "file", "sha256", "slots", "context")
    }


def _learned(cell: Cell, options: StudyOptions) -> Learning:
    rows = load_study_rows(cell, options)
    endpoint = _endpoint(cell, options)
    tokens = options.tokens or cell.tokens
    chosen = RealOptions(methods=("gepa",), tokens=tokens, **_where(options))
    learned = Learned(_written(cell, rows), {}, 0.0)
    if make := _METHODS.get(cell.method):
        logs = options.folder / "logs" / cell.name
        learned = learn(make, rows, endpoint, 0, chosen, logs)
    with endpoint.counting() as counted:
        scores = scores_of(learned.program, rows, endpoint, options.slots)
    reading = counted.tallies["task"]
    prompt = prompt_of(learned.program)
    return Learning(
        scores,
        learned.tokens,
        learned.seconds,
        count_rules(prompt, rows.lessons),
        reading.calls,
        reading.prompt_tokens,
        prompt,
    )


def load_study_rows(cell: Cell, options: StudyOptions) -> LoadedBenchmark:
    """Return the rows of a cell's task.

    Raises:
        OSError: The rows of ``labels`` cannot be read.
    """
    if cell.part in ("labels", "labels-mended"):
        return load_labels(options.labels or Path(), cell.number, 24, 12, 28)
    wide = cell.has_many_rules
    sizes = {
        "train": 2 * cell.size if wide else 24,
        "validation": 24 if wide else 12,
        "heldout": max(cell.size, 48) if wide else 24,
    }
    own = {"rules": cell.size, "choices": True, "seed": cell.number, **sizes}
    rows = load_rows("house-rules", own, **sizes)
    return _mislabelled(rows, cell.number) if cell.part.endswith("wrong") else rows


def _mislabelled(rows: LoadedBenchmark, number: int) -> LoadedBenchmark:
    """Return the rows with a fifth of the training labels wrong; their feedback says the same."""
    draw = derive(number, "wrong labels")
    examples = list(rows.train.examples)
    codes = sorted({example.answer for example in examples})
    for place in draw.sample(range(len(examples)), round(len(examples) / 5)):
        example = examples[place]
        wrong = draw.choice([code for code in codes if code != example.answer])
        rule = example.rule.replace(example.answer, wrong)
        examples[place] = example.copy(answer=wrong, rule=rule)
    return replace(rows, train=replace(rows.train, examples=tuple(examples)))


def _endpoint(cell: Cell, options: StudyOptions) -> Endpoint:
    """Ask a service as the embedded model is asked: greedily, held to a JSON schema."""
    where: dict[str, Any] = {"slots": options.slots}
    if options.lm == "embedded":
        file = options.file.split(",") if options.file else None
        where |= {"file": file, "sha256": options.sha256, "context": options.context}
    else:
        where |= {"api_base": options.api_base, "api_key_env": options.api_key_env}
    where["max_tokens"] = 1_500 if cell.has_many_rules else 800
    name = str(options.lm)
    task, _ = model_lm(name, temperature=0.0, **where)
    # What DSPy's page on GEPA advises for the LM that reflects.
    warm = 1.0 if cell.method == "gepa-sampling" else 0.0
    writer, _ = model_lm(name, temperature=warm, **where)
    return Endpoint(task, as_proposer(writer), task, adapter=ConstrainedJSONAdapter())


def _written(cell: Cell, rows: LoadedBenchmark) -> dspy.Module:
    """Return the program as it is, or with all lessons that were written by hand."""
    program = rows.program()
    text = rows.signature.instructions
    if cell.method == "nearest":
        memory = Memory(k=3)
        book = Book().add([Taught(lesson) for lesson in rows.lessons], born=0)
        return memory.build(program, {"self": memory.serve(text, book)})
    if cell.method == "ceiling":
        lessons = "\n".join([text, *(f"- {lesson}" for lesson in rows.lessons)])
        return dspy.Predict(rows.signature.with_instructions(lessons))
    return program


@dataclass(frozen=True)
class _FromTraces:
    """Answers each training row once, and learns from those traces alone.

    With ``validated`` the validation rows decide about what was learned, else nothing is run.
    """

    rows: LoadedBenchmark
    lm: dspy.LM
    seed: int
    options: RealOptions
    spent: Spent
    log_dir: str
    validated: bool

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: Sequence[dspy.Example],
        valset: Sequence[dspy.Example],
    ) -> dspy.Module:
        """Return what was learned; the tokens of collecting are the task's."""
        answered = dspy.Evaluate(
            devset=list(trainset), metric=self._score, num_threads=self.options.slots
        )(student).results
        traces = [self._trace(number, *answer[:2]) for number, answer in enumerate(answered)]
        options = replace(self.options, tokens=self.options.tokens - self.spent())
        search = _SEARCHES["combee"](
            self.rows, self.lm, self.seed, options, self.spent, self.log_dir
        )
        splits = {"valset": list(valset)} if self.validated else {}
        learned: dspy.Module = search.compile(student, traces=traces, **splits)
        return learned

    def _score(self, gold: dspy.Example, pred: dspy.Prediction) -> float:
        return float(self.rows.metric(gold, pred).score)

    def _trace(self, number: int, example: dspy.Example, answer: dspy.Prediction) -> Trace:
        judged = self.rows.metric(example, answer)
        outputs = {"answer": getattr(answer, "answer", None)}
        return Trace(
            str(number),
            dict(example.inputs()),
            outputs if outputs["answer"] is not None else None,
            score=judged.score,
            feedback=judged.feedback,
        )


_SEARCHES = {name: make for name, (_, make) in METHODS.items() if make is not None}
_METHODS: Mapping[str, Method] = {
    **_SEARCHES,
    "traces": partial(_FromTraces, validated=False),
    "traces-validated": partial(_FromTraces, validated=True),
    "gepa-sampling": _SEARCHES["gepa"],
}
