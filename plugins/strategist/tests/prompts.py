"""MLflow's prompt registry without its database, which takes most of the time of a life in a test."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, RESOURCE_DOES_NOT_EXIST

URI = "http://prompts.test"
"""A store that is no file, so that none is made."""


class Prompts:
    """What :class:`Registry` asks, by MlflowClient's own methods; a test compares them with it."""

    def __init__(self) -> None:
        self._prompts: dict[str, SimpleNamespace] = {}
        self._lock = threading.Lock()

    def client(self, tracking_uri: str, registry_uri: str) -> Prompts:
        """Stand in for MlflowClient itself."""
        return self

    def register_prompt(self, *, name: str, template: str, commit_message: str) -> Any:
        with self._lock:
            empty = SimpleNamespace(tags={}, aliases={}, templates=[])
            prompt = self._prompts.setdefault(name, empty)
            prompt.templates.append(template)
            return self._version(prompt, len(prompt.templates))

    def get_prompt(self, name: str) -> Any:
        with self._lock:
            prompt = self._prompts.get(name)
            return prompt and SimpleNamespace(tags=dict(prompt.tags))

    def get_prompt_version(self, name: str, version: int) -> Any:
        with self._lock:
            return self._version(self._prompt(name), version)

    def get_prompt_version_by_alias(self, name: str, alias: str) -> Any:
        with self._lock:
            prompt = self._prompt(name)
            if alias not in prompt.aliases:
                raise MlflowException(f"no alias {alias}", INVALID_PARAMETER_VALUE)
            return self._version(prompt, prompt.aliases[alias])

    def set_prompt_tag(self, name: str, key: str, value: str) -> None:
        with self._lock:
            self._prompt(name).tags[key] = value

    def set_prompt_alias(self, name: str, alias: str, version: int) -> None:
        with self._lock:
            prompt = self._prompt(name)
            self._version(prompt, version)
            prompt.aliases[alias] = version

    def delete_prompt_alias(self, name: str, alias: str) -> None:
        with self._lock:
            self._prompt(name).aliases.pop(alias, None)

    def _prompt(self, name: str) -> SimpleNamespace:
        if name not in self._prompts:
            raise MlflowException(f"no prompt {name}", RESOURCE_DOES_NOT_EXIST)
        return self._prompts[name]

    def _version(self, prompt: SimpleNamespace, number: int) -> SimpleNamespace:
        if not 0 < number <= len(prompt.templates):
            raise MlflowException(f"no version {number}", RESOURCE_DOES_NOT_EXIST)
        return SimpleNamespace(version=number, template=prompt.templates[number - 1])
