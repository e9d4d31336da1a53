"""Checks for strategies of every kind."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import re
from typing import Any

from combee_dspy.exceptions import ArgumentError
from combee_dspy.registry import KINDS, Spec
from combee_dspy.strategies import Strategy
from combee_dspy.testing._kit import ConformanceError, attempt, expect

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def check_constructor_only_stores(strategy: Strategy) -> None:
    """Work happens in the verb: building has no effects and keeps no state of a run."""
    cls = type(strategy)
    named = "a constructor whose parameters all have names and are stored under them"
    mend = (
        "write each parameter out, without *args or **kwargs, and `self.size = size`; or use"
        " @parameters"
    )
    parameters = attempt(strategy.params, named, mend)
    built = attempt(lambda: cls(**parameters), "a constructor that takes the parameters it stored")
    stored = built.params()
    expect(
        stored == parameters,
        "parameters stored as they were given",
        f"{parameters!r:.200} became {stored!r:.200}",
    )
    extra = sorted(set(getattr(built, "__dict__", {})) - set(parameters))
    mend = "compute it in the verb, or keep it in what the verb returns"
    expect(
        not extra,
        "a constructor that sets nothing but its parameters",
        f"it also sets {', '.join(extra)}",
        mend,
    )


def check_has_a_kind_and_a_name(strategy: Strategy) -> None:
    """The registry finds a strategy by kind and name."""
    cls = type(strategy)
    kind: Any = getattr(cls, "kind", None)
    # A distribution may have kinds of its own, as benchmarks' have baselines.
    module, _, base = KINDS.get(kind, "").partition(":")
    sound = (
        isinstance(strategy, getattr(importlib.import_module(module), base))
        if module
        else isinstance(kind, str)
    )
    mend = "inherit from the base of the kind you mean and leave `kind` alone"
    expect(
        sound,
        f"a subclass of the base of its kind: {KINDS.get(kind, 'any')}",
        f"kind is {kind!r}",
        mend,
    )
    name = getattr(cls, "name", None)
    named = isinstance(name, str) and _NAME.fullmatch(name)
    mend = (
        f'write `name: ClassVar[str] = "my-{kind}"` in the class body, equal to the entry point\'s'
        " name"
    )
    expect(
        named,
        "a class attribute `name` in lower case, words joined by '-'",
        f"name is {name!r}",
        mend,
    )


def check_is_documented(strategy: Strategy) -> None:
    """People choose strategies by their documentation."""
    cls = type(strategy)
    # getdoc would find the base's text, which says nothing about this class.
    text = cls.__dict__.get("__doc__") or ""
    expect(
        text.strip(),
        "a class docstring that says what the strategy does",
        f"{cls.__name__} has none",
    )
    described = "\n".join(
        base.__dict__.get("__doc__") or "" for base in cls.__mro__ if issubclass(base, Strategy)
    )
    documented = set(re.findall(r"^\s*(\w+)(?: \(.*\))?: *\S", described, re.MULTILINE))
    silent = [name for name in inspect.signature(cls).parameters if name not in documented]
    mend = 'add a line such as "size: Examples a minibatch, at least 1."'
    happened = f"{cls.__name__} says nothing about {', '.join(silent)}"
    expect(
        not silent,
        'every parameter described under "Args:" in the class docstring, with its unit',
        happened,
        mend,
    )


def check_spec_round_trip(strategy: Strategy) -> None:
    """A strategy found in a log can be built again, and DSPy may copy what it is given."""
    mend = (
        "keep parameters to None, booleans, numbers, texts, lists, tuples, dicts of these, and"
        " strategies"
    )
    spec = attempt(lambda: Spec.of(strategy), "parameters stored under their own names")
    text = attempt(
        lambda: json.dumps(spec.to_dict(), allow_nan=False), "parameters that JSON can hold", mend
    )
    read = Spec.from_dict(json.loads(text))
    expect(
        read == spec, "the same spec after a trip through JSON", f"{spec} came back as {read}", mend
    )
    # The class itself, not the registry: a plugin under development need not be installed yet.
    built = attempt(
        lambda: type(strategy)(**_thaw(read.params)),
        "a constructor that takes the parameters it stored",
    )
    expect(
        built == strategy,
        "an equal strategy built from the spec",
        f"{strategy!r} became {built!r}",
        mend,
    )
    copied = attempt(
        lambda: copy.deepcopy(strategy), "a strategy that can be copied", "make locks in the verb"
    )
    expect(
        copied == strategy,
        "an equal strategy after copy.deepcopy",
        f"{strategy!r} became {copied!r}",
        mend,
    )


def _thaw(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.build()
    if isinstance(value, dict):
        return {key: _thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_thaw(item) for item in value)
    return value


def check_bad_parameters_are_named(strategy: Strategy) -> None:
    """A refused parameter is named, before anything is spent.

    Each number and each text among the parameters gets values that are out of any range. The
    constructor may let one pass, which the verb then refuses; what it refuses, it must name.
    """
    parameters = strategy.params()
    for name, usual in parameters.items():
        for value in _out_of_range(usual):
            try:
                type(strategy)(**{**parameters, name: value})
            except ArgumentError as error:
                happened = f"{name}={value!r} was refused as {error.argument!r}: {error}"
                expect(name in error.argument, f"an error that names {name!r}", happened)
            except Exception as error:
                wanted = f"an ArgumentTypeError or ArgumentValueError for {name}={value!r}, or none"
                happened = f"the constructor raised {type(error).__name__}: {error}"
                mend = (
                    "use @parameters with `Annotated[int, Field(ge=1)]`, of combee_dspy.strategies"
                )
                raise ConformanceError(wanted, happened, mend) from error


def _out_of_range(usual: object) -> tuple[object, ...]:
    if isinstance(usual, bool):
        return ()
    if isinstance(usual, (int, float)):
        return (-1, float("nan"), float("-inf"))
    return ("", "no such value") if isinstance(usual, str) else ()
