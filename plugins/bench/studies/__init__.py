"""Studies of this project's own parts, in no wheel."""
