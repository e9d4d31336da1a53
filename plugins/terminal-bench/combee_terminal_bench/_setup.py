"""Harbor's own environment: where it is, and how it is built."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from combee_dspy.exceptions import ArgumentValueError, CombeeError
from combee_dspy.files import write_plain

__all__ = ["VARIABLE", "HarborSetupError", "default_venv", "docker_here", "harbor_python", "set_up"]

_REQUIREMENTS = Path(__file__).parent / "harness" / "requirements.txt"

VARIABLE = "COMBEE_HARBOR_PYTHON"
"""Names a Python that has Harbor, in place of the environment that :func:`set_up` builds."""

_RECENT = "import sys; raise SystemExit(sys.version_info < (3, 12))"
_HAS = "import importlib.metadata as m; print(m.version('harbor'))"


class HarborSetupError(CombeeError):
    """Harbor's environment cannot be built.

    Args:
        step: The command that failed.
        reason: What it said.
    """

    def __init__(self, step: str, reason: str) -> None:
        self.step = step
        self.reason = reason
        remedy = "See that a package index can be reached, and run `combee terminal-bench setup` again."
        super().__init__(f"{step} failed: {reason} {remedy}")


def default_venv() -> Path:
    """Return the folder that :func:`set_up` builds into: below ``XDG_CACHE_HOME``, or
    ``~/.cache``.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "combee_dspy" / "terminal-bench" / "venv"


def harbor_python(python: str | None = None) -> str:
    """Return the Python that Harbor runs under.

    Args:
        python: The user's choice; by default ``COMBEE_HARBOR_PYTHON``, then the environment that
            was set up.

    Raises:
        ArgumentValueError: There is none.
    """
    chosen = python or os.environ.get(VARIABLE) or str(default_venv() / "bin" / "python")
    if shutil.which(chosen) is None:
        remedy = f"Run `combee terminal-bench setup`, or name a Python that has harbor 0.24.0 in {VARIABLE}."
        raise ArgumentValueError("python", chosen, "is no Python that has Harbor", remedy)
    return chosen


def set_up(venv: Path | None = None, python: str | None = None) -> str:
    """Build Harbor's environment from the package index, unless it is there.

    Args:
        venv: Where; :func:`default_venv` by default. Its folder is replaced.
        python: A Python 3.12 or newer; by default the first one found on ``PATH`` or among pyenv's.

    Returns:
        The Python of the environment.

    Raises:
        ArgumentValueError: There is no Python 3.12 or newer.
        HarborSetupError: Harbor cannot be installed.
    """
    target = venv or default_venv()
    built, mark = str(target / "bin" / "python"), target / "requirements.sha256"
    digest = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    if mark.is_file() and mark.read_text(encoding="ascii") == digest and _said(built, _HAS) is not None:
        return built
    base = python or next(_recent(), None)
    if base is None or _said(base, _RECENT) is None:
        remedy = "Install Python 3.12 or 3.13, or name one: combee terminal-bench setup --python /path/to/python3.12"
        raise ArgumentValueError("python", base, "is no Python 3.12 or newer, which Harbor needs", remedy)
    _run([base, "-m", "venv", "--clear", str(target)])
    uv = shutil.which("uv")
    if uv is not None:
        install = [uv, "pip", "install", "--quiet", "--python", built]
    else:
        install = [built, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*install, "--require-hashes", "-r", str(_REQUIREMENTS)])
    write_plain(mark, digest)
    return built


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise HarborSetupError(" ".join(command[:4]), (done.stderr or done.stdout).strip()[-2_000:])


def docker_here() -> bool:
    """Tell whether a Docker engine answers."""
    if shutil.which("docker") is None:
        return False
    try:
        asked = subprocess.run(["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def _recent() -> Iterator[str]:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    managed = sorted(str(path) for path in pyenv.glob("3.1[2-9]*/bin/python")) if pyenv.is_dir() else []
    for name in (sys.executable, "python3.12", "python3.13", "python3.14", "python3", *managed):
        found = shutil.which(name)
        # A version manager's shim may exist and still refuse to run: ask the interpreter itself.
        if found and _said(found, _RECENT) is not None:
            yield found


def _said(python: str, code: str) -> str | None:
    try:
        asked = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None
