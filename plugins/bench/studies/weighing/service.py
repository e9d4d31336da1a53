"""The scripted service: one LM class for all roles, in the process."""

from __future__ import annotations

import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import dspy
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from combee_dspy.reflections import estimate_tokens
from combee_dspy.streams import derive
from studies.weighing.laws import answer, edit, learn, merge, relate, write_lessons
from studies.weighing.prompts import Prompt, read_prompt, write_answer
from studies.weighing.tasks import UNKNOWN, Laws
from studies.weighing.words import Meaning, meanings, read_case, read_lines

_MODEL = (  # a name in the price table, which DSPy otherwise searches from end to end
    "openai/gpt-4o-mini"
)
_WORDS = "most_words"
# What a judge answers that uses no field.
_UNUSABLE = {
    "silence": "",
    "prose": "Some of these lessons look alike and some may not agree; it depends on the case.",
}


class Service(dspy.LM):  # type: ignore[misc]  # dspy's class is untyped
    """An LM that does a task and all that is asked about it, by the task's laws.

    Thread-safe. Each answer depends on the seed and the prompt alone, and comes after ``wait``.

    Attributes:
        calls: Calls so far, by what was asked: ``task``, ``read``, ``propose``, ``rewrite``,
            ``merge``, ``shorten``, ``judge``.
        tokens: Estimated tokens read and written, by the same names.
    """

    def __init__(self, laws: Laws, seed: int, wait: Callable[[], None] = lambda: None) -> None:
        engine = _ScriptedEngine(laws, seed, wait)
        super().__init__(
            _MODEL,
            engine=engine,
            async_engine=_AsyncScriptedEngine(engine),
            cache=False,
            num_retries=0,
            temperature=0.0,
        )
        self.calls = engine.calls
        self.tokens = engine.tokens


class _ScriptedEngine:
    supported_params = frozenset({"temperature"})
    supports_response_schema = False

    def __init__(self, laws: Laws, seed: int, wait: Callable[[], None]) -> None:
        self._wait = wait
        self._answering = Answering(laws, seed)
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()

    def complete(self, request: Request) -> Response:
        self._wait()
        prompt = read_prompt(_text(request.system), _text(request.messages[-1].parts))
        kind, text = self._answering.reply(prompt)
        read, written = estimate_tokens(prompt.text), estimate_tokens(text)
        with self._lock:
            self.calls[kind] += 1
            self.tokens[kind] += read + written
        usage = Usage(input_tokens=read, output_tokens=written, total_tokens=read + written)
        message = Message.assistant([TextPart(text)])
        return Response(
            id=None, model=request.model, message=message, finish_reason="stop", usage=usage
        )


class _AsyncScriptedEngine:
    def __init__(self, engine: _ScriptedEngine) -> None:
        self._engine = engine
        self.supported_params = engine.supported_params
        self.supports_response_schema = False

    async def complete(self, request: Request) -> Response:
        return self._engine.complete(request)


