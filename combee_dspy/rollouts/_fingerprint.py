"""Keys of the evaluation cache: what a rollout's result depends on, hashed.

A program counts with its code, the texts, field descriptions and demonstrations
of every predictor, its tools and whatever else it holds. An LM counts with its
class, model, decoding parameters and endpoint, never with its credentials; an
LM whose ``cache_identity`` is a text stands at the endpoint of that name,
wherever its port is. The versions of Python and DSPy are part of every key,
since code counts as compiled.

Functions here may be called from any thread while what they describe is not
being changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.lms.redact import SECRET_NAME, mask
from combee_dspy.rollouts._describe import Describer

__all__ = [
    "Fingerprints",
    "RolloutKey",
    "call_fingerprint",
    "program_fingerprint",
    "scorer_fingerprint",
    "setting_fingerprint",
]

logger = logging.getLogger("combee_dspy")

_FORMAT = 1
_PREDICTOR = frozenset({"config", "demos", "lm", "signature", "stage", "traces", "train"})
_ENDPOINT = frozenset({"api_base", "base_url", "api_version", "headers", "extra_headers", "default_headers"})


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """What one rollout's result depends on.

    Attributes:
        program: Fingerprint of the program, its own LMs included.
        setting: Fingerprint of DSPy's settings, the scorer and the failure score.
        row: The example's row hash.
        inputs: Which of its fields are inputs, sorted, comma-separated.
        replicate: 0 for the first draw, then 1, 2, …
    """

    program: str
    setting: str
    row: str
    inputs: str = ""
    replicate: int = 0

    @property
    def digest(self) -> str:
        """SHA-256, 64 hex digits."""
        parts = (self.program, self.setting, self.row, self.inputs, str(self.replicate))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def program_fingerprint(program: dspy.Module) -> str:
    """Return a hash of a program's code, texts, demonstrations, tools and own LMs."""
    return _digest("program", _Programs().describe(program))


def scorer_fingerprint(metric: object) -> str:
    """Return a hash of a metric's code, parameters and, where it is an object, state."""
    return _digest("scorer", _Programs().describe(metric))


def setting_fingerprint(scorer: str, failure_score: float) -> str:
    """Return a hash of what DSPy's settings add to a program, with the scorer.

    Args:
        scorer: From :func:`scorer_fingerprint`.
        failure_score: The score of a rollout that failed.
    """
    settings = dspy.settings
    found = _Programs().describe([settings.lm, settings.adapter, settings.get("rm")])
    return _digest("setting", [found, scorer, repr(float(failure_score))])


class Fingerprints:
    """The keys of one run's rollouts; each program and the scorer are described once.

    Not thread-safe.

    Args:
        metric: GEPA's metric.
        failure_score: The score of a rollout that failed.
    """

    def __init__(self, metric: object, failure_score: float) -> None:
        self._metric = metric
        self._failure_score = failure_score
        self._scorer = ""
        self._setting = ""
        self._programs: dict[str, str] = {}

    def read_settings(self) -> None:
        """Read DSPy's settings as they are now; call it before keys are asked for."""
        self._scorer = self._scorer or self._told(lambda: scorer_fingerprint(self._metric))
        self._setting = self._told(lambda: setting_fingerprint(self._scorer, self._failure_score))

    def rescore(self, metric: object) -> None:
        """Describe the metric anew: it has changed, or is another from now on. Programs stay as described."""
        self._metric, self._scorer = metric, ""

    def knows(self, identity: str) -> bool:
        """Whether the program of this name has been described."""
        return identity in self._programs

    def of_program(self, identity: str, program: dspy.Module) -> None:
        """Describe a program, unless one of this name was described before."""
        if identity not in self._programs:
            self._programs[identity] = self._told(lambda: program_fingerprint(program))

    def key(self, identity: str, row: str, example: dspy.Example, replicate: int) -> RolloutKey:
        """Return the key of a rollout of a program that was described before."""
        return RolloutKey(self._programs[identity], self._setting, row, _inputs(example), replicate)

    @staticmethod
    def _told(describe: Callable[[], str]) -> str:
        try:
            return describe()
        except Exception as error:  # noqa: BLE001 - said: what cannot be described is like nothing else
            logger.warning("What a rollout depends on could not be read; other runs share none of it: %r", error)
            return secrets.token_hex(32)


