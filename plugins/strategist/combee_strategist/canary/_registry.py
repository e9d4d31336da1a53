"""Versions of a program, the two aliases, and who moved them, in MLflow's prompt registry.

A version is one prompt whose template is a JSON document: the state, the held-out receipt, and the
terms of its canary. Its SHA-256 stands in the audit line of its publication, which each reading
compares, and in every pair that a server has scored: what is written over afterwards, audit line
and all, has no evidence.

An audit line is a tag of the prompt. It is written before the alias moves, so that a process killed
in between has moved nothing, and what was meant is known: a line whose ``to`` is not where the
alias stood next was not carried out.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from combee_dspy.exceptions import ArgumentValueError, MissingDistributionError
from combee_dspy.search import user
from combee_dspy.strategies import parameters
from combee_dspy.tracking import make_store
from combee_strategist.exceptions import RegistryError

__all__ = ["AUTOMATIC", "CHALLENGER", "PRODUCTION", "CanaryPlan", "Registry", "Version"]

PRODUCTION, CHALLENGER = "production", "challenger"
AUTOMATIC = "combee (automatic)"
"""Who moves an alias where a bound was breached."""

_AUDIT = "combee.audit."
# What a version's audit line says as well: a line that somebody has spoiled must not keep anybody
# from rolling back.
_DIGEST = "combee.sha256."
_LONGEST = 100_000  # MLflow's limit of a template
_ABSENT = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")
_Share = Annotated[float, Field(ge=0, le=1)]


@parameters
class CanaryPlan:
    """The terms of a canary. Fixed when a version is published; no call changes them afterwards.

    Args:
        epsilon: Margin ε in score units: a challenger may be worse by less than that.
        target: The least held-out score of the challenger; what the run's student had by default.
        level: How often, at most, a challenger that is worse by ε or more is promoted, however
            often one looks.
        pairs: The fewest requests that both versions answered and that were scored.
        hours: The least time from the first pair to the last.
        errors: Share of failed requests above which a version is taken back without being asked: of
            a challenger's beyond the incumbent's share, of a promoted one's as it is.
        score: Mean live score below which a version is taken back; none by default.
        window: The latest requests over which these two are taken; nothing is done before a quarter
            of them is there.
    """

    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.02
    target: _Share | None = None
    level: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    pairs: Annotated[int, Field(ge=1)] = 200
    hours: Annotated[float, Field(ge=0)] = 24.0
    errors: _Share = 0.2
    score: _Share | None = None
    window: Annotated[int, Field(ge=4)] = 200

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as JSON values."""
        return {name: getattr(self, name) for name in CanaryPlan.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Version:
    """One version as it was published.

    Attributes:
        number: Its number in the registry, from 1.
        candidate: The candidate's content hash.
        run: Name of the run that it comes from.
        artifact: Spec of what its texts are put into a program by, as plain data.
        texts: By component, demonstrations included.
        sha256: Of the document.
        receipt: What was read of the held-out set; ``None`` for a program that a run began with.
        plan: The terms of its canary.
    """

    number: int
    candidate: str
    run: str
    artifact: Mapping[str, Any]
    texts: Mapping[str, str]
    sha256: str
    receipt: Mapping[str, Any] | None
    plan: CanaryPlan


_VERSION: TypeAdapter[Version] = TypeAdapter(Version)


class _Line(BaseModel):
    """What an audit line holds at least."""

    at: str
    who: str
    why: str
    action: Literal["publish", "promote", "rollback", "withdraw"]
    source: Annotated[int | None, Field(alias="from")]
    to: int | None


_UNREADABLE = {
    "at": "",
    "who": "unknown",
    "why": "this line cannot be read",
    "action": "unreadable",
    "from": None,
    "to": None,
}


def _line(text: str) -> dict[str, Any]:
    try:
        _Line.model_validate_json(text)
        line: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError):  # pydantic's errors are ValueErrors
        return dict(_UNREADABLE)
    return line


