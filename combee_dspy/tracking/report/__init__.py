"""A run told on one HTML page."""

from combee_dspy.journal import Reader


def render_report(reader: Reader, run: int) -> str:
    """Return the page of one run."""
    return f"<p>{run}</p>"


def write_report(place: str, out: str, run: str | int | None = None) -> str:
    """Write it."""
    raise NotImplementedError
