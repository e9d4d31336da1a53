"""A task's environment made of Linux namespaces: for tests of the harness, where there is no
container engine.

It is no Terminal-Bench environment. The task sees this machine's own ``/usr``,
read only, in place of its image; there is no network, one user, and no limit on
memory. Tasks that need their image are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import signal
import stat
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import EnvironmentCapabilities

from combee_harbor.dockerfile import Recipe, read_recipe

__all__ = ["NamespaceEnvironment"]

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_OWN = ("proc", "dev", "tmp", "root", "etc", "var", "run", "home", "opt", "srv", "logs", "old")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHOWN = 1 << 20
_GRACE = 5

# Runs as the first process of the new namespaces. What it mounts ends with them.
# pivot_root is where an ordinary user's PATH does not lead on every distribution.
_LAYOUT = """
set -e
PATH=$PATH:/usr/sbin:/sbin
root=$1
mount --bind "$root" "$root"
shift
for name in "$@"; do
    mount --rbind "/$name" "$root/$name"
    mount -o remount,bind,ro "$root/$name"
done
for name in null zero full random urandom tty; do
    [ -e "/dev/$name" ] && mount --bind "/dev/$name" "$root/dev/$name" || true
done
mount -t proc proc "$root/proc"
cd "$root"
pivot_root . old
umount -l /old
cd /
rmdir /old
echo ready
exec /usr/bin/env -i PATH=/usr/bin:/bin sleep infinity
"""


class NamespaceEnvironment(BaseEnvironment):
    """User, mount, process and network namespaces around a folder. For harness tests only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recipe: Recipe | None = None
        self._holder: asyncio.subprocess.Process | None = None
        self._root: Path | None = None
        self._inner = 0

    @staticmethod
    @override
    def type() -> str:
        return "linux-namespaces, for harness tests only"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @override
    def _validate_definition(self) -> None:
        if not self._network_disabled:
            raise ValueError(
                "the namespace environment has no network: set [environment] network_mode = 'no-network' in task.toml"
            )
        read_recipe(self.environment_dir, self.task_env_config.workdir)

    @override
    async def start(self, force_build: bool) -> None:
        self._recipe = read_recipe(self.environment_dir, self.task_env_config.workdir)
        self._root = Path(tempfile.mkdtemp(prefix="root-", dir=os.environ.get("TMPDIR")))
        self._lay_out(self._root)
        binds = [name for name in _SYSTEM if Path("/", name).is_dir() and not Path("/", name).is_symlink()]
        self._holder = await asyncio.create_subprocess_exec(
            "unshare",
            "-Urmpf",
            "-n",
            "--kill-child",
            "sh",
            "-c",
            _LAYOUT,
            "sh",
            str(self._root),
            *binds,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said = await self._holder.stdout.readline()
        if said.strip() != b"ready":
            error = (await self._holder.stderr.read(2_000)).decode(errors="replace").strip()
            raise RuntimeError(f"Linux namespaces cannot be set up here: {error or 'unshare said nothing'}")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text(encoding="ascii")
        self._inner = int(children.split()[0])
        folders = {self._recipe.workdir, "/logs/agent", "/logs/verifier", "/logs/artifacts"}
        await self._must(["mkdir", "-p", *sorted(folders)])
        for source, target in self._recipe.copies:
            place = (self.environment_dir / source).resolve()
            if not place.is_relative_to(self.environment_dir.resolve()):
                raise ValueError(f"COPY {source} leaves the task's folder")
            if place.is_dir():
                await self.upload_dir(place, target)
            else:
                await self.upload_file(place, target + place.name if target.endswith("/") else target)
        await self._upload_environment_dir_after_start()

    def _lay_out(self, root: Path) -> None:
        for name in _OWN:
            (root / name).mkdir()
        (root / "tmp").chmod(0o1777)
        (root / "var" / "tmp").mkdir(mode=0o1777)
        for name in _SYSTEM:
            host = Path("/", name)
            if host.is_symlink():
                (root / name).symlink_to(os.readlink(host))
            elif host.is_dir():
                (root / name).mkdir()
        for name in _DEVICES:
            (root / "dev" / name).touch()
        for name, target in (
            ("fd", "/proc/self/fd"),
            ("stdin", "fd/0"),
            ("stdout", "fd/1"),
            ("stderr", "fd/2"),
        ):
            (root / "dev" / name).symlink_to(target)
        (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n", encoding="ascii")
        (root / "etc" / "group").write_text("root:x:0:\n", encoding="ascii")
        (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n", encoding="ascii")
        if Path("/etc/alternatives").is_dir():
            shutil.copytree("/etc/alternatives", root / "etc" / "alternatives", symlinks=True)
        if Path("/etc/ld.so.cache").exists():
            shutil.copy("/etc/ld.so.cache", root / "etc" / "ld.so.cache")

    @override
    async def stop(self, delete: bool) -> None:
        holder, self._holder = self._holder, None
        if holder is not None and holder.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                holder.kill()
            await holder.wait()
        root, self._root = self._root, None
        if root is not None:
            await asyncio.to_thread(_remove, root)

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source, target = Path(source_path), PurePosixPath(target_path)
        data = _packed(source, target.name)
        await self._unpack(data, str(target.parent))

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._unpack(_packed(Path(source_dir), "."), target_dir)

    async def _unpack(self, data: bytes, folder: str) -> None:
        await self._must(["mkdir", "-p", folder])
        await self._must(["tar", "-xf", "-", "--no-same-owner", "-C", folder], data)

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        # Read from inside: outside, a link that the task made could lead anywhere.
        data = await self._must(["cat", "--", source_path])
        Path(target_path).write_bytes(data)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        data = await self._must(["tar", "-cf", "-", "-C", source_dir, "."])
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(data)) as packed:
            packed.extractall(target_dir, filter=transfer_tar_filter)

    async def _must(self, argv: list[str], data: bytes = b"") -> bytes:
        code, out, error = await self._inside(argv, data, limit=None)
        if code != 0:
            raise RuntimeError(f"{argv[0]} failed in the environment: {error.decode(errors='replace')[:500]}")
        return out

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        if self._resolve_user(user) not in (None, "root", 0):
            raise ValueError(f"the namespace environment has no user {user!r}")
        if self._recipe is None:
            raise RuntimeError("the environment has not been started")
        variables = {**self._recipe.env, **(self._merge_env(env) or {})}
        given = [f"{name}={value}" for name, value in {"PATH": _PATH, "HOME": "/root", **variables}.items()]
        place = cwd or self._recipe.workdir
        argv = [
            "/usr/bin/env",
            "-i",
            *given,
            "/bin/bash",
            "-c",
            f'cd "$0" || exit 125\n{command}',
            place,
        ]
        code, out, error = await self._inside(argv, b"", timeout=timeout_sec)
        return ExecResult(
            stdout=out.decode(errors="replace"),
            stderr=error.decode(errors="replace"),
            return_code=code,
        )

    async def _inside(
        self,
        argv: list[str],
        data: bytes,
        *,
        timeout: float | None = None,
        limit: int | None = _SHOWN,
    ) -> tuple[int, bytes, bytes]:
        """Run a command in the namespaces; what it started with it is killed when its time is
        up.
        """
        if self._holder is None or self._holder.returncode is not None:
            raise RuntimeError("the environment is gone")
        process = await asyncio.create_subprocess_exec(
            "nsenter",
            "-t",
            str(self._inner),
            "-U",
            "-m",
            "-p",
            "-n",
            "-r",
            "-w",
            "--preserve-credentials",
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout):
                _, out, error = await asyncio.gather(
                    _feed(process, data), _read(process.stdout, limit), _read(process.stderr, limit)
                )
                code = await process.wait()
        except TimeoutError as late:
            raise RuntimeError(f"Command timed out after {timeout} seconds") from late
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return code, out, error


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader, limit: int | None) -> bytes:
    """Read to the end, and keep the first ``limit`` bytes."""
    kept = bytearray()
    while chunk := await stream.read(1 << 16):
        if limit is None or len(kept) < limit:
            kept += chunk
    return bytes(kept if limit is None else kept[:limit])


def _packed(source: Path, name: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as packed:
        packed.add(source, arcname=name)
    return file.getvalue()


def _remove(root: Path) -> None:
    def unlock(function: Any, path: str, _error: BaseException) -> None:
        for place in (os.path.dirname(path), path):
            with contextlib.suppress(OSError):
                os.chmod(place, stat.S_IRWXU, follow_symlinks=False)
        with contextlib.suppress(OSError):
            function(path)

    shutil.rmtree(root, onexc=unlock)
