"""Blocks that leave one engine as bytes give another one the same tokens."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inflight import Engine, EngineConfig, SamplingParams
from inflight.kv_cache.imported_blocks import ImportedBlocks
from inflight.model.cache.block_bytes import bytes_per_block, read_blocks, write_blocks
from inflight.model.cache.kv_tensors import LayerShape, allocate
from inflight.model.cache.layout import fingerprint
from inflight.prompt_content import PromptContent
from scripts.reference.tiny_models import SERVED, save_model

PROMPT = list(range(3, 48))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_model(SERVED["llama"].config, folder)
    return folder


def make_engine(folder: Path, dtype: str, **settings: Any) -> Engine:
    return Engine(EngineConfig(model=str(folder), dtype=dtype, kv_cache_tokens=512, **settings))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("imported", [16, 32, 41, 44])
def test_imported_blocks_give_the_same_tokens(folder: Path, dtype: str, imported: int) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=1.0, seed=5)
    source = make_engine(folder, dtype)
    (expected,) = source.generate([PROMPT], params)
    blocks = source._scheduler.tables.pool.find(source_hashes(source))
    data = read_blocks(source._runner._caches, blocks)
    assert data.shape == (2, bytes_per_block(source._runner._caches))

    target = make_engine(folder, dtype)
    assert fingerprint(target.model, target.config) == fingerprint(source.model, source.config)
    target.submit(PROMPT, params, request_id="a")
    (request,) = target.core._arrivals.requests
    request.imported = ImportedBlocks(min(imported, 32), data[: -(-min(imported, 32) // 16)])
    output = None
    while target.has_work:
        (output,) = target.step()
    assert output is not None
    assert output.token_ids == expected.token_ids
    assert target.stats().prefill_tokens == len(PROMPT) - min(imported, 32)


def source_hashes(engine: Engine) -> list[bytes]:
    """The names of the full blocks of the prompt."""
    request = engine.maker.request(PromptContent(PROMPT), SamplingParams(), "look")
    engine._scheduler.tables.prefixes.lookup(request)
    return request.block_hashes[:2]


def test_bytes_go_out_and_come_back() -> None:
    shapes = [LayerShape(2, 8, 4), LayerShape(1, 6, 6)]
    source = allocate(shapes, 5, 4, torch.bfloat16, torch.device("cpu"))
    for cache in source:
        cache.keys.normal_()
        cache.values.normal_()
    target = allocate(shapes, 9, 4, torch.bfloat16, torch.device("cpu"))
    data = read_blocks(source, [3, 1])
    data.flags.writeable = False
    write_blocks(target, [8, 0], data)
    for mine, other in zip(source, target, strict=True):
        assert torch.equal(mine.keys[[3, 1]], other.keys[[8, 0]])
        assert torch.equal(mine.values[[3, 1]], other.values[[8, 0]])
        assert not other.keys[1:8].any()
    with pytest.raises(ValueError, match="data has the shape"):
        write_blocks(target, [1], np.zeros((1, 7), dtype=np.uint8))


@pytest.mark.parametrize("changed", ["model.norm.weight", "model.embed_tokens.weight"])
def test_other_weights_have_another_fingerprint(changed: str, folder: Path, tmp_path: Path) -> None:
    engine = make_engine(folder, "float32")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights[changed].view(-1)[4931 % weights[changed].numel()] *= 1.5
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    other = make_engine(tmp_path, "float32")
    assert fingerprint(other.model, other.config) != fingerprint(engine.model, engine.config)


def test_other_code_of_the_model_has_another_fingerprint(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    found = set()
    for code in ("SLOPE = 1", "SLOPE = 2"):
        (tmp_path / "modeling.py").write_text(code)
        for trusted in (False, True):
            engine = make_engine(tmp_path, "float32", trust_remote_code=trusted)
            found.add(fingerprint(engine.model, engine.config))
    assert len(found) == 3
