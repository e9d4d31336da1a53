"""Strategies by name: built in, or published by any distribution as entry points.

One entry-point group per kind, ``combee_dspy.<kind>s``, loaded on first use.
A plugin that cannot be loaded is reported by :func:`installed` and raises
:class:`~combee_dspy.exceptions.PluginError` when it is asked for; it never
breaks ``import combee_dspy`` nor another strategy.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from operator import attrgetter
from typing import Any

from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    PluginError,
    UnknownStrategyError,
)
from combee_dspy.strategies import Strategy

__all__ = [
    "KINDS",
    "Entry",
    "Spec",
    "build",
    "extension",
    "find",
    "installed",
    "names",
    "published",
    "resolve",
    "survey",
]

DISTRIBUTION = "combee-dspy"

KINDS: Mapping[str, str] = {
    "aggregator": "combee_dspy.aggregators:Aggregator",
    "operator": "combee_dspy.operators:Operator",
    "controller": "combee_dspy.controllers:BatchController",
    "executor": "combee_dspy.rollouts:Executor",
    "benchmark": "combee_dspy.benchmarks:Benchmark",
    "tracker": "combee_dspy.tracking:Tracker",
    "stopping": "combee_dspy.stopping:StoppingRule",
    "embedder": "combee_dspy.diversity:Embedder",
    "artifact": "combee_dspy.artifacts:Artifact",
    "weigher": "combee_dspy.weighers:Weigher",
    "retriever": "combee_dspy.memory:Retriever",
    "source": "combee_dspy.traces:TraceSource",
}
"""Strategy kinds and the base class of each, as ``module:attribute``."""

# By name, in the module of the kind's base class.
_BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "aggregator": {
        "parallel-scan": "ParallelScan",
        "reference-scan": "ReferenceScan",
        "single-call": "SingleCall",
        "union": "Union",
    },
    "operator": {
        "insert": "Insert",
        "rephrase": "Rephrase",
        "reorder": "Reorder",
        "rewrite": "Rewrite",
        "few-shot-swap": "FewShotSwap",
        "instruction-channel": "InstructionChannel",
    },
    "controller": {"power-law": "PowerLaw", "static": "Static"},
    "executor": {"asyncio": "Asyncio", "threads": "Threads"},
    "benchmark": {
        "finer": "Finer",
        "formula": "Formula",
        "formula-mini": "FormulaMini",
        "house-rules": "HouseRules",
        "hub": "Hub",
    },
    "tracker": {"mlflow": "MLflowTracker", "progress": "Progress"},
    "stopping": {
        "budget": "Budget",
        "any-of": "AnyOf",
        "all-of": "AllOf",
        "target": "Target",
        "patience": "Patience",
    },
    "embedder": {"char-ngrams": "CharNgrams", "dspy": "DSPyEmbedder"},
    "artifact": {
        "instruction": "Instruction",
        "memory": "Memory",
        "playbook": "Playbook",
        "skill": "Skill",
    },
    "weigher": {"posterior": "Posterior", "trusting": "Trusting"},
    "retriever": {"bm25": "BM25", "embeddings": "Embeddings"},
    "source": {
        "hugging-face": "HuggingFace",
        "journal": "JournalTraces",
        "json-lines": "JsonLines",
        "mlflow": "MLflowTraces",
        "otlp": "OtlpFile",
    },
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One strategy or command that is there, loadable or not.

    Attributes:
        kind: A strategy kind, or another group of entry points.
        name: The name it is published under.
        target: ``module:attribute``.
        distribution: The distribution that publishes it, in ``version``.
        problem: Why it cannot be used, else ``None``. Filled by :func:`survey`.
        does: What it does, in a sentence. Filled by :func:`survey`.
    """

    kind: str
    name: str
    target: str
    distribution: str
    version: str = ""
    problem: str | None = None
    does: str = ""

    def load(self) -> Any:
        """Import it.

        Raises:
            PluginError: It cannot be imported.
        """
        try:
            return _load(self.target)
        except Exception as error:
            raise self.error(f"{type(error).__name__}: {error}") from error

    def error(self, reason: str) -> PluginError:
        """Return the error that says why it cannot be used."""
        return PluginError(self.kind, self.name, self.distribution, reason)


