"""The pictures of a report: ``python docs/pictures.py REPORT.html RECORDED.html``.

The first is the first screen of a run of ``combee demo``. The second is of ``combee demo
--recorded``: what a real model learned, with the answers behind one line. From the repository's
root, in an environment that runs the tests; needs Chromium.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path

from tests.tracking.browser import Page, browser

IMAGES = Path(__file__).parent / "images"
# The section's place, with one line's answers and the comparison with the first text unfolded.
UNFOLD = """(() => {
  const section = document.getElementById("Learned");
  const folds = [...section.querySelectorAll("details")];
  folds[1].open = true;
  folds.at(-1).open = true;
  section.querySelector(".less").style.maxHeight = "none";  // no line is cut in two
  const box = section.getBoundingClientRect();
  return [box.x, box.y + scrollY, box.width, box.height];
})()"""


async def take(report: Path, recorded: Path) -> None:
    """Save both pictures."""
    async with browser() as tab:
        await tab.open(report.resolve(), (1100, 572))
        await tab.picture(IMAGES / "report.png")
        await tab.open(recorded.resolve(), (1000, 780))
        await take_learned(tab)


async def take_learned(tab: Page) -> None:
    """Save the section that says what was learned."""
    x, y, width, height = await tab.value(UNFOLD)
    clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
    shot = await tab.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    (IMAGES / "learned.png").write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    asyncio.run(take(*map(Path, sys.argv[1:3])))
