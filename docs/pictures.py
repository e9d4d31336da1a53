"""The picture of a report: ``python docs/pictures.py REPORT.html`` writes docs/images/report.png.

From the repository's root, in an environment that runs the tests; needs Chromium.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.tracking.browser import browser

WINDOW = (1100, 780)


async def take(page: Path) -> None:
    """Save the first screen of a page."""
    async with browser() as tab:
        await tab.open(page.resolve(), WINDOW)
        await tab.picture(Path(__file__).parent / "images" / "report.png")


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1])))