@dataclass(frozen=True, slots=True)
class Spec:
    """A strategy as plain data: enough to build it again.

    A strategy among its parameters is a ``Spec`` too.

    Example:
        >>> from combee_dspy.aggregators import Union
        >>> from combee_dspy.registry import Spec
        >>> Spec.of(Union(fan_in=8)).build() == Union(fan_in=8)
        True
    """

    kind: str
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, strategy: Strategy) -> Spec:
        """Return the spec of a strategy, nested strategies included."""
        return cls(
            strategy.kind,
            strategy.name,
            {key: _frozen(value) for key, value in strategy.params().items()},
        )

    def build(self) -> Strategy:
        """Build the strategy. Raises what :func:`build` raises."""
        params = {key: _thawed(value) for key, value in self.params.items()}
        return build(self.kind, self.name, params)

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON data that :meth:`from_dict` reads back."""
        params = {key: _to_data(value) for key, value in self.params.items()}
        return {"kind": self.kind, "name": self.name, "params": params}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Spec:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ArgumentValueError: ``kind`` or ``name`` is missing, or ``params`` are no mapping.
        """
        kind, name, params = data.get("kind"), data.get("name"), data.get("params") or {}
        if not (isinstance(kind, str) and isinstance(name, str) and isinstance(params, Mapping)):
            remedy = "Give {'kind': …, 'name': …, 'params': {…}}."
            raise ArgumentValueError("spec", data, "is no spec of a strategy", remedy)
        return cls(kind, name, {key: _from_data(value) for key, value in params.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_frozen, value))
    return Spec.of(value) if isinstance(value, Strategy) else value


def _thawed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_thawed, value))
    return value.build() if isinstance(value, Spec) else value


def _to_data(value: object) -> object:
    if isinstance(value, (list, tuple)):
        items = list(map(_to_data, value))
        # JSON has one kind of list: without the mark a tuple would come back as another value.
        return {"$tuple": items} if isinstance(value, tuple) else items
    return {"$spec": value.to_dict()} if isinstance(value, Spec) else value


def _from_data(value: object) -> object:
    if isinstance(value, list):
        return list(map(_from_data, value))
    match value:
        case {"$spec": data, **more} if not more:
            return Spec.from_dict(data)
        case {"$tuple": items, **more} if not more:
            return tuple(map(_from_data, items))
    return value


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return attrgetter(attribute)(importlib.import_module(module))


def published(kind: str, group: str) -> Iterator[Entry]:
    """Yield what installed distributions publish in a group of entry points, loading nothing."""
    for point in metadata.entry_points(group=group):
        name, version = (point.dist.name, point.dist.version) if point.dist else ("unknown", "")
        yield Entry(kind, point.name, point.value, name, version)


def _entries(kind: str) -> Iterator[Entry]:
    """Yield the strategies of a kind, our own first."""
    if kind not in KINDS:
        remedy = f"Kinds: {', '.join(sorted(KINDS))}."
        raise ArgumentValueError("kind", kind, "is no strategy kind", remedy)
    module = KINDS[kind].partition(":")[0]
    for name, attribute in _BUILT_IN[kind].items():
        yield Entry(kind, name, f"{module}:{attribute}", DISTRIBUTION, _own_version())
    yield from published(kind, f"combee_dspy.{kind}s")


def _class_of(entry: Entry) -> type[Strategy]:
    """Load an entry's class, checked against its kind's base.

    Raises:
        PluginError: It cannot be imported, or is not a class of that kind.
    """
    cls, base = entry.load(), KINDS[entry.kind]
    if not (isinstance(cls, type) and issubclass(cls, _load(base))):
        raise entry.error(f"{entry.target} is not a subclass of {base.replace(':', '.')}")
    if (name := getattr(cls, "name", None)) != entry.name:
        must = "the entry point and `name` must agree"
        raise entry.error(f"{entry.target} calls itself {name!r}; {must}")
    return cls


def names(kind: str) -> tuple[str, ...]:
    """Return the names published for a kind, sorted, loading nothing.

    Raises:
        ArgumentValueError: ``kind`` is no strategy kind.
    """
    return tuple(sorted({entry.name for entry in _entries(kind)}))


