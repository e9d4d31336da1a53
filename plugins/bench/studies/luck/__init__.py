"""How fast methods are where scores are luck and writing calls think (see README.md)."""
