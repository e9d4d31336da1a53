"""Whether the hub can be reached: asked once, for two seconds, and not for half a minute."""

from __future__ import annotations

import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch
from urllib.parse import urlsplit

_SECONDS = 1.5
_HUB = "https://huggingface.co"


@contextmanager
def within_reach() -> Iterator[None]:
    """Let ``datasets`` read from its cache alone where the hub does not answer at once.

    Left to itself it tries for 25 seconds. Behind a proxy nobody can tell, so it is left to itself.
    """
    import datasets
    from huggingface_hub import constants

    address = os.environ.get("HF_ENDPOINT") or _HUB
    proxied = urllib.request.getproxies().get(urlsplit(address).scheme)
    if datasets.config.HF_HUB_OFFLINE or proxied or _answers(address):
        yield
        return
    with (
        patch.object(datasets.config, "HF_HUB_OFFLINE", True),
        patch.object(constants, "HF_HUB_OFFLINE", True),
    ):
        try:
            yield
        except OSError as error:
            problem = f"{address} does not answer, and what is asked for is not in the cache"
            raise ConnectionError(problem) from error


def _answers(address: str) -> bool:
    parts = urlsplit(address)
    place = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    connected = threading.Event()

    def connect() -> None:
        try:
            with socket.create_connection(place, timeout=_SECONDS):
                connected.set()
        except OSError:
            return

    # To look a name up has no timeout of its own.
    thread = threading.Thread(target=connect, name="combee-hub", daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return connected.is_set()
