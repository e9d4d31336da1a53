"""Reads a file of ``combee run``, and the examples and objects that it names."""

from __future__ import annotations

import copy
import csv
import io
import json
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
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

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_HELP = "See combee run --help, and --schema."


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ArgumentValueError: It does not; the line and a caret are on standard error.
    """
    try:
        text = read_plain(path, follow=True)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise ArgumentValueError("CONFIG", str(path), problem, "Name a YAML file.") from error
    try:
        data = load_yaml(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        problem, line = place_problem(error)
        for part in line.splitlines():
            typer.echo(plain(part), err=True)
        problem = f"cannot be read as YAML: {problem}"
        raise ArgumentValueError("CONFIG", str(path), problem, _HELP) from error
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
    """Return the configuration that a file's mapping holds.

    Raises:
        ArgumentError: A value cannot be used. Of several, the first, with the number of the others.
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
    problems = error.errors(include_url=False)
    # An unknown key comes first: it is often why another seems to be missing.
    first = min(problems, key=lambda problem: problem["type"] not in _UNKNOWN)
    cause = (first.get("ctx") or {}).get("error")
    if isinstance(cause, ArgumentError):
        return cause
    # A part with a bracket is pydantic's name of one of several types.
    parts = [str(part) for part in first["loc"] if "[" not in str(part)]
    place = ".".join(parts) or "CONFIG"
    problem, remedy = f"cannot be used: {first['msg'].removeprefix('Value error, ')}", _HELP
    if first["type"] == "missing":
        problem = "cannot be used: is missing"
    elif first["type"] in _UNKNOWN:
        problem, remedy = _explain_unknown(parts)
    if len(problems) > 1:
        remedy += f" ({len(problems) - 1} more to correct.)"
    return ArgumentValueError(place, _without_keys(first["input"], place), problem, remedy)


def _explain_unknown(parts: Sequence[str]) -> tuple[str, str]:
    """Return what is wrong with a key that no section has, and what to do."""
    match parts:
        case []:  # such as a key with a bracket
            return "has a key that is no name", _HELP
        case [kind] if kind in StrategiesConfig.model_fields:
            return "is no key of its own", f"Write strategies: {{{kind}: …}}."
    *place, wrong = parts
    whole = schema()
    keys = sorted(_at(whole, place, whole).get("properties", ()))
    remedy = f"{did_you_mean(wrong, keys)}Known keys: {', '.join(keys)}."
    if SECRET_NAME.search(wrong) and "api_key_env" in keys:
        remedy = "Put the key into an environment variable and name that variable in api_key_env."
    return "is no known key", remedy


def _without_keys(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_keys(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_keys(item, name) for item in value]
    return MASK if SECRET_NAME.search(name.rpartition(".")[2]) else value


def _at(node: dict[str, Any], place: Sequence[str], whole: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a JSON schema that holds for a place of a file; empty where none does."""
    if "$ref" in node:
        return _at(whole["$defs"][node["$ref"].rpartition("/")[2]], place, whole)
    if "anyOf" in node:
        options = [_at(option, place, whole) for option in node["anyOf"]]
        return next((option for option in options if "properties" in option), options[0])
    if not place:
        return node
    parts = (node.get("properties", {}).get(place[0]), node.get("items"))
    inner = next(filter(None, parts), node.get("additionalProperties"))
    return _at(inner, place[1:], whole) if isinstance(inner, dict) else {}


def add_module_folders(folder: Path) -> None:
    """Look for modules in the working directory, and beside a run file that lies in it.

    What lies beside a file elsewhere is not imported: who sent the file would choose what runs.
    What is installed comes first, so no file there replaces a package.
    """
    here = Path.cwd()
    folders = [here, *([folder] if folder.is_relative_to(here) else [])]
    sys.path += [str(place) for place in dict.fromkeys(folders) if str(place) not in sys.path]


def load_object(argument: str, target: str) -> Any:
    """Import ``module:object``, which can be called or is a program; dots lead into the object.

    Raises:
        ArgumentError: It cannot be imported, or cannot be called.
    """
    if not all(target.partition(":")):
        remedy = "Such as my_package.qa:Program."
        raise ArgumentValueError(argument, target, "is not of the form module:object", remedy)
    try:
        loaded: object = pkgutil.resolve_name(target)
    except Exception as error:
        problem = f"cannot be imported: {type(error).__name__}: {error}"
        remedy = (
            "Modules are looked for among installed ones, in the working directory, and beside a"
            " configuration file that lies in it."
        )
        raise ArgumentValueError(argument, target, problem, remedy) from error
    if not callable(loaded):
        problem = f"is {type(loaded).__name__} and cannot be called"
        raise ArgumentTypeError(argument, target, problem, "Name another.")
    return loaded


_READERS: Mapping[str, Callable[[str], Any]] = {
    # Not splitlines(): JSON strings may hold characters that it takes for line ends.
    ".jsonl": lambda text: [json.loads(line) for line in text.split("\n") if line.strip()],
    ".json": json.loads,
    ".csv": lambda text: list(csv.DictReader(io.StringIO(text, newline=""), strict=True)),
}


def read_examples(place: str, path: Path, inputs: Sequence[str]) -> list[dspy.Example]:
    """Read examples from a ``.jsonl``, ``.json`` (a list) or ``.csv`` (with a header) file, UTF-8.

    Raises:
        DataSourceError: It cannot be read, or a row lacks an input.
    """
    try:
        rows = _READERS[path.suffix.lower()](read_plain(path, follow=True).decode("utf-8-sig"))
        if not rows:
            raise ValueError("it holds no rows")
        for number, row in enumerate(rows, start=1):
            missing = [name for name in inputs if name not in row]
            if missing or not all(isinstance(name, str) for name in row):
                needed = ", ".join(missing) or "named ones alone"
                raise ValueError(f"row {number} has fields {list(row)}, not {needed}")
        return [dspy.Example(dict(row)).with_inputs(*inputs) for row in rows]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, csv.Error) as error:
        problem = f"{type(error).__name__}: {error}"
        remedy = f"Give a UTF-8 file of rows with named fields, one of {', '.join(_READERS)}."
        raise DataSourceError(place, str(path), problem, remedy) from error
