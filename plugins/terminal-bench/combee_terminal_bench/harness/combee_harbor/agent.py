"""An agent of Harbor's kind whose commands come from elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any, override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

__all__ = ["BridgeAgent", "Desk"]


class Desk:
    """Where commands for the agent of the present trial are put. Used by one event loop.

    Attributes:
        present: The desk of the trial that runs, for :class:`BridgeAgent`, which Harbor makes by
            itself.
        ready: Set once the task is open and commands can be carried out.
        over: Set once no further command will be.
    """

    present: Desk | None = None

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.over = asyncio.Event()
        self._orders: asyncio.Queue[tuple[str, int, asyncio.Future[Any]] | None] = asyncio.Queue()

    async def order(self, command: str, timeout: int) -> Any:
        """Have a command carried out.

        Returns:
            Harbor's ``ExecResult``; ``None`` where the agent's time was used up.
        """
        if self.over.is_set():
            return None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._orders.put((command, timeout, answer))
        ended = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait({answer, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        return await answer if answer.done() else None

    def finish(self) -> None:
        """Let the agent say that it is done."""
        self._orders.put_nowait(None)

    async def serve(self, environment: BaseEnvironment) -> None:
        """Carry out commands until told to finish. Runs in Harbor's phase of the agent, under its
        time limit.
        """
        self.ready.set()
        try:
            while (order := await self._orders.get()) is not None:
                command, timeout, answer = order
                try:
                    result = await environment.exec(command, timeout_sec=timeout)
                except Exception as error:
                    # Whoever asked decides what it means.
                    answer.set_exception(error)
                else:
                    answer.set_result(result)
        finally:
            self.over.set()


class BridgeAgent(BaseAgent):
    """Carries out what :class:`Desk` is told, in the task's environment."""

    @staticmethod
    @override
    def name() -> str:
        return "combee"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        return

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        if Desk.present is None:
            raise RuntimeError("no trial is open")
        await Desk.present.serve(environment)
