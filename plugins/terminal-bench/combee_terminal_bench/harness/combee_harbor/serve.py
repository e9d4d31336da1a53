"""Serves one client over a Unix socket: a JSON object a line, one answer each.

``python -m combee_harbor.serve FOLDER`` listens on ``FOLDER/s`` and prints ``listening``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from combee_harbor.agent import Desk

__all__ = ["Server"]

_LINE = 64 << 20
_TOLD = 20_000
_AGENTS = {
    "combee": AgentConfig(import_path="combee_harbor.agent:BridgeAgent"),
    "oracle": AgentConfig(name="oracle"),
    "nop": AgentConfig(name="nop"),
}
_ENVIRONMENTS = {
    "docker": {"type": "docker"},
    "namespace": {"import_path": "combee_harbor.namespaces:NamespaceEnvironment"},
}
# Harbor's errors that say nothing about an environment but that it took too long.
_LATE = frozenset(
    {
        "EnvironmentStartTimeoutError",
        "VerifierTimeoutError",
        "AgentSetupTimeoutError",
        "TimeoutError",
    }
)
_UNREAD = frozenset({"RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"})


class Server:
    """One trial at a time.

    Args:
        folder: Where trials lie while they run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._desk: Desk | None = None
        self._trial: Trial | None = None
        self._running: asyncio.Task[TrialResult] | None = None
        self._judged: dict[str, Any] | None = None

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request. A fault of the environment is an answer too."""
        try:
            match request.get("op"):
                case "open":
                    return await self._open(request)
                case "exec":
                    return await self._exec(str(request["command"]), int(request["timeout"]))
                case "evaluate":
                    return await self._evaluate()
                case "close":
                    await self._close()
                    return {}
                case other:
                    return {"fault": "protocol", "reason": f"no such request: {other!r}"}
        except Exception as error:
            # The client tells faults from wrong answers; it must hear of every one.
            return {"fault": "lost", "reason": f"{type(error).__name__}: {error}"}

    async def _open(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._close()
        config = TrialConfig(
            task=TaskConfig(path=Path(request["task"])),
            # The client's, which can then find what a container engine holds if this process is
            # killed.
            trial_name=str(request["trial"]),
            trials_dir=self._folder / "trials",
            agent=_AGENTS[request.get("agent", "combee")].model_copy(deep=True),
            environment=EnvironmentConfig(**_ENVIRONMENTS[request["environment"]]),
        )
        try:
            self._trial = await Trial.create(config)
        except (ValueError, FileNotFoundError, RuntimeError) as error:
            return {"fault": "setup", "reason": f"{type(error).__name__}: {error}"}
        self._judged = None
        self._desk = Desk.present = Desk()
        self._running = asyncio.create_task(self._trial.run())
        opened = {"instruction": self._trial.task.instruction.strip()}
        if request.get("agent", "combee") != "combee":
            return opened
        ready = asyncio.create_task(self._desk.ready.wait())
        try:
            await asyncio.wait({ready, self._running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._running.done():
            return _fault(await self._running) or {
                "fault": "lost",
                "reason": "the trial ended before it began",
            }
        return opened

    async def _exec(self, command: str, timeout: int) -> dict[str, Any]:
        if self._desk is None:
            return {"fault": "protocol", "reason": "no task is open"}
        try:
            result = await self._desk.order(command, timeout)
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
            return {"late": True}
        if result is None:
            return {"over": True}
        return {
            "stdout": result.stdout or "",
            "stderr": result.stderr or "",
            "code": result.return_code,
        }

    async def _evaluate(self) -> dict[str, Any]:
        if self._judged is None:
            if self._desk is None or self._running is None or self._trial is None:
                return {"fault": "protocol", "reason": "no task is open"}
            self._desk.finish()
            result = await self._running
            paths = self._trial.paths
            if result.verifier_result is None or result.verifier_result.rewards is None:
                printed = _tail(paths.test_stdout_path)
                fault = _fault(result) or {"fault": "lost", "reason": "the verifier gave no reward"}
                return {**fault, "reason": f"{fault['reason']}\n{printed}".strip()}
            self._judged = {
                "rewards": result.verifier_result.rewards,
                "printed": _tail(paths.test_stdout_path),
                "report": _tail(paths.verifier_dir / "ctrf.json", 4 << 20),
                "error": result.exception_info.exception_type if result.exception_info else None,
                "where": str(self._trial.agent_environment.type()),
            }
        return self._judged

    async def _close(self) -> None:
        running, trial = self._running, self._trial
        self._running = self._trial = self._desk = Desk.present = None
        if running is not None:
            running.cancel()
            # Harbor stops the environment on its way out.
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running
        if trial is not None:
            shutil.rmtree(trial.paths.trial_dir, ignore_errors=True)


def _fault(result: TrialResult) -> dict[str, Any] | None:
    info = result.exception_info
    if info is None:
        return None
    kind = "timeout" if info.exception_type in _LATE else "protocol" if info.exception_type in _UNREAD else "start"
    return {"fault": kind, "reason": f"{info.exception_type}: {info.exception_message}"}


def _tail(path: Path, limit: int = _TOLD) -> str:
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - limit))
        return file.read(limit).decode(errors="replace")


async def _serve(folder: Path) -> None:
    server = Server(folder)
    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = await server.answer(json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        finally:
            await server._close()
            writer.close()
            ended.set()

    listening = await asyncio.start_unix_server(talk, str(folder / "s"), limit=_LINE)
    print("listening", flush=True)
    async with listening:
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
