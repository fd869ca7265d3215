"""The digest that machines compare before each loads its part of a checkpoint."""

import shutil
from pathlib import Path

import pytest

from inflight import EngineConfig
from inflight.model.loading.checkpoint_digest import checkpoint_digest
from tests.engine.models import Tiny


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.folder, tmp_path / "copy"))


def digest(folder: Path) -> str:
    return checkpoint_digest(EngineConfig(model=str(folder)))


def test_copies_have_the_same_digest(tiny: Tiny, copy: Path) -> None:
    (copy / "README.md").write_text("not a part of the model")
    assert digest(copy) == digest(tiny.folder)


def test_other_weights_and_other_files_have_another_one(copy: Path) -> None:
    found = {digest(copy)}
    weights = copy / "model.safetensors"
    trained = bytearray(weights.read_bytes())
    # Training changes numbers everywhere, but not their places.
    trained[len(trained) // 2 :: 2] = bytes(len(trained[len(trained) // 2 :: 2]))
    weights.write_bytes(trained)
    found.add(digest(copy))
    (copy / "tokenizer.json").write_text("{}")
    found.add(digest(copy))
    (copy / "tokenizer.json").rename(copy / "tokenizer_config.json")
    found.add(digest(copy))
    assert len(found) == 4
