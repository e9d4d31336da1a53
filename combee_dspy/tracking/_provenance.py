"""What code a run ran: hashes of the program's script, of this package, of the lock file and of what is installed."""

from __future__ import annotations

import hashlib
import platform
import sys
from importlib import metadata
from pathlib import Path

__all__ = ["provenance"]

_LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock", "requirements.txt")
_VERSIONS = ("combee-dspy", "dspy", "gepa", "mlflow")


def provenance() -> dict[str, str]:
    """Return parameters in the groups ``digest/`` and ``version/``; one that cannot be known is left out.

    ``digest/code`` is over this package's source, ``digest/script`` over the
    file that was started, ``digest/lock`` over the first lock file found in the
    working directory or above it, and ``digest/environment`` over the names
    and versions of all installed distributions. Each is a SHA-256.
    """
    found = {"version/python": platform.python_version()}
    installed = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] if distribution.metadata else None
        if name:
            installed[name.lower()] = distribution.version
    found.update({f"version/{name.replace('-', '_')}": installed[name] for name in _VERSIONS if name in installed})
    found["digest/environment"] = _of_text("\n".join(f"{name}=={installed[name]}" for name in sorted(installed)))
    found["digest/code"] = _of_files(sorted(Path(__file__).parents[1].rglob("*.py")))
    script, lock = _script(), _lock()
    if script is not None:
        found["digest/script"] = _of_files([script])
    if lock is not None:
        found["digest/lock"] = _of_files([lock])
    return {name: digest for name, digest in found.items() if digest}


def _script() -> Path | None:
    started = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(started) if started and Path(started).is_file() else None


def _lock() -> Path | None:
    here = Path.cwd()
    places = (folder / name for folder in (here, *here.parents) for name in _LOCKS)
    return next((path for path in places if path.is_file()), None)


def _of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _of_files(files: list[Path]) -> str:
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(file.name.encode() + b"\0")
            digest.update(file.read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()
