"""Reads what ``combee run`` is given: its file, and the examples and objects that the file
names.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy
import typer
import yaml
from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema

from combee_dspy.cli._config import RunConfig, StrategiesConfig
from combee_dspy.cli._tables import plain
from combee_dspy.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    DataSourceError,
    did_you_mean,
)
from combee_dspy.files import read_plain
from combee_dspy.lms.redact import MASK, SECRET_NAME
from combee_dspy.yaml_files import load_yaml, place_problem

__all__ = [
    "add_module_folders",
    "checked",
    "load_object",
    "nearest",
    "read_examples",
    "read_mapping",
    "schema",
    "section",
]

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_HELP = "See combee run --help, and --schema."


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        data = load_yaml(read_plain(path, follow=True))
    except (
        OSError,
        ValueError,
        yaml.YAMLError,
        RecursionError,
    ) as error:  # a date that is none is a ValueError
        problem, line = place_problem(error)
        for part in line.splitlines():
            typer.echo(plain(part), err=True)
        raise ArgumentValueError(
            "CONFIG", str(path), f"cannot be read as YAML: {problem}", _HELP
        ) from error
    if not isinstance(data, dict):
        raise ArgumentValueError("CONFIG", str(path), "holds no mapping at the top", _HELP)
    return data


def section(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the mapping that a file holds under a key, an empty one where it holds none."""
    mapping = data.get(key) or {}
    if not isinstance(mapping, dict):
        raise ArgumentValueError(key, mapping, "is no mapping", _HELP)
    return mapping


def checked(data: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that a file's mapping holds; of several problems the first is told,
    and their number.
    """
    values = copy.deepcopy(dict(data))
    match values:
        case {"validation": {"calibration": {"reference": str(target)} as calibration}}:
            calibration["reference"] = load_object("validation.calibration.reference", target)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise _to_argument_error(error) from error


def schema() -> dict[str, Any]:
    """Return the JSON schema of a file."""
    return RunConfig.model_json_schema(schema_generator=_FileSchema)


class _FileSchema(GenerateJsonSchema):
    def is_instance_schema(self, schema: Any) -> dict[str, Any]:
        return {"type": "string"}


def _to_argument_error(error: ValidationError) -> ArgumentError:
    # An unknown key comes first: it is often why another seems to be missing.
    first, *more = sorted(
        error.errors(include_url=False), key=lambda problem: problem["type"] not in _UNKNOWN
    )
    cause = (first.get("ctx") or {}).get("error")
    if isinstance(cause, ArgumentError):
        return cause
    # A part with a bracket is pydantic's name of one of several types.
    parts = [str(part) for part in first["loc"] if "[" not in str(part)]
    place = ".".join(parts) or "CONFIG"
    tail = f" ({len(more)} more to correct.)" if more else ""
    value = _without_keys(first["input"], place)
    if first["type"] in _UNKNOWN:
        if not parts:  # a key that is no plain name, such as one with a bracket
            return ArgumentValueError(place, value, "has a key that is no name", f"{_HELP}{tail}")
        if parts[0] in StrategiesConfig.model_fields and len(parts) == 1:
            return ArgumentValueError(
                place, value, "is no key of its own", f"Write strategies: {{{place}: …}}.{tail}"
            )
        whole = schema()
        properties = _at(whole, parts[:-1], whole).get("properties", {})
        return ArgumentValueError(
            place, value, "is no known key", nearest(parts[-1], properties) + tail
        )
    problem = (
        "is missing" if first["type"] == "missing" else first["msg"].removeprefix("Value error, ")
    )
    return ArgumentValueError(place, value, f"cannot be used: {problem}", f"{_HELP}{tail}")


def _without_keys(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_keys(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_keys(item, name) for item in value]
    return MASK if SECRET_NAME.search(name.rpartition(".")[2]) else value


def nearest(wrong: str, names: Iterable[str]) -> str:
    """Return a remedy that lists the names that are known, the nearest one first."""
    listed = sorted(names)
    if SECRET_NAME.search(wrong) and "api_key_env" in listed:
        return "Put the key into an environment variable and name that variable in api_key_env."
    return f"{did_you_mean(wrong, listed)}Known keys: {', '.join(listed)}."


def _at(node: dict[str, Any], place: Sequence[str], whole: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a JSON schema that holds for one place of a file; empty where there is
    none.
    """
    if "$ref" in node:
        return _at(whole["$defs"][node["$ref"].rpartition("/")[2]], place, whole)
    if "anyOf" in node:
        options = [_at(option, place, whole) for option in node["anyOf"]]
        return next((option for option in options if "properties" in option), options[0])
    if not place:
        return node
    inner = (
        node.get("properties", {}).get(place[0])
        or node.get("items")
        or node.get("additionalProperties")
    )
    return _at(inner, place[1:], whole) if isinstance(inner, dict) else {}


def add_module_folders(folder: Path) -> None:
    """Look for modules in the working directory, and beside a run file that lies in it.

    What lies beside a file elsewhere is not imported: who sent the file would choose what runs.
    What is installed comes first, so no file there stands in for a package.
    """
    here = Path.cwd()
    folders = [here, *([folder] if folder.is_relative_to(here) else [])]
    sys.path += [str(place) for place in dict.fromkeys(folders) if str(place) not in sys.path]


def load_object(argument: str, target: str) -> Any:
    """Import ``module:object``, which can be called or is a program; dots lead into the object."""
    if not all(target.partition(":")):
        raise ArgumentValueError(
            argument, target, "is not of the form module:object", "Such as my_package.qa:Program."
        )
    try:
        target_object: Any = pkgutil.resolve_name(target)
    except Exception as error:
        problem = f"cannot be imported: {type(error).__name__}: {error}"
        remedy = (
            "Modules are looked for among installed ones, in the working directory, and beside a"
            " configuration file that lies in it."
        )
        raise ArgumentValueError(argument, target, problem, remedy) from error
    if not callable(target_object):
        raise ArgumentTypeError(
            argument,
            target,
            f"is {type(target_object).__name__} and cannot be called",
            "Name another.",
        )
    return target_object


_READERS: Mapping[str, Callable[[str], Any]] = {
    # Not splitlines(): JSON strings may hold characters that it takes for line ends.
    ".jsonl": lambda text: [json.loads(line) for line in text.split("\n") if line.strip()],
    ".json": json.loads,
    ".csv": lambda text: list(csv.DictReader(io.StringIO(text, newline=""), strict=True)),
}


def read_examples(place: str, path: Path, inputs: Sequence[str]) -> list[dspy.Example]:
    """Read examples from a ``.jsonl``, ``.json`` (a list) or ``.csv`` (with a header) file,
    UTF-8.
    """
    try:
        rows = _READERS[path.suffix.lower()](read_plain(path, follow=True).decode("utf-8-sig"))
        if not rows:
            raise ValueError("it holds no rows")
        for number, row in enumerate(rows, start=1):
            lacking = [name for name in inputs if name not in row]
            if lacking or not all(isinstance(name, str) for name in row):
                raise ValueError(
                    f"row {number} has fields {list(row)}, not"
                    f" {', '.join(lacking) or 'named ones alone'}"
                )
        return [dspy.Example(dict(row)).with_inputs(*inputs) for row in rows]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, csv.Error) as error:
        remedy = f"Give a UTF-8 file of rows with named fields, one of {', '.join(_READERS)}."
        raise DataSourceError(
            place, str(path), f"{type(error).__name__}: {error}", remedy
        ) from error