def find(kind: str, name: str) -> type[Strategy]:
    """Return the class published under a kind and name.

    A name published twice belongs to the first: built-in strategies come
    before plugins, so that no plugin can stand in for one unseen.

    Raises:
        ArgumentValueError: ``kind`` is no strategy kind.
        UnknownStrategyError: Nothing is published under this name.
        PluginError: It is published but cannot be loaded.
    """
    for entry in _entries(kind):
        if entry.name == name:
            return _class_of(entry)
    raise UnknownStrategyError(kind, name, names(kind))


def extension(group: str, name: str) -> object:
    """Return what another distribution publishes that is no strategy; ``None`` where none does.

    Raises:
        PluginError: It is published but cannot be loaded.
    """
    entries = (entry for entry in published(group, f"combee_dspy.{group}") if entry.name == name)
    return next((entry.load() for entry in entries), None)


def build(kind: str, name: str, params: object = None) -> Strategy:
    """Build a strategy by name, with a mapping of parameters. Raises what :func:`find` does.

    Raises:
        ArgumentTypeError: ``params`` do not fit its constructor.
    """
    cls, arguments = find(kind, name), params or {}
    if not isinstance(arguments, Mapping):
        remedy = "Give each parameter with its name."
        raise ArgumentTypeError(f"{kind}.params", arguments, "are no mapping", remedy)
    try:
        return cls(**arguments)
    except ArgumentTypeError:
        raise  # it names the parameter
    except TypeError as error:
        remedy = f"See help({cls.__module__}.{cls.__qualname__}) for its parameters."
        value = {name: dict(arguments)}
        raise ArgumentTypeError(kind, value, f"cannot be built: {error}", remedy) from error


def resolve(kind: str, value: object) -> Strategy:
    """Return the strategy that a user meant.

    It may be given as a name, a strategy of that kind, a :class:`Spec`, or a mapping
    ``{"name": …, "params": {…}}`` as a YAML file has it. Raises what :func:`build` does.

    Raises:
        ArgumentTypeError: ``value`` is none of these, or a strategy of another kind.
    """
    if isinstance(value, str):
        return build(kind, value)
    if isinstance(value, Spec) and value.kind == kind:
        return value.build()
    if isinstance(value, Mapping) and isinstance(name := value.get("name"), str):
        if unknown := sorted(map(str, value.keys() - {"name", "params"})):
            problem = f"has unknown keys {', '.join(unknown)}"
            remedy = f"Put parameters under params: {{'name': {name!r}, 'params': {{…}}}}."
            raise ArgumentValueError(kind, dict(value), problem, remedy)
        return build(kind, name, value.get("params"))
    base: type[Strategy] = _load(KINDS[kind])
    if isinstance(value, base):
        return value
    some = f"one of the names {', '.join(names(kind))}"
    remedy = f"Give {some}, or an object of a subclass of {base.__name__}."
    raise ArgumentTypeError(kind, value, f"is no {kind}", remedy)


def installed() -> tuple[Entry, ...]:
    """Return every strategy that is there, with what it does, or what is wrong with it.

    Loads all of them. Never raises for a broken plugin: its ``problem`` says why.
    """

    def describe(entry: Entry) -> str:
        text = inspect.getdoc(_class_of(entry)) or ""
        return " ".join(text.partition("\n\n")[0].replace("``", "").split())

    return tuple(entry for kind in KINDS for entry in survey(_entries(kind), describe))


def survey(
    entries: Iterable[Entry], describe: Callable[[Entry], str], taken: Mapping[str, str] = {}
) -> Iterator[Entry]:
    """Yield entries with what they do, or what is wrong with them.

    A name that an earlier entry has is a problem too.

    Args:
        entries: What is published.
        describe: Returns what an entry does. May raise a :class:`PluginError`.
        taken: Names that are taken before the first entry, with their distributions.
    """
    owners = dict(taken)
    for entry in entries:
        if entry.name in owners:
            problem = f"the name is already taken by distribution {owners[entry.name]!r}"
            yield replace(entry, problem=problem)
            continue
        owners[entry.name] = entry.distribution
        try:
            yield replace(entry, does=describe(entry))
        except PluginError as error:
            yield replace(entry, problem=error.reason)


@functools.cache
def _own_version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
