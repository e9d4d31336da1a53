"""A page as a headless Chromium shows it: pictures, what its console says, and what its scripts
return.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
LAPTOP, PHONE = (1280, 900), (390, 844)
SECONDS = 300
"""After so long without an answer a page hangs, on a machine however busy."""

_MESSAGES = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


class Page:
    """One tab, over Chromium's DevTools protocol. ``messages`` are those of its console."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self.messages: list[Any] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        reply = await self._send(method, **params)
        assert "error" not in reply, reply
        return reply["result"]

    async def _send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            reply = await self._socket.receive_json(timeout=SECONDS)
            if reply.get("method") in _MESSAGES:
                self.messages.append(reply["params"])
            if reply.get("id") == self._number:
                return reply

    async def open(
        self, page: Path | str, size: tuple[int, int], *, dark: bool = False, scripts: bool = True
    ) -> None:
        """Show a file, or an address of this machine, in a window of some size, and wait until its
        scripts have run.
        """
        url = page if isinstance(page, str) else page.as_uri()
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        phone = size == PHONE
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=features)
        await self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        await self.call("Page.navigate", url=url)
        await self.until(
            f"document.readyState == 'complete' && location.protocol == '{url.partition(':')[0]}:'"
        )

    async def until(self, expression: str) -> None:
        """Wait until an expression is true in the page.

        A page that is left or loaded while it is asked has no answer, or no body to read: it is
        asked again.
        """
        answer: dict[str, Any] = {}
        try:
            async with asyncio.timeout(SECONDS):
                while not answer.get("result", {}).get("result", {}).get("value"):
                    await asyncio.sleep(0.05)
                    answer = await self._evaluate(expression)
        except TimeoutError:
            seen = await self._evaluate(
                "location.href + ': ' + document.body?.innerText.slice(0, 2000)"
            )
            raise TimeoutError(f"{expression} does not become true of {seen}: {answer}") from None

    async def value(self, expression: str) -> Any:
        """Return what an expression is in the page."""
        answer = await self._evaluate(expression)
        assert "error" not in answer, answer
        result = answer["result"]
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def _evaluate(self, expression: str) -> dict[str, Any]:
        return await self._send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )

    async def picture(self, to: Path, *, whole: bool = False) -> None:
        """Save what is seen, or the page from top to bottom."""
        clip = {}
        if whole:
            size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
            height = min(size["height"], 14_000)
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1}}
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=whole, **clip)
        to.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """Start Chromium with a profile of its own, without a network, and give one tab of it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={profile}"),
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]
        process = subprocess.Popen(  # noqa: S603 - our own page
            [str(CHROMIUM), *options, "about:blank"], stderr=subprocess.DEVNULL
        )
        try:
            port = await _port(Path(profile, "DevToolsActivePort"))
            async with aiohttp.ClientSession() as session:
                address = await _tab(session, port)
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)


async def _port(file: Path) -> str:
    async with asyncio.timeout(SECONDS):
        while not (file.is_file() and (text := file.read_text())):
            await asyncio.sleep(0.05)
    return text.splitlines()[0]


async def _tab(session: aiohttp.ClientSession, port: str) -> str:
    """Return where the first tab is spoken to; Chromium answers before it has one."""
    async with asyncio.timeout(SECONDS):
        while True:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                for target in await answer.json(content_type=None):
                    if target["type"] == "page":
                        return str(target["webSocketDebuggerUrl"])
            await asyncio.sleep(0.05)
