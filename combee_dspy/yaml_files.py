"""Reads YAML that a stranger may have written: what it unpacks to is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

__all__ = ["load_yaml", "place_problem"]

# A run file or a specification has some hundred values. Aliases and merges can make billions of a
# hundred lines.
_MOST_BYTES, _MOST_VALUES, _LONGEST_NUMBER = 1_000_000, 10_000, 100


class _Loader(yaml.SafeLoader):
    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MOST_VALUES:
            raise ValueError(f"merged keys make more than {_MOST_VALUES:,} values of it")

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        # Also those in base 60, which YAML 1.1 knows: their time grows with the square.
        if len(node.value) > _LONGEST_NUMBER:
            raise ValueError(f"it holds a number of {len(node.value):,} characters")
        return int(super().construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def place_problem(error: Exception) -> tuple[str, str]:
    """Return what :func:`load_yaml` raised with its line and column, and that line with a caret
    below the place; an empty text for it where the error names no place.
    """
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error), ""
    mark = error.problem_mark
    problem = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return problem, mark.get_snippet(indent=2) or ""


def load_yaml(data: bytes) -> object:
    """Return what a YAML file holds.

    Raises:
        ValueError: It is no UTF-8, holds a value that is none of its type, such as
            ``!!bool maybe``, or unpacks to more than any run needs.
        yaml.YAMLError: It is no YAML.
        RecursionError: It is nested too deep.
    """
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has {len(data):,} bytes, more than {_MOST_BYTES:,}")
    loader = _Loader(data.decode("utf-8"))
    try:
        value = loader.get_single_data()
    except (
        ArithmeticError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:  # from constructors of PyYAML
        text = f"{type(error).__name__}: {error}"
        raise ValueError(f"it holds a value that is none of its type: {text}") from error
    finally:
        loader.dispose()
    for number, _ in enumerate(_values(value, ())):
        if number > _MOST_VALUES:
            raise ValueError(f"aliases make more than {_MOST_VALUES:,} values of it")
    return value


def _values(value: Any, around: tuple[int, ...]) -> Iterator[Any]:
    """Yield every value within a value, one that aliases repeat as often as they do."""
    yield value
    if not isinstance(value, (dict, list, set)):
        return
    if id(value) in around:
        raise ValueError("an alias is part of what it names")
    for part in value.values() if isinstance(value, dict) else value:
        yield from _values(part, (*around, id(value)))
