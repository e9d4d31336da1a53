"""Takes keys and personal data out of texts, and notes who runs what."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import TypeVar, cast

import dspy

from combee_dspy.events import RunStarted
from combee_dspy.journal import Effect
from combee_dspy.lms.redact import personal
from combee_dspy.options import Privacy
from combee_dspy.rollouts import fields_with_texts, hashed, with_texts

T = TypeVar("T")

NOT_KEPT = "it kept hashes alone (privacy.texts), so the answers that going on needs are not there"
"""Why a run cannot go on whose journal holds no texts."""

_SHOWN = 2_000
_CLASS = re.compile(r"\w+(?=: )")


class Texts:
    """Scrubs texts before anything follows from them, and hashes them before they are written.

    Args:
        options: The user's.
        mask: Takes keys out of a text.
    """

    def __init__(self, options: Privacy, mask: Callable[[str], str]) -> None:
        self.redacts = options.texts != "all"
        self._hashes = options.texts == "hashes"
        marks = personal({name: re.compile(pattern) for name, pattern in options.patterns.items()})
        self.scrub = (lambda text: marks(mask(text))) if self.redacts else mask
        """Returns a text without keys, and without personal data where these are redacted."""
        # Written nowhere: without it nobody can try texts out on a hash.
        self._key = secrets.token_bytes(32)
        self.print = repr((options.texts, options.patterns)) if self.redacts else ""

    def scrubbed(self, value: T) -> T:
        """Return JSON values with every text in them scrubbed."""
        scrubbed: object = value
        if isinstance(value, str):
            scrubbed = self.scrub(value)
        elif isinstance(value, list):
            scrubbed = [self.scrubbed(item) for item in value]
        elif isinstance(value, dict):
            scrubbed = {key: self.scrubbed(item) for key, item in value.items()}
        return cast("T", scrubbed)

    def values(self, values: Mapping[str, object]) -> Mapping[str, object]:
        """Return an LM's inputs without personal data where these are redacted."""
        return fields_with_texts(values, self.scrub) if self.redacts else values

    def example(self, example: dspy.Example) -> dspy.Example:
        """Return an example as all but the program and its metric may see it."""
        masked: dspy.Example = with_texts(example, self.scrub) if self.redacts else example
        return masked

    def written(self, effect: Effect) -> Effect:
        """Return an effect as it is written."""
        if not self._hashes:
            return effect
        value = hashed(effect.value, self._hash) if effect.kind != "failed" else effect.value
        return replace(
            effect, value=value, error=None if effect.error is None else self.error(effect.error)
        )

    def error(self, error: str) -> str:
        """Return an error as it is written: its class stays readable."""
        if not self._hashes:
            return error
        named = _CLASS.match(error)
        return self._hash(error) if named is None else f"{named[0]}: {self._hash(error)}"

    def _hash(self, text: str) -> str:
        return (
            "hash:"
            + hashlib.blake2b(
                text.encode("utf-8", "replace"), key=self._key, digest_size=8
            ).hexdigest()
        )


def inputs_text(example: dspy.Example, most: int | None = _SHOWN) -> str:
    """Return an example's inputs as people read them, of so many characters at most."""
    return _text_of(example.inputs().toDict() if len(example) else {}, most)


def labels_text(example: dspy.Example) -> str:
    """Return what an example holds beside its inputs, as people read it; empty where it holds
    nothing.
    """
    fields = example.labels().toDict() if len(example) else {}
    return _text_of(fields, _SHOWN) if fields else ""


def _text_of(fields: Mapping[str, object], most: int | None) -> str:
    try:
        text = json.dumps(fields, default=str, ensure_ascii=False)
    except TypeError:  # keys that JSON lacks
        text = repr(fields)
    return text if most is None or len(text) <= most else text[:most] + "…"


def audit(options: Privacy, prints: Mapping[str, str]) -> RunStarted:
    """Return who compiles what with which code, now.

    The commit is that of the repository that the process was started in, with ``-dirty`` where it
    was changed.
    """
    who: dict[str, str | None] = {"user": user(), "host": platform.node()}
    if options.who == "hash":
        who = {
            "user": hashlib.sha256(f"{who['user']}@{who['host']}".encode()).hexdigest()[:16],
            "host": None,
        }
    elif options.who == "none":
        who = {"user": None, "host": None}
    return RunStarted(
        **who,
        process=os.getpid(),
        python=platform.python_version(),
        version=version("combee-dspy"),
        dspy=version("dspy"),
        commit=_commit(),
        program=prints["program"],
        metric=prints["metric"],
        texts=options.texts,
        at=time.time(),
    )


def user() -> str | None:
    """Return the name of the process's user, if it has one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return None


def _commit() -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    # No hook of the repository runs, and nothing in it is written.
    command = [
        git,
        "--no-optional-locks",
        "-c",
        "core.fsmonitor=false",
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 - fixed words
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
