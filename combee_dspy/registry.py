"""Strategies by name: built in, or published by any distribution as entry points.

One entry-point group per kind, ``combee_dspy.<kind>s``, loaded on first use.
A plugin that cannot be loaded is reported by :func:`installed` and raises
:class:`~combee_dspy.exceptions.PluginError` when it is asked for; it never
breaks ``import combee_dspy`` nor another strategy.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, cast

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, PluginError, UnknownStrategyError
from combee_dspy.strategies import Strategy

__all__ = ["KINDS", "Entry", "Spec", "build", "find", "installed", "names", "resolve"]

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
}
"""Strategy kinds and the base class of each, as ``module:attribute``."""

_BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "aggregator": {
        "parallel-scan": "combee_dspy.aggregators:ParallelScan",
        "single-call": "combee_dspy.aggregators:SingleCall",
        "summarize": "combee_dspy.aggregators:Summarize",
        "top-k": "combee_dspy.aggregators:TopK",
        "union": "combee_dspy.aggregators:Union",
    },
    "operator": {
        "insert": "combee_dspy.operators:Insert",
        "delete": "combee_dspy.operators:Delete",
        "rephrase": "combee_dspy.operators:Rephrase",
        "reorder": "combee_dspy.operators:Reorder",
        "rewrite": "combee_dspy.operators:Rewrite",
        "few-shot-swap": "combee_dspy.operators:FewShotSwap",
        "instruction-channel": "combee_dspy.operators:InstructionChannel",
    },
    "controller": {
        "power-law": "combee_dspy.controllers:PowerLaw",
        "static": "combee_dspy.controllers:Static",
    },
    "executor": {"asyncio": "combee_dspy.rollouts:Asyncio", "threads": "combee_dspy.rollouts:Threads"},
    "benchmark": {
        "finer": "combee_dspy.benchmarks:Finer",
        "formula": "combee_dspy.benchmarks:Formula",
        "formula-mini": "combee_dspy.benchmarks:FormulaMini",
    },
    "tracker": {"mlflow": "combee_dspy.tracking:MLflowTracker", "progress": "combee_dspy.tracking:Progress"},
    "stopping": {
        "budget": "combee_dspy.stopping:Budget",
        "any-of": "combee_dspy.stopping:AnyOf",
        "all-of": "combee_dspy.stopping:AllOf",
        "target": "combee_dspy.stopping:Target",
        "patience": "combee_dspy.stopping:Patience",
    },
    "embedder": {
        "char-ngrams": "combee_dspy.diversity:CharNgrams",
        "dspy": "combee_dspy.diversity:DSPyEmbedder",
    },
    "artifact": {
        "instruction": "combee_dspy.artifacts:Instruction",
        "playbook": "combee_dspy.artifacts:Playbook",
    },
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One strategy that is there, loadable or not.

    Attributes:
        kind: The strategy kind.
        name: The name it is published under.
        target: ``module:attribute``.
        distribution: The distribution that publishes it.
        version: That distribution's version.
        problem: Why it cannot be used, else ``None``. Filled by :func:`installed`.
    """

    kind: str
    name: str
    target: str
    distribution: str
    version: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """A strategy as plain data: enough to build it again.

    Attributes:
        kind: The strategy kind.
        name: The name it is published under.
        params: Constructor parameters. A strategy among them is a ``Spec``.
    """

    kind: str
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, strategy: Strategy) -> Spec:
        """Return the spec of a strategy, nested strategies included."""
        return cls(strategy.kind, strategy.name, {k: _freeze(v) for k, v in strategy.params().items()})

    def build(self) -> Strategy:
        """Build the strategy.

        Raises:
            UnknownStrategyError: Nothing is published under this kind and name.
            PluginError: It is published but cannot be loaded.
            ArgumentTypeError: The parameters do not fit its constructor.
        """
        return build(self.kind, self.name, {k: _thaw(v) for k, v in self.params.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data that :meth:`from_dict` reads back."""
        return {"kind": self.kind, "name": self.name, "params": {k: _to_data(v) for k, v in self.params.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Spec:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ArgumentValueError: ``kind`` or ``name`` is missing.
        """
        if not isinstance(data.get("kind"), str) or not isinstance(data.get("name"), str):
            remedy = "Give {'kind': …, 'name': …, 'params': {…}}."
            raise ArgumentValueError("spec", data, "has no kind and name", remedy)
        return cls(data["kind"], data["name"], {k: _from_data(v) for k, v in dict(data.get("params") or {}).items()})


def _freeze(value: object) -> object:
    if isinstance(value, Strategy):
        return Spec.of(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_freeze(item) for item in value)
    return value


def _thaw(value: object) -> object:
    if isinstance(value, Spec):
        return value.build()
    if isinstance(value, (list, tuple)):
        return type(value)(_thaw(item) for item in value)
    return value


def _to_data(value: object) -> object:
    if isinstance(value, Spec):
        return {"$spec": value.to_dict()}
    if isinstance(value, tuple):
        # JSON has one kind of list: without the mark a tuple would come back as another value.
        return {"$tuple": [_to_data(item) for item in value]}
    if isinstance(value, list):
        return [_to_data(item) for item in value]
    return value


def _from_data(value: object) -> object:
    if isinstance(value, dict) and set(value) == {"$spec"}:
        return Spec.from_dict(value["$spec"])
    if isinstance(value, dict) and set(value) == {"$tuple"}:
        return tuple(_from_data(item) for item in value["$tuple"])
    if isinstance(value, list):
        return [_from_data(item) for item in value]
    return value


def _load(target: str) -> object:
    module, _, attribute = target.partition(":")
    found: object = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _known_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ArgumentValueError("kind", kind, "is no strategy kind", f"Kinds: {', '.join(sorted(KINDS))}.")


def _entries(kind: str) -> Iterator[Entry]:
    for name, target in _BUILT_IN.get(kind, {}).items():
        yield Entry(kind, name, target, DISTRIBUTION)
    for point in metadata.entry_points(group=f"combee_dspy.{kind}s"):
        distribution = point.dist
        yield Entry(
            kind,
            point.name,
            point.value,
            distribution.name if distribution else "unknown",
            distribution.version if distribution else "",
        )


def _class_of(entry: Entry) -> type[Strategy]:
    """Load an entry's class, checked against its kind's base.

    Raises:
        PluginError: It cannot be imported, or is not a class of that kind.
    """
    try:
        found = _load(entry.target)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise PluginError(entry.kind, entry.name, entry.distribution, reason) from error
    base = cast("type[Strategy]", _load(KINDS[entry.kind]))
    if not (isinstance(found, type) and issubclass(found, base)):
        reason = f"{entry.target} is not a subclass of {KINDS[entry.kind].replace(':', '.')}"
        raise PluginError(entry.kind, entry.name, entry.distribution, reason)
    if getattr(found, "name", None) != entry.name:
        reason = f"{entry.target} calls itself {getattr(found, 'name', None)!r}; the entry point and `name` must agree"
        raise PluginError(entry.kind, entry.name, entry.distribution, reason)
    return found


def names(kind: str) -> tuple[str, ...]:
    """Return the names published for a kind, sorted, loading nothing.

    Raises:
        ArgumentValueError: ``kind`` is no strategy kind.
    """
    _known_kind(kind)
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
    _known_kind(kind)
    for entry in _entries(kind):
        if entry.name == name:
            return _class_of(entry)
    raise UnknownStrategyError(kind, name, names(kind))


def build(kind: str, name: str, params: Mapping[str, Any] | None = None) -> Strategy:
    """Build a strategy by name.

    Raises:
        ArgumentValueError: ``kind`` is no strategy kind.
        UnknownStrategyError: Nothing is published under this name.
        PluginError: It is published but cannot be loaded.
        ArgumentTypeError: ``params`` do not fit its constructor.
    """
    found = find(kind, name)
    try:
        return found(**dict(params or {}))
    except TypeError as error:
        remedy = f"See help({found.__module__}.{found.__qualname__}) for its parameters."
        raise ArgumentTypeError(kind, {name: dict(params or {})}, f"cannot be built: {error}", remedy) from error


def resolve(kind: str, value: object) -> Strategy:
    """Return the strategy that a user meant.

    Args:
        kind: The kind that is wanted.
        value: A name, a strategy of that kind, a :class:`Spec`, or a mapping
            ``{"name": …, "params": {…}}`` as it stands in a YAML file.

    Raises:
        ArgumentTypeError: ``value`` is none of these, or a strategy of another kind.
        UnknownStrategyError: Nothing is published under this name.
        PluginError: It is published but cannot be loaded.
    """
    _known_kind(kind)
    if isinstance(value, str):
        return build(kind, value)
    if isinstance(value, Spec) and value.kind == kind:
        return value.build()
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return build(kind, value["name"], value.get("params"))
    base = cast("type[Strategy]", _load(KINDS[kind]))
    if isinstance(value, base):
        return value
    remedy = f"Give one of the names {', '.join(names(kind))}, or an object of a subclass of {base.__name__}."
    raise ArgumentTypeError(kind, value, f"is no {kind}", remedy)


def installed() -> tuple[Entry, ...]:
    """Return every strategy that is there, with what is wrong with it.

    Loads all of them. Never raises for a broken plugin: its ``problem`` says
    what happened. A name taken by an earlier entry is a problem too.
    """
    found: list[Entry] = []
    for kind in KINDS:
        taken: dict[str, str] = {}
        for entry in _entries(kind):
            problem: str | None = None
            if entry.name in taken:
                problem = f"the name is already taken by distribution {taken[entry.name]!r}"
            else:
                taken[entry.name] = entry.distribution
                try:
                    _class_of(entry)
                except PluginError as error:
                    problem = error.reason
            version = entry.version or _own_version()
            found.append(Entry(entry.kind, entry.name, entry.target, entry.distribution, version, problem))
    return tuple(found)


def _own_version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
