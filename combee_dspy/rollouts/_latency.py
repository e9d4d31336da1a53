"""Whether a service queues effects: their seconds, over those without a queue. Pure."""

from __future__ import annotations

from statistics import median

# The median of 48 lognormal draws with sigma 0.35 has a standard error of 6.3 %.
WINDOW = 48
# A faster answer comes from a cache, not from the service.
_CACHED = 0.1
# Below CALM there is no queue, and the base follows the measured ratio.
_CALM, _FOLLOW = 1.2, 0.25


class Latency:
    """Ratios of effects' seconds to the base of their lane, the median without a queue.

    Seconds are compared within a lane, a kind of effects. Ratios are read in windows.
    """

    def __init__(self) -> None:
        self._bases: dict[str, float] = {}
        self._first: dict[str, list[float]] = {}  # samples of lanes without a base
        self._window: list[tuple[float, int]] = []  # ratios, and the limit at the start of each

    def add(self, lane: str, seconds: float, level: int, *, counts: bool) -> bool:
        """Add an effect that began while the limit was ``level``.

        Args:
            lane: Its kind.
            seconds: How long it took.
            level: The limit when it began.
            counts: Whether it belongs into the window.

        Returns:
            Whether a service can have answered it.
        """
        base = self._bases.get(lane)
        if base is None:
            samples = self._first.setdefault(lane, [])
            samples.append(seconds)
            # Effects that began together end shortest first: all of them are waited for.
            if len(samples) >= max(WINDOW, level) and (middle := median(samples)):
                self._bases[lane] = middle
            return True
        ratio = seconds / base
        if ratio < _CACHED:
            return False
        if counts:
            self._window.append((ratio, level))
        return True

    def read(self, size: int) -> tuple[float, float] | None:
        """Return the medians of ratio and level, and empty the window, once it has ``size``
        effects.
        """
        if len(self._window) < size:
            return None
        ratios, levels = zip(*self._window, strict=True)
        self._window.clear()
        return median(ratios), median(levels)

    def forget_window(self) -> None:
        """Empty the window: the limit has changed."""
        self._window.clear()

    def follow(self, ratio: float) -> None:
        """Move the bases towards a ratio that shows no queue."""
        if ratio < _CALM:
            self.rebase(ratio**_FOLLOW)

    def rebase(self, factor: float) -> None:
        """Multiply the bases: effects have become longer, or shorter."""
        for lane in self._bases:
            self._bases[lane] *= factor
