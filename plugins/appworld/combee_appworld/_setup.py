"""AppWorld's own environment: built once from PyPI, by hash, and used without a network from then
on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from combee_dspy.exceptions import ArgumentValueError, CombeeError

__all__ = [
    "AppWorldSetupError",
    "Installation",
    "find_installation",
    "home",
    "install",
    "make_miniature",
]

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
SUPPORTED = ((3, 11), (3, 12))
"""Python versions that AppWorld 0.1.3 runs on; on 3.13 its freezegun cannot be imported."""

_NAMES = ("python3.12", "python3.11", "python3", "python")
_UNPACK = "from appworld.install import install_package; install_package()"
_CHECK = "import appworld.serve.environment"


class AppWorldSetupError(CombeeError):
    """AppWorld's environment cannot be built.

    Args:
        step: What was being done.
        reason: What it said.
        remedy: What to do.
    """

    def __init__(self, step: str, reason: str, remedy: str) -> None:
        self.step = step
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{step} failed: {reason} {remedy}")


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment that is ready.

    Attributes:
        folder: The virtual environment.
        digest: SHA-256 of the requirements that it was built from.
    """

    folder: Path
    digest: str

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


def home() -> Path:
    """Return the directory that keeps environments; it need not exist.

    ``$COMBEE_APPWORLD_HOME`` where it is set, else ``combee_appworld`` in the
    user's cache directory (``$XDG_CACHE_HOME`` or ``~/.cache``).
    """
    chosen = os.environ.get("COMBEE_APPWORLD_HOME")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "combee_appworld"


def _digest() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


def find_installation() -> Installation | None:
    """Return the environment built from the present requirements, where there is one."""
    folder = home() / f"venv-{_digest()[:16]}"
    # A folder gets this name only once everything in it is done.
    return Installation(folder, _digest()) if (folder / "bin" / "python").exists() else None


def install(
    python: str | None = None,
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Installation:
    """Build AppWorld's environment, unless it is there.

    Takes about a minute and 150 MB. Several processes may call it at once.

    Args:
        python: The interpreter to build with; by default this one where AppWorld
            runs on it, else the first on the path that does.
        force: Whether to build it again.
        say: Hears of each step.

    Raises:
        AppWorldSetupError: No interpreter fits, or a step failed.
        ArgumentValueError: ``python`` does not fit.
    """
    ready = find_installation()
    if ready is not None and not force:
        return ready
    chosen = _interpreter(python)
    home().mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=home()))
    try:
        inner = building / "bin" / "python"
        say(f"making a virtual environment with {chosen}")
        _run("making a virtual environment", [chosen, "-m", "venv", str(building)])
        say("installing AppWorld and what it needs from PyPI, by hash")
        options = [
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
            "--only-binary",
            ":all:",
        ]
        _run(
            "installing from PyPI",
            [str(inner), "-m", "pip", "install", *options, "-r", str(REQUIREMENTS)],
        )
        say("unpacking AppWorld's apps")
        _run("unpacking AppWorld's apps", [str(inner), "-c", _UNPACK], folder=building)
        _run("importing AppWorld", [str(inner), "-c", _CHECK], folder=building)
        final = home() / f"venv-{_digest()[:16]}"
        if force and final.exists():
            shutil.rmtree(final)
        try:
            building.rename(final)
        except OSError as error:
            # Another process was faster; what it built is the same.
            if find_installation() is None:
                raise AppWorldSetupError("putting it into place", f"{error}.", f"Check {home()}.") from error
        return Installation(final, _digest())
    finally:
        shutil.rmtree(building, ignore_errors=True)


def make_miniature(root: Path, installation: Installation | None = None) -> Path:
    """Write a miniature world: 21 tasks over AppWorld's real apps, made by its own classes.

    The same files each time. For trying things out and for tests: it is no
    benchmark, and its figures are no AppWorld figures.

    Args:
        root: An ``APPWORLD_ROOT`` to write; a directory that holds no ``data`` yet.
        installation: AppWorld's environment; the one that is found by default.

    Returns:
        The root.

    Raises:
        AppWorldSetupError: AppWorld is not installed, or the world cannot be written.
        ArgumentValueError: There is data already.
    """
    installation = installation or find_installation()
    if installation is None:
        raise AppWorldSetupError("making a world", "AppWorld is not installed.", "Run `combee appworld setup`.")
    if os.path.lexists(root / "data"):
        raise ArgumentValueError("root", str(root), "holds data already", "Name another directory.")
    root.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("_miniature.py")
    with tempfile.TemporaryDirectory(prefix="combee-appworld-") as scratch:
        _run(
            "making a world",
            [str(installation.python), str(script), str(root.resolve())],
            folder=Path(scratch),
        )
    return root


def _interpreter(python: str | None) -> str:
    if python is not None:
        if _version(python) not in SUPPORTED:
            raise ArgumentValueError(
                "python",
                python,
                "is no Python that AppWorld runs on",
                "Give a Python 3.11 or 3.12.",
            )
        return python
    if sys.version_info[:2] in SUPPORTED:
        return sys.executable
    for name in _NAMES:
        found = shutil.which(name)
        if found and _version(found) in SUPPORTED:
            return found
    remedy = "Install one, or name it: combee appworld setup --python /path/to/python3.12."
    raise AppWorldSetupError("looking for Python", "AppWorld runs on 3.11 and 3.12; neither is on PATH.", remedy)


def _version(python: str) -> tuple[int, ...] | None:
    """Return an interpreter's version, or ``None`` where it does not run: a shim may exist and
    refuse to.
    """
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        return tuple(int(part) for part in done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _run(step: str, command: Sequence[str], folder: Path | None = None) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if folder is not None:
        # AppWorld and IPython write to the user's home unless told otherwise.
        env |= {
            "APPWORLD_CACHE": str(folder / "cache"),
            "APPWORLD_ROOT": str(folder),
            "HOME": str(folder),
        }
        env |= {"IPYTHONDIR": str(folder / "ipython"), "PYTHON_DOTENV_DISABLED": "1"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=folder)
    except OSError as error:
        raise AppWorldSetupError(step, f"{error}.", "Check the interpreter.") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-1_500:]
        remedy = "It needs PyPI once, and pip's own settings apply." if "pip" in command else "Try --force."
        raise AppWorldSetupError(step, f"it ended with code {done.returncode} and said: {said}", remedy)