class Registry:
    """The versions of one program. Thread-safe.

    Args:
        name: The prompt's name in the registry.
        uri: MLflow's store: ``sqlite:///…`` or a server's address; the one that is set for MLflow
            by default.

    Raises:
        MissingDistributionError: MLflow is not installed.
        RegistryError: The store does not answer.
    """

    def __init__(self, name: str, uri: str | None = None) -> None:
        # MLflow's own defaults block for minutes on a server that is down.
        for variable, value in (("MAX_RETRIES", "1"), ("TIMEOUT", "10")):
            os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{variable}", value)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            import mlflow
            from mlflow.exceptions import MlflowException

            make_store(uri or "")
        except ImportError as error:
            raise MissingDistributionError(
                "the canary's registry", "combee-strategist[mlflow]"
            ) from error
        self.name, self._failure = name, MlflowException
        self._client: Any = self._ask(
            lambda: mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
        )

    def _ask(self, call: Callable[[], Any], *, absent: bool = False) -> Any:
        """Return what MLflow says; ``None`` where something is not there and may be ``absent``."""
        try:
            return call()
        except (self._failure, OSError) as error:
            if absent and getattr(error, "error_code", None) in _ABSENT:
                return None
            raise RegistryError(self.name, f"{type(error).__name__}: {str(error)[:300]}") from error

    def at(self, alias: str) -> int | None:
        """Return the number of the version that an alias names; one call."""
        version = self._ask(
            lambda: self._client.get_prompt_version_by_alias(self.name, alias), absent=True
        )
        return None if version is None else int(version.version)

    def audit(self) -> list[dict[str, Any]]:
        """Return every change, oldest first.

        Returns:
            Rows with ``at`` (ISO 8601), ``who``, ``why``, ``action`` (``"publish"``, ``"promote"``,
            ``"rollback"`` or ``"withdraw"``; ``"unreadable"`` for a line that was spoiled),
            ``from`` and ``to`` (numbers, or ``None``), ``sha256`` of a version that was published,
            and ``carried_out``: ``False`` where the process ended before the alias had moved.
        """
        # MLflow's own get_prompt says "there is none" of a server that is down as well: the aliases
        # tell them apart.
        prompt = self._ask(lambda: self._client.get_prompt(self.name))
        if prompt is None:
            self._ask(lambda: self._client.get_prompt_version(self.name, 1), absent=True)
            return []
        lines = [
            _line(value) for key, value in sorted(prompt.tags.items()) if key.startswith(_AUDIT)
        ]
        in_production: Any = self.at(PRODUCTION)
        sure = True
        for line in reversed(lines):
            line["carried_out"] = line["action"] != "unreadable"
            sure = sure and line["carried_out"]
            if line["action"] in ("promote", "rollback"):
                # Behind a line that cannot be read, where the alias stood is not known.
                line["carried_out"] = line["to"] == in_production or not sure
                in_production, sure = line["from"], True
        return lines

    def note(
        self,
        action: Literal["publish", "promote", "rollback", "withdraw"],
        source: int | None,
        target: int | None,
        who: str | None,
        why: str,
        **more: str,
    ) -> None:
        """Write an audit line; for a move, before it is made."""
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        who = who or user() or "unknown"
        line = {
            "at": at,
            "who": who,
            "why": why[:1000],
            "action": action,
            "from": source,
            "to": target,
        }
        key = f"{_AUDIT}{time.time_ns():020d}.{secrets.token_hex(2)}"
        self._ask(lambda: self._client.set_prompt_tag(self.name, key, json.dumps({**line, **more})))

    def move(
        self,
        action: Literal["promote", "rollback"],
        source: int,
        target: int,
        who: str | None,
        why: str,
    ) -> None:
        """Let ``production`` name another version.

        The alias is moved by one call: before it all is old, after it new.

        Raises:
            RegistryError: The store does not answer; if the alias has moved, the audit says so.
        """
        self.note(action, source, target, who, why)
        self._ask(lambda: self._client.set_prompt_alias(self.name, PRODUCTION, target))

    def withdraw(self, number: int, who: str | None, why: str) -> None:
        """Let no version be the challenger."""
        self.note("withdraw", number, None, who, why)
        self._ask(lambda: self._client.delete_prompt_alias(self.name, CHALLENGER))

    def add(self, document: Mapping[str, Any], alias: str, who: str | None, why: str) -> int:
        """Register a version, and let an alias name it.

        Args:
            document: The fields of :class:`Version` but its number, as JSON values.
            alias: ``"production"`` or ``"challenger"``.
            who: Who publishes; the process's user by default.
            why: The reason.

        Raises:
            ArgumentValueError: The document is longer than MLflow keeps.
        """
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
        if len(text) > _LONGEST:
            remedy = "Shorten the texts or the demonstrations: see Guards(max_tokens=…)."
            raise ArgumentValueError(
                "run", len(text), f"needs over {_LONGEST:,} characters in the registry", remedy
            )
        digest = hashlib.sha256(text.encode()).hexdigest()
        prompt = self._ask(
            lambda: self._client.register_prompt(
                name=self.name, template=text, commit_message=why[:200]
            )
        )
        number = int(prompt.version)
        self.note("publish", None, number, who, why, sha256=digest)
        self._ask(lambda: self._client.set_prompt_tag(self.name, f"{_DIGEST}{number}", digest))
        self._ask(lambda: self._client.set_prompt_alias(self.name, alias, number))
        return number

    def version(self, number: int) -> Version:
        """Return a version.

        Raises:
            RegistryError: There is none of that number, or it is not as it was published.
        """
        prompt = self._ask(lambda: self._client.get_prompt_version(self.name, number))
        audit = self.audit()
        digests = [
            line.get("sha256")
            for line in audit
            if line["action"] == "publish" and line["to"] == number
        ]
        if not digests and any(line["action"] == "unreadable" for line in audit):
            tags = self._ask(lambda: self._client.get_prompt(self.name)).tags
            digests = [tags.get(f"{_DIGEST}{number}")]
        digest = hashlib.sha256(prompt.template.encode()).hexdigest()
        if digests != [digest]:
            problem = f"version {number} is not as it was published; publish it again"
            raise RegistryError(self.name, problem)
        try:
            return _VERSION.validate_python(
                {**json.loads(prompt.template), "number": number, "sha256": digest}
            )
        except (ValueError, ValidationError) as error:
            raise RegistryError(self.name, f"version {number} cannot be read: {error}") from error