def _inputs(example: Any) -> str:
    try:
        return ",".join(sorted(example.inputs().keys()))
    except ValueError:
        # Nobody said which: the rollout will fail, and say so.
        return ""


def call_fingerprint(
    signature: Any, inputs: Mapping[str, Any], lm: object, adapter: object, temperature: float | None = None
) -> str:
    """Return a hash of one request of a strategy.

    Args:
        signature: What is asked.
        inputs: Values of its input fields.
        lm: Who is asked.
        adapter: How the request is written and the answer read.
        temperature: The temperature, where it is not the LM's own.
    """
    return _digest("call", _Programs().describe([signature, dict(inputs), lm, adapter, temperature]))


def _digest(kind: str, described: Any) -> str:
    made_by = [kind, _FORMAT, dspy.__version__, list(sys.version_info[:2])]
    text = json.dumps([made_by, described], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class _Programs(Describer):
    """Knows DSPy's types as well."""

    def _said(self, value: object) -> str | None:  # type: ignore[override]  # the base needs no instance
        # A field of an example and an LM's endpoint have other meanings than the whole object's.
        return None if isinstance(value, (dspy.BaseLM, dspy.Example)) else Describer._said(value)

    def _special(self, value: object, path: tuple[int, ...]) -> Any:
        if isinstance(value, dspy.BaseLM):
            return self._lm(value, path)
        if isinstance(value, dspy.Predict):
            return self._predictor(value, path)
        if isinstance(value, dspy.Example):
            return {"$example": type(value).__name__, "fields": self._pairs(dict(value.items(include_dspy=True)), path)}
        if isinstance(value, type) and issubclass(value, dspy.Signature):
            return self._signature(value, path)
        return None

    def _lm(self, lm: Any, path: tuple[int, ...]) -> Any:
        kwargs = {name: item for name, item in (getattr(lm, "kwargs", None) or {}).items() if item is not None}
        where = {name: kwargs.pop(name) for name in list(kwargs) if name in _ENDPOINT}
        given = {name: item for name, item in kwargs.items() if not SECRET_NAME.search(str(name))}
        said = Describer._said(lm)
        return {
            "$lm": self._any(type(lm), path),
            "model": str(getattr(lm, "model", "")),
            "type": str(getattr(lm, "model_type", "")),
            "kwargs": self._pairs(given, path),
            "where": _endpoint(where) if said is None else said,
            "engine": None if said is not None else self._engine(lm, path),
        }

    def _engine(self, lm: Any, path: tuple[int, ...]) -> Any:
        engine = getattr(lm, "engine", None)
        if engine is None or isinstance(engine, str):
            return engine
        dump = getattr(engine, "dump_state", None)
        try:
            # DSPy asks of a custom engine that this holds what makes it, and no secret.
            state = dump() if callable(dump) else None
        except Exception:  # noqa: BLE001 - an engine that cannot be saved is told by its class
            state = None
        return [self._any(type(engine), path), self._any(state, path)]

    def _predictor(self, predictor: Any, path: tuple[int, ...]) -> Any:
        others = {name: item for name, item in vars(predictor).items() if name not in _PREDICTOR}
        config = {name: item for name, item in predictor.config.items() if not SECRET_NAME.search(name)}
        return {
            "$predictor": self._any(type(predictor), path),
            "signature": self._signature(predictor.signature, path),
            "config": self._pairs(config, path),
            "demos": [self._pairs(dict(demo.items()), path) for demo in predictor.demos],
            "lm": self._any(predictor.lm, path),
            "state": self._state(others, path),
        }

    def _signature(self, signature: Any, path: tuple[int, ...]) -> Any:
        fields = []
        for name, field in signature.fields.items():
            extra = field.json_schema_extra
            fields.append(
                [name, self._any(field.annotation, path), self._any(extra, path), self._any(field.metadata, path)]
            )
        return {"$signature": signature.instructions, "fields": fields}


def _endpoint(where: Mapping[str, Any]) -> list[list[str]]:
    # Headers may all be credentials: none counts. A URL may carry one.
    return sorted([name, mask(str(item))] for name, item in where.items() if "header" not in name)
