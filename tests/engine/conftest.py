"""Fixtures for engines: a tiny model with random weights, the default model where answers must make sense, and its
first layers where they need not."""

import shutil
from pathlib import Path

import pytest
import transformers

from inflight import Engine
from inflight.model.cpu.instruction_sets import instruction_sets
from inflight.model.cpu.kernels import load_kernels
from scripts.launch.default_model import default_model
from scripts.reference.tiny_models import SERVED, save_model
from tests.engine.models import Tiny, make_engine

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A Llama without a tokenizer. It has a vocabulary of 160 tokens and a context of 256."""
    folder = tmp_path_factory.mktemp("llama")
    return Tiny(folder, save_model(SERVED["llama"].config, folder))


@pytest.fixture(scope="session")
def shallow(first_layers: Path) -> Engine:
    """These layers in float32. All tests share this engine, so each must leave it without requests."""
    return make_engine(first_layers, kv_cache_tokens=2048)


@pytest.fixture(scope="session")
def shallow_fast(cpu_kernels: None, first_layers: Path) -> Engine:
    """The same in bfloat16, computed by the C++ kernels. It is shared as `shallow` is."""
    return make_engine(first_layers, dtype="bfloat16", block_size=16, kv_cache_tokens=2048)


@pytest.fixture(scope="session")
def texts() -> Engine:
    """The default model in float32, with its tokenizer and chat template. It is shared as `shallow` is."""
    return make_engine(default_model(), kv_cache_tokens=2048)


@pytest.fixture(scope="session")
def fast(cpu_kernels: None) -> Engine:
    """The default model in bfloat16, computed by the C++ kernels. It is shared as `shallow` is."""
    return make_engine(default_model(), dtype="bfloat16", block_size=16, kv_cache_tokens=2048)


@pytest.fixture(scope="session")
def cpu_kernels() -> None:
    """Load the C++ kernels. Skip the test if this machine cannot build them, but fail if the build fails."""
    if not instruction_sets() or shutil.which("c++") is None:
        pytest.skip("this processor has no AVX2, or there is no C++ compiler")
    assert load_kernels()
