"""How much memory a GGUF model needs, and how much there is."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

__all__ = ["free_memory", "needed_memory"]

_OVERHEAD = 64 << 20
"""Bytes for buffers of the computation and the server itself, at least."""

# GGUF's types of metadata values: struct formats; a string is 8, an array 9.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def needed_memory(path: Path, tokens: int) -> int:
    """Return about how many bytes a model takes with a context of so many tokens in all slots together.

    Its file, a key and a value of 16 bits for each token in every layer, and some for computing. Where the
    file does not say its sizes under the usual names, the context counts nothing.
    """
    size = path.stat().st_size + _OVERHEAD
    try:
        known = _metadata(path)
    except (OSError, struct.error, UnicodeDecodeError):
        # llama.cpp will say what is wrong with it.
        return size
    prefix = known.get("general.architecture")

    def figure(name: str, default: int = 0) -> int:
        found = known.get(f"{prefix}.{name}", default)
        found = max(found, default=default) if isinstance(found, list) else found  # one a layer
        return found if isinstance(found, int) else default

    heads = figure("attention.head_count") or 1
    length = figure("attention.key_length") or figure("embedding_length") // heads
    return size + 2 * 2 * tokens * figure("block_count") * figure("attention.head_count_kv", heads) * length


def free_memory() -> int | None:
    """Return the bytes of memory that this process can still have; ``None`` where that cannot be told (not Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int(Path(most).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue  # no such limit: "max", or no such file
    return min(found, default=None)


def _metadata(path: Path) -> dict[str, object]:
    """Read the scalars and texts at a GGUF file's head (its public specification, versions 2 and 3)."""
    with path.open("rb") as file:
        _, _, _, count = struct.unpack("<4sIQQ", file.read(24))
        known: dict[str, object] = {}
        for _ in range(count):
            name = str(_value(file, _STRING))
            if name.startswith("tokenizer."):
                break  # a hundred thousand words, and nothing after them that is asked for
            (kind,) = struct.unpack("<I", file.read(4))
            known[name] = _value(file, kind)
        return known


def _value(file: BinaryIO, kind: int) -> object:
    if kind == _ARRAY:
        inner, length = struct.unpack("<IQ", file.read(12))
        return [_value(file, inner) for _ in range(length)]
    layout = "<Q" if kind == _STRING else "<" + _SCALARS.get(kind, "B")
    (value,) = struct.unpack(layout, file.read(struct.calcsize(layout)))
    return file.read(value).decode() if kind == _STRING else value
