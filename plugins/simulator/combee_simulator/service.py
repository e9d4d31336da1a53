"""The simulated service: its thread, its socket on the loopback interface, and its LM."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any

from aiohttp import web

from combee_dspy.exceptions import ArgumentValueError, ServiceError
from combee_simulator.answering import SimulatedModel
from combee_simulator.endpoint import RequestHandler, SimulatedConfig
from combee_simulator.knowledge import SimulatedTask
from combee_simulator.replies import MODEL
from combee_simulator.stats import CallRecord, Counters, ServiceStats

if TYPE_CHECKING:
    import dspy

__all__ = ["SimulatedService"]

_HOST = "127.0.0.1"
_BACKLOG = 2048
_STOP_SECONDS = 10.0
# Longer than any pause between two calls of a run: a client that reuses a connection must find it
# open.
_KEEP_ALIVE_SECONDS = 3600.0


class SimulatedService:
    """An OpenAI-compatible chat service that simulates a language model on the loopback interface.

    It serves ``POST /v1/chat/completions`` (without streaming),
    ``GET /v1/models`` and ``GET /stats``, from one background thread. What it
    answers is a function of the seed and the request's content alone: the
    same request gets the same answer and the same latency however many
    workers ask, unless its temperature is above 0, where each repetition is a
    further draw, or failures are injected, where each attempt is one. A
    request without a temperature counts as temperature 0.

    Nothing that comes out of it is a measurement of a language model: its
    model is called "simulated", and results that rest on it are to be
    labelled so.

    Args:
        config: The settings; the defaults if None.
        task: What the model can know; None for a model that only fills in forms.
        model: Which model answers.

    Example:
        >>> config = SimulatedConfig(time_scale=0.0)
        >>> with SimulatedService(config, task) as service:  # doctest: +SKIP
        ...     dspy.configure(lm=service.lm())
    """

    def __init__(
        self,
        config: SimulatedConfig | None = None,
        task: SimulatedTask | None = None,
        model: type[SimulatedModel] = SimulatedModel,
    ) -> None:
        self._config = config or SimulatedConfig()
        self._task = task
        self._model = model
        self._counters = Counters(self._config.slots, self._config.time_scale)
        self._running: Running | None = None

    @property
    def config(self) -> SimulatedConfig:
        """The settings."""
        return self._config

    @property
    def url(self) -> str:
        """The root of the service, for example ``http://127.0.0.1:40123``, while it runs."""
        if self._running is None:
            raise ServiceError(
                "the simulated service is not running. Use it in a with statement or call start()."
            )
        return f"http://{_HOST}:{self._running.port}"

    @property
    def api_base(self) -> str:
        """The ``api_base`` to give to a client: :attr:`url` with ``/v1``."""
        return f"{self.url}/v1"

    def start(self) -> SimulatedService:
        """Start serving and return the service. Does nothing while it runs.

        Raises:
            ServiceError: The port cannot be bound.
        """
        if self._running is None:
            config = self._config
            model = self._model(
                self._task, config.capacity, config.seed, config.reasoning, config.wording
            )
            self._running = Running(RequestHandler(config, model, self._counters), config.port)
        return self

    def stop(self) -> None:
        """Stop serving. Open connections are closed, answers that wait are dropped."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    def __enter__(self) -> SimulatedService:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def lm(self, **kwargs: Any) -> dspy.LM:
        """Return a ``dspy.LM`` that calls this service, by default at 0 and without a cache.

        Sets ``LITELLM_LOCAL_MODEL_COST_MAP`` where the environment does not:
        DSPy would otherwise ask a host outside for its list of models with the
        first call. The list in its package then serves every LM of the process.

        Raises:
            ServiceError: The service is not running.
        """
        import dspy

        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        settings: dict[str, Any] = {
            "api_base": self.api_base,
            "api_key": MODEL,
            "cache": False,
            "temperature": 0.0,
        }
        return dspy.LM(f"openai/{MODEL}", **{**settings, **kwargs})

    def stats(self) -> ServiceStats:
        """Return the counters, exact for every call that has been answered. Thread-safe."""
        return self._counters.snapshot()

    def calls(self) -> tuple[CallRecord, ...]:
        """Return the calls that have ended since the last reset, where ``log_calls`` is set.

        Thread-safe.
        """
        return self._counters.calls()

    def reset_stats(self) -> None:
        """Set the counters to zero and forget the log. Calls in flight are counted when they end.

        Thread-safe.
        """
        self._counters.reset()

    def resize(self, slots: int) -> None:
        """Serve another number of calls at once from now on; those that hold a slot keep it.

        Thread-safe.
        """
        if slots < 1:
            raise ArgumentValueError(
                "slots", slots, "must be at least 1", "A service without a slot answers nothing."
            )
        if self._running is not None:
            self._running.loop.call_soon_threadsafe(self._running.endpoint.resize, slots)

    def forget_attempts(self) -> None:
        """Forget which contents were seen, so that repeated draws and injected failures start anew.

        Thread-safe.
        """
        if self._running is not None:
            self._running.loop.call_soon_threadsafe(self._running.endpoint.attempts.clear)


class Running:
    """The thread, loop and socket of a started service."""

    def __init__(self, endpoint: Any, port: int) -> None:
        self.endpoint = endpoint
        self.loop = asyncio.new_event_loop()
        self._runner = web.AppRunner(
            endpoint.application(),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            shutdown_timeout=0.001,
        )
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="simulated-service", daemon=True
        )
        self._thread.start()
        try:
            self.port = self._wait(self._listen(port))
        except OSError as error:
            self.stop()
            raise ServiceError(
                f"the simulated service cannot listen on {_HOST}:{port}: {error}. "
                "Leave port at 0 to let the system choose a free one."
            ) from error

    async def _listen(self, port: int) -> int:
        await self._runner.setup()
        await web.TCPSite(self._runner, _HOST, port, backlog=_BACKLOG).start()
        return int(self._runner.addresses[0][1])

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_STOP_SECONDS)

    def stop(self) -> None:
        self._wait(self._runner.cleanup())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_SECONDS)
        self.loop.close()
