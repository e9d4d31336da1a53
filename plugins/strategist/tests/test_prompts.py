"""The prompts in memory, that lives are tested on, answer as MLflow's client does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

mlflow = pytest.importorskip("mlflow")

from mlflow.exceptions import MlflowException  # noqa: E402 - which may be missing

from plugins.strategist.tests.prompts import Prompts  # noqa: E402

# In this order: what is missing at first is there later, and some of it goes again.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get_prompt", {}),
    ("get_prompt_version", {"version": 1}),
    ("get_prompt_version_by_alias", {"alias": "production"}),
    ("set_prompt_tag", {"key": "b", "value": "2"}),
    ("set_prompt_alias", {"alias": "production", "version": 1}),
    ("delete_prompt_alias", {"alias": "production"}),
    ("register_prompt", {"template": "first", "commit_message": "for a test"}),
    ("get_prompt", {}),
    ("get_prompt_version_by_alias", {"alias": "production"}),
    ("register_prompt", {"template": "second", "commit_message": "for a test"}),
    ("set_prompt_alias", {"alias": "production", "version": 2}),
    ("set_prompt_alias", {"alias": "challenger", "version": 3}),
    ("get_prompt_version_by_alias", {"alias": "production"}),
    ("get_prompt_version_by_alias", {"alias": "challenger"}),
    ("get_prompt_version", {"version": 1}),
    ("get_prompt_version", {"version": 3}),
    ("set_prompt_tag", {"key": "b", "value": "2"}),
    ("set_prompt_tag", {"key": "a", "value": "1"}),
    ("set_prompt_tag", {"key": "b", "value": "3"}),
    ("get_prompt", {}),
    ("set_prompt_alias", {"alias": "production", "version": 1}),
    ("get_prompt_version_by_alias", {"alias": "production"}),
    ("delete_prompt_alias", {"alias": "production"}),
    ("delete_prompt_alias", {"alias": "production"}),
    ("get_prompt_version_by_alias", {"alias": "production"}),
]


def answers(client: Any) -> Iterator[tuple[str, Any]]:
    """Return what a client answers to each call, or the code of its error."""
    for name, arguments in CALLS:
        try:
            result = getattr(client, name)(name="twins", **arguments)
        except MlflowException as error:
            yield name, error.error_code
        else:
            yield name, result and _fields(result)


def _fields(result: Any) -> Any:
    if hasattr(result, "template"):
        return result.version, result.template
    # MLflow adds tags of its own.
    return {key: value for key, value in result.tags.items() if not key.startswith("_mlflow")}


def test_each_call_is_answered_as_by_mlflow(mlflow_store: str) -> None:
    theirs = mlflow.MlflowClient(mlflow_store, mlflow_store)
    assert list(answers(Prompts())) == list(answers(theirs))