class Answering:
    """Finds out what a prompt asks for, and answers it."""

    def __init__(self, laws: Laws, seed: int) -> None:
        self._laws = laws
        self._seed = seed

    def reply(self, prompt: Prompt) -> tuple[str, str]:
        """Return what was asked, and the answer.

        Raises:
            ValueError: The service has no law for what is asked.
        """
        if prompt.layout == "plain":
            return "probe", "OK"
        kind, law = self._law(prompt)
        if kind == "judge" and self._laws.judges in _UNUSABLE:
            return kind, _UNUSABLE[self._laws.judges]
        stream = derive(self._seed, hashlib.blake2b(prompt.text.encode()).hexdigest())
        return kind, write_answer(prompt, law(prompt, stream))

    def _law(self, prompt: Prompt) -> tuple[str, Callable[[Prompt, random.Random], dict[str, Any]]]:
        outputs, inputs = set(prompt.outputs), set(prompt.fields)
        if "code" in outputs:
            return "task", self._answer
        if "same" in outputs:
            return "judge", self._judge
        if outputs & {"lessons", "key_points"} and "examples_with_feedback" in inputs:
            return "read", self._read
        if "new_instruction" in outputs:
            return (
                ("propose", self._propose)
                if "examples_with_feedback" in inputs
                else ("rewrite", self._rewrite)
            )
        if inputs & {"lesson_lists", "summaries"}:
            return "merge", self._merge
        if "shorter_lessons" in outputs:
            return "shorten", self._shorten
        raise ValueError(
            f"no law for outputs {sorted(outputs)} from {sorted(inputs)}: write one in service.py"
        )

    def _answer(self, prompt: Prompt, stream: random.Random) -> dict[str, Any]:
        case = read_case(prompt.fields["case"])
        if case is None:
            raise ValueError(f"no case stands in {prompt.fields['case']!r}")
        # Adapters may write {"reasoning": …} too: no program of the tasks asks for it.
        return {"code": answer(case, _instruction(prompt.system), stream) or UNKNOWN}

    def _read(self, prompt: Prompt, stream: random.Random) -> dict[str, Any]:
        known = list(_instruction(prompt.fields.get("current_instruction", "")))
        lessons = learn(prompt.records(), known, self._laws, stream)
        texts = write_lessons(lessons, self._laws, stream, cites=prompt.numbered)
        most = next(
            (
                prompt.number(name)
                for name in ("most_lessons", "most_points")
                if name in prompt.fields
            ),
            None,
        )
        return {prompt.outputs[0]: _within(texts[:most], prompt.number(_WORDS))}

    def _propose(self, prompt: Prompt, stream: random.Random) -> dict[str, Any]:
        header, lines = _divided(prompt.fields["current_instruction"])
        known = [meaning for _, meaning in meanings(lines) if meaning is not None]
        lessons = learn(prompt.records(), known, self._laws, stream, proposes=True)
        written = edit(
            meanings(lines), [(one.text, one.meaning) for one in lessons], self._laws, stream
        )
        return {"new_instruction": _joined(header, written)}

    def _rewrite(self, prompt: Prompt, stream: random.Random) -> dict[str, Any]:
        header, lines = _divided(prompt.fields["current_instruction"])
        lessons = merge([prompt.items("lessons")], self._laws, stream)
        written = edit(meanings(lines), lessons, self._laws, stream)
        return {"new_instruction": _joined(header, _within(written, prompt.number(_WORDS)))}

    def _merge(self, prompt: Prompt, stream: random.Random) -> dict[str, Any]:
        name = "lesson_lists" if "lesson_lists" in prompt.fields else "summaries"
        merged = merge(prompt.items(name), self._laws, stream)
        return {"lessons": [text for text, _ in merged]}

    def _shorten(self, prompt: Prompt, stream: random.Random) -> dict[str, Any]:
        merged = merge([prompt.items("lessons")], self._laws, stream)
        return {"shorter_lessons": _within([text for text, _ in merged], prompt.number(_WORDS))}

    def _judge(self, prompt: Prompt, stream: random.Random) -> dict[str, Any]:
        numbered = [str(item).partition(". ") for item in prompt.items("lessons")]
        relations = relate(
            [(int(number), text) for number, _, text in numbered], self._laws, stream
        )
        values = {
            "same": relations.same,
            "contradictory": relations.contradictory,
            "narrower": relations.narrower,
            "empty": relations.empty,
        }
        return {name: values[name] for name in prompt.outputs}


@lru_cache(maxsize=512)
def _instruction(text: str) -> tuple[Meaning, ...]:
    return tuple(dict.fromkeys(meaning for _, meaning in read_lines(text)))


def _divided(text: str) -> tuple[str, list[str]]:
    """Return an instruction's own text, and all its lines that begin with a bullet."""
    lines = [line for line in text.splitlines() if line.strip()]
    own = [
        line
        for line in lines
        if not line.startswith("- ") and not line.rstrip().endswith("learned:")
    ]
    return "\n".join(own), [line.removeprefix("- ") for line in lines if line.startswith("- ")]


def _joined(header: str, lines: list[str]) -> str:
    return "\n".join([header, *(f"- {line}" for line in lines)])


def _within(lines: list[str], most_words: int | None) -> list[str]:
    """Return the first lines, as many as a limit on their words allows."""
    if most_words is None:
        return lines
    used = 0
    for place, line in enumerate(lines):
        used += len(line.split())
        if used > most_words:
            return lines[:place]
    return lines


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return "".join(part.text for part in value if isinstance(part, TextPart))
