"""Checks for strategies of every kind."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import pickle
import re
import textwrap
from typing import Any

from combee_dspy.exceptions import ArgumentError
from combee_dspy.registry import KINDS, Spec
from combee_dspy.strategies import Strategy
from combee_dspy.testing.checks._expect import ConformanceError, attempt, expect

__all__ = ["CHECKS"]

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def check_constructor_names_its_parameters(strategy: Strategy) -> None:
    """A spec in a log can rebuild only what the constructor names."""
    loose = [
        str(parameter)
        for parameter in inspect.signature(type(strategy)).parameters.values()
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY)
    ]
    expect(
        not loose,
        "a constructor whose parameters all have names, so that a spec can rebuild the strategy",
        f"{type(strategy).__name__} takes {', '.join(loose)}",
        "write each parameter out, without *args, **kwargs or '/'",
    )


def check_constructor_only_stores(strategy: Strategy) -> None:
    """Work and validation happen in the verb, so that building from a log has no effects."""
    cls = type(strategy)
    given = {name: _Anything(name) for name in inspect.signature(cls).parameters}
    built = attempt(
        lambda: cls(**given),
        "a constructor that stores whatever it is given",
        f"move work and checks out of {cls.__name__}.__init__ into the verb (see combee_dspy.controllers.Static)",
    )
    for name, value in given.items():
        expect(
            getattr(built, name, None) is value,
            f"self.{name} is the very object that was given as {name!r}",
            f"self.{name} is {getattr(built, name, 'missing')!r}",
            f"write `self.{name} = {name}`; copy or convert it where it is used",
        )
    extra = set(_attributes(built)) - set(given)
    expect(
        not extra,
        "a constructor that sets nothing but its parameters: a strategy holds no state of a run",
        f"{cls.__name__}.__init__ also sets {', '.join(sorted(extra))}",
        "compute it in the verb, or keep it in what the verb returns",
    )


class _Anything:
    def __init__(self, name: str) -> None:
        self.stands_for = name

    def __repr__(self) -> str:
        return f"<any object given as {self.stands_for!r}>"


def _attributes(strategy: Strategy) -> dict[str, Any]:
    found = dict(getattr(strategy, "__dict__", {}))
    for base in type(strategy).__mro__:
        slots = getattr(base, "__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(strategy, slot):
                found[slot] = getattr(strategy, slot)
    return found


def check_has_a_kind_and_a_name(strategy: Strategy) -> None:
    """The registry finds a strategy by kind and name."""
    cls = type(strategy)
    kind = getattr(cls, "kind", None)
    expect(
        kind in KINDS and isinstance(strategy, _base(str(kind))),
        f"a subclass of one of the bases {', '.join(base.replace(':', '.') for base in KINDS.values())}",
        f"{cls.__name__}.kind is {kind!r} and its bases are {', '.join(b.__name__ for b in cls.__mro__[1:-1])}",
        "inherit from the base of the kind you mean and leave `kind` alone",
    )
    name = getattr(cls, "name", None)
    expect(
        isinstance(name, str) and _NAME.fullmatch(name),
        "a class attribute `name` in lower case, words joined by '-', equal to the entry point's name",
        f"{cls.__name__}.name is {name!r}",
        f'write `name: ClassVar[str] = "my-{kind}"` in the class body',
    )


def _base(kind: str) -> type[Any]:
    module, _, attribute = KINDS[kind].partition(":")
    found: type[Any] = getattr(importlib.import_module(module), attribute)
    return found


def check_is_documented(strategy: Strategy) -> None:
    """People choose strategies by their documentation."""
    cls = type(strategy)
    # getdoc would find the base's text, which says nothing about this class.
    text = cls.__dict__.get("__doc__") or ""
    expect(
        text.strip(),
        "a class docstring that says what the strategy does and when to choose it",
        f"{cls.__name__} has none",
        'write one under the class line; parameters go under "Args:", with their units',
    )
    silent = [
        name
        for name in inspect.signature(cls).parameters
        if not re.search(rf"^\s*{re.escape(name)}( \(.*\))?: *\S+ +\S+", text, re.MULTILINE)
    ]
    expect(
        not silent,
        'every constructor parameter described under "Args:" in the class docstring, with its unit',
        f"{cls.__name__} says nothing about {', '.join(silent)}",
        f'add a line such as "{silent[0] if silent else "size"}: Examples a minibatch, at least 1."',
    )
    for verb in sorted(getattr(_base(cls.kind), "__abstractmethods__", ())):
        _check_verb(cls, verb)


def _check_verb(cls: type[Strategy], verb: str) -> None:
    method = getattr(cls, verb)
    text = inspect.getdoc(method) or ""
    expect(
        text,
        f"a docstring on {cls.__name__}.{verb} or on the method it overrides",
        "there is none",
        "say what it returns, in which units, and what it raises",
    )
    expect(
        "Raises:" in text or not _raises(method),
        f'a "Raises:" section in the docstring of {cls.__name__}.{verb}, since its body raises',
        "there is none",
        'add "Raises:" with each error and when it comes',
    )


def _raises(method: Any) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, SyntaxError):
        return False  # Without a source, as in an interactive session, the documentation is believed.
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def check_spec_round_trip(strategy: Strategy) -> None:
    """A strategy found in a log can be built again."""
    mend = "keep parameters to None, booleans, numbers, texts, lists, tuples, dicts of these, and strategies"
    spec = attempt(lambda: Spec.of(strategy), "parameters stored under their own names", "see `Strategy.params`")
    text = attempt(lambda: json.dumps(spec.to_dict(), allow_nan=False), "parameters that JSON can hold", mend)
    read = Spec.from_dict(json.loads(text))
    expect(
        read == spec,
        "the same spec after a trip through JSON",
        f"{spec} came back as {read}",
        mend,
    )
    cls = type(strategy)
    # The class itself, not the registry: a plugin under development need not be installed yet.
    built = attempt(
        lambda: cls(**_thaw(read.params)),
        "a constructor that takes the parameters it stored",
        "give each parameter the name of the attribute that holds it",
    )
    expect(
        built == strategy,
        "an equal strategy built from the spec",
        f"{strategy!r} came back as {built!r}",
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


def check_pickle(strategy: Strategy) -> None:
    """Executors in other processes receive strategies by pickle."""
    back = attempt(
        lambda: pickle.loads(pickle.dumps(strategy)),  # noqa: S301 - the bytes were made on this line
        "a strategy that survives pickle",
        "define the class at module level and hold no locks, files, clients or lambdas",
    )
    expect(
        back == strategy and type(back) is type(strategy),
        "an equal strategy after pickle",
        f"{strategy!r} came back as {back!r}",
        "store parameters whose `==` compares values",
    )


def check_deepcopy(strategy: Strategy) -> None:
    """DSPy copies what it is given."""
    back = attempt(
        lambda: copy.deepcopy(strategy),
        "a strategy that can be copied",
        "hold no locks, files or clients; make them in the verb",
    )
    expect(
        back == strategy and back is not strategy,
        "an equal strategy after copy.deepcopy",
        f"{strategy!r} became {back!r}",
        "store parameters whose `==` compares values",
    )


def check_bad_parameters_are_named(strategy: Strategy) -> None:
    """Whoever wrote the configuration must learn which line of it to mend, before anything is spent.

    Each number and each text among the parameters gets values that are out of any range.
    ``validate`` may let one pass, which the verb then refuses; what it refuses, it must name.
    """
    given = strategy.params()
    for name, usual in given.items():
        for value in _out_of_range(usual):
            try:
                type(strategy)(**{**given, name: value}).validate()
            except ArgumentError as error:
                expect(
                    name in error.argument,
                    f"an error that names {name!r}",
                    f"{name}={value!r} was refused as {error.argument!r}: {error}",
                    f'raise ArgumentValueError("{name}", self.{name}, "is …", "Give …")',
                )
            except Exception as error:
                raise ConformanceError(
                    f"an ArgumentTypeError or ArgumentValueError for {name}={value!r}, or none",
                    f"`validate` raised {type(error).__name__}: {error}",
                    f"check {name} and raise one of them; they are in combee_dspy.exceptions",
                ) from error


def _out_of_range(usual: object) -> tuple[object, ...]:
    if isinstance(usual, bool):
        return ()
    if isinstance(usual, (int, float)):
        return (-1, float("nan"), float("-inf"))
    return ("", "no such value") if isinstance(usual, str) else ()


CHECKS = (
    check_constructor_names_its_parameters,
    check_constructor_only_stores,
    check_has_a_kind_and_a_name,
    check_is_documented,
    check_spec_round_trip,
    check_pickle,
    check_deepcopy,
    check_bad_parameters_are_named,
)
