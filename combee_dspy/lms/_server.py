"""llama.cpp's servers inside this process: one for each set of options, with parallel slots."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import re
import secrets
import threading
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from combee_dspy.exceptions import LocalModelError, how_to_install
from combee_dspy.lms._weights import SMOLLM2, joined, weights
from combee_dspy.strategies import parameters

_SILENT = -1  # llama.cpp's verbosity at which it writes nothing, errors included
_PREFIX_CACHE_MIB = 256  # for prompt prefixes that lost their slot: about 10,000 tokens of SmolLM2
# Seconds that the process waits at its end for threads that still ask: llama.cpp would crash under
# them.
_GRACE_S = 10.0

# A server lives as long as anyone holds it: one that is dropped here answers what it was asked, and
# is destroyed then.
_SERVERS: dict[EmbeddedOptions, Any] = {}
_LOCK = threading.Lock()
_IN_FLIGHT: set[object] = set()


@parameters
class EmbeddedOptions:
    """What tells one embedded model from another; equal ones share a server.

    Attributes:
        files: Paths of a GGUF file's parts, in order; empty for SmolLM2-135M-Instruct.
        sha256: What the bytes of all parts, one after another, must hash to; ``None`` checks
            nothing.
        slots: Requests that are decoded together. Further requests wait in a queue.
        context: Longest prompt plus answer of one request, in tokens.
    """

    files: tuple[str, ...] = ()
    sha256: str | None = None
    slots: Annotated[int, Field(ge=1, strict=True)] = 4
    context: Annotated[int, Field(ge=128, strict=True)] = 4096

    @property
    def model_name(self) -> str:
        """Name of the model these options serve."""
        return Path(self.files[0]).stem if self.files else SMOLLM2.name


def ask(options: EmbeddedOptions, body: dict[str, Any]) -> dict[str, Any]:
    """Return the server's answer to one chat request, or its error."""
    # The local name keeps the server from being destroyed under its own request, which would wait
    # for ever.
    server, token = running(options), object()
    _IN_FLIGHT.add(token)
    try:
        return dict(server.handle_chat_completions(body))
    finally:
        _IN_FLIGHT.discard(token)


def running(options: EmbeddedOptions) -> Any:
    """Return this process's server for these options, started on first use.

    Raises:
        LocalModelError: xllamacpp is not installed, the weights cannot be had, memory
            is short, or llama.cpp refuses to load them.
    """
    with _LOCK:
        if options not in _SERVERS:
            _SERVERS[options] = _started(options)
        return _SERVERS[options]


def stop(options: EmbeddedOptions) -> None:
    """Let go of a server, if there is one."""
    with _LOCK:
        _SERVERS.pop(options, None)


def _started(options: EmbeddedOptions) -> Any:
    try:
        xllamacpp = _import_backend()
    except ImportError as error:
        raise LocalModelError(
            f"the embedded model needs xllamacpp, which cannot be imported: {error}. "
            f"{how_to_install('combee-dspy[local]')}"
        ) from error
    path = (
        joined([Path(file) for file in options.files], options.sha256)
        if options.files
        else weights()
    )
    size = path.stat().st_size
    if (free := free_memory()) is not None and size > free:
        raise LocalModelError(
            f"{path} takes {size / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free. Give a"
            " smaller model."
        )
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {options.model_name}
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = cpus
    # It listens, though requests reach it without a network. No other user of the machine may spend
    # its CPU.
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [secrets.token_urlsafe(24)]
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
            f"llama.cpp cannot serve {path} with {options.slots} slots of {options.context} tokens:"
            f" {str(error).rstrip('.')}. Give fewer slots or a smaller context if memory is short."
        ) from error


def _import_backend() -> Any:
    """Import xllamacpp with OpenMP threads that sleep, not spin, while they wait.

    OpenMP reads its wait policy once, when its library loads. With its default, two
    threads on two CPUs that other work shares spent 3 to 7 times the CPU and wall time.
    The variable is put back, so that other libraries and child processes keep their own.
    """
    chosen = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return importlib.import_module("xllamacpp")
    finally:
        if chosen is None:
            del os.environ["OMP_WAIT_POLICY"]


def free_memory() -> int | None:
    """Return the bytes of memory that are free on this machine; ``None`` where it does not say (not
    Linux).
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    free = re.search(r"^MemAvailable: +(\d+) kB", lines, re.MULTILINE)
    return int(free[1]) * 1024 if free else None


def _forget_parent() -> None:
    # A forked child has none of the servers' threads, so it can neither ask nor stop them: one more
    # reference, owned by nobody, keeps each from being destroyed. And whoever held the lock does
    # not exist here.
    global _LOCK
    _LOCK = threading.Lock()
    for server in _SERVERS.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    _SERVERS.clear()
    _IN_FLIGHT.clear()


def _wait_for_requests() -> None:
    until = time.monotonic() + _GRACE_S
    while _IN_FLIGHT and time.monotonic() < until:
        time.sleep(0.01)
    _SERVERS.clear()


atexit.register(_wait_for_requests)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
