"""One llama.cpp server inside this process, with parallel slots, on loopback."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, LocalModelError
from combee_dspy.lms.embedded.model_file import SMOLLM2, model_path

__all__ = ["EmbeddedModel", "ServerOptions", "shared_server"]

_SILENT = -1
"""llama.cpp's verbosity at which it writes nothing, errors included."""

_PREFIX_CACHE_MIB = 256
"""Memory for prompt prefixes that lost their slot, in MiB: about 10,000 tokens of this model."""

_NOT_RUNNING = "the embedded model is not running: use it in a `with` block, or call start() first."


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What tells one embedded server from another.

    Attributes:
        slots: Requests that are decoded together. Further requests wait in a queue.
        context: Longest prompt plus answer of one request, in tokens. One slot keeps
            about 23 KB of memory a token.
        threads: CPU threads; 0 means one for each CPU this process may use.
        seed: Seed of the sampler, where the temperature is above 0.
        gguf: Path of another GGUF file to serve; None means the pinned one.
    """

    slots: int = 4
    context: int = 4096
    threads: int = 0
    seed: int = 0
    gguf: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("slots", 1), ("context", 128), ("threads", 0), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ArgumentTypeError(name, value, "is not a whole number", f"Give a whole number from {least} up.")
            if value < least:
                raise ArgumentValueError(name, value, f"is below {least}", f"Give a whole number from {least} up.")

    @property
    def model_name(self) -> str:
        """Name of the model these options serve."""
        return SMOLLM2.name if self.gguf is None else Path(self.gguf).stem


class EmbeddedModel:
    """A small language model served inside this process, OpenAI-compatible, on loopback.

    A context manager: entering loads the model (about a second), leaving stops
    the server and frees its memory. The port is chosen by the system and every
    request must carry a key drawn for this server, so that other users of the
    machine cannot spend its CPU. Thread-safe; ``start`` and ``close`` may be
    called more than once. A client that sends requests to ``base_url`` on its own
    holds :meth:`in_flight` around each, so that closing waits for it.

    Args:
        options: Slots, context, threads, seed. None means the defaults.

    Example:
        >>> with EmbeddedModel() as model:  # doctest: +SKIP
        ...     print(model.base_url)
    """

    def __init__(self, options: ServerOptions | None = None) -> None:
        self.options = options if options is not None else ServerOptions()
        self._key = secrets.token_urlsafe(24)
        self._changed = threading.Condition()
        self._server: Any = None
        self._pid = 0
        self._busy = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options!r}, running={self.running})"

    def __enter__(self) -> EmbeddedModel:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the server answers in this process."""
        return self._server is not None and self._pid == os.getpid()

    @property
    def base_url(self) -> str:
        """Address of the OpenAI-compatible API, ending in ``/v1``.

        Raises:
            LocalModelError: The server is not running.
        """
        server = self._server
        if server is None:
            raise LocalModelError(_NOT_RUNNING)
        return f"{server.listening_address}/v1"

    @property
    def api_key(self) -> str:
        """The key that requests to this server carry. It is valid nowhere else."""
        return self._key

    def start(self) -> None:
        """Load the model and serve it; return when it answers.

        Raises:
            LocalModelError: xllamacpp is not installed, the weights cannot be had,
                or llama.cpp refuses to load them.
        """
        with self._changed:
            if self.running:
                return
            if self._server is not None:
                _abandon(self._server)  # a forked child has no thread that could stop it
            self._server = _serve(self.options, self._key)
            self._pid, self._busy = os.getpid(), 0

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Hold the server open for one request.

        Raises:
            LocalModelError: The server is not running.
        """
        with self._changed:
            if not self.running:
                raise LocalModelError(_NOT_RUNNING)
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def abandon(self) -> None:
        """Leave the server to the end of the process, without waiting and without locks.

        For a forked child, in which the server's threads do not exist.
        """
        server, self._server = self._server, None
        if server is not None:
            _abandon(server)

    def close(self, grace_s: float = 10.0) -> None:
        """Stop the server and free its memory.

        Args:
            grace_s: How long to wait for requests in flight, in seconds. Where some
                are left, the server is abandoned to the end of the process: llama.cpp
                waits for ever when it is stopped under a request.
        """
        with self._changed:
            ours = self.running
            server, self._server = self._server, None
            idle = ours and self._changed.wait_for(lambda: self._busy == 0, grace_s)
        if server is not None and not idle:
            _abandon(server)
        # Dropping the last reference stops the server's threads and joins them.
        del server


def _abandon(server: Any) -> None:
    """Keep a server from ever being destroyed: one more reference, owned by nobody."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def _import_backend() -> Any:
    """Import xllamacpp with OpenMP threads that sleep, not spin, while they wait.

    OpenMP reads its wait policy once, when its library loads. With its default, two
    threads on two CPUs that other work shares spent 3 to 7 times the CPU and wall time.
    The variable is put back, so that other libraries and child processes keep their own.
    """
    name = "OMP_WAIT_POLICY"
    chosen = os.environ.get(name)
    os.environ.setdefault(name, "PASSIVE")
    try:
        return importlib.import_module("xllamacpp")
    finally:
        if chosen is None:
            del os.environ[name]


def _serve(options: ServerOptions, key: str) -> Any:
    try:
        xllamacpp = _import_backend()
    except ImportError as error:
        raise LocalModelError(
            f"the embedded model needs xllamacpp, which cannot be imported: {error}. "
            "Install it with `pip install combee-dspy[local]`."
        ) from error
    path = Path(options.gguf) if options.gguf is not None else model_path()
    if not path.is_file():
        raise LocalModelError(f"there is no model file at {path}. Give the path of a GGUF file.")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {options.model_name}
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads or _cpus()
    params.sampling.seed = options.seed
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.ui = False
    params.endpoint_slots = False
    params.n_gpu_layers = 0
    params.cache_prompt = True
    params.cache_ram_mib = _PREFIX_CACHE_MIB
    params.verbosity = _SILENT
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise LocalModelError(
            f"llama.cpp cannot serve {path} with {options.slots} slots of {options.context} tokens: "
            f"{str(error).rstrip('.')}. "
            "Give fewer slots or a smaller context if memory is short."
        ) from error


def _cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


_SHARED: dict[tuple[int, ServerOptions], EmbeddedModel] = {}
_SHARED_LOCK = threading.Lock()


def shared_server(options: ServerOptions) -> EmbeddedModel:
    """Return this process's server for these options, starting it on first use.

    It is stopped when the interpreter exits. A forked child gets a server of its
    own: the parent's threads do not exist there.

    Raises:
        LocalModelError: See :meth:`EmbeddedModel.start`.
    """
    with _SHARED_LOCK:
        place = (os.getpid(), options)
        server = _SHARED.get(place)
        if server is None:
            server = _SHARED[place] = EmbeddedModel(options)
        server.start()
        return server


def _close_shared() -> None:
    # Popped first: a fork during the wait must not find half-closed servers.
    while _SHARED:
        (pid, _), server = _SHARED.popitem()
        if pid == os.getpid():
            server.close()


def _forget_parent() -> None:
    # The parent may have held the lock when it forked: nobody would release it here.
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    for server in _SHARED.values():
        server.abandon()
    _SHARED.clear()


atexit.register(_close_shared)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
