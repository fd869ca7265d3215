"""The models of these tests: a tiny one with random weights, and the default one where text is needed."""

import shutil

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
    """A Llama without a tokenizer: 160 tokens of vocabulary, a context of 256."""
    folder = tmp_path_factory.mktemp("llama")
    return Tiny(folder, save_model(SERVED["llama"].config, folder))


@pytest.fixture(scope="session")
def texts() -> Engine:
    """The default model in float32, with its tokenizer and chat template. Shared: leave no work behind."""
    return make_engine(default_model(), kv_cache_tokens=2048)


@pytest.fixture(scope="session")
def cpu_kernels() -> None:
    """The C++ kernels; tests are skipped where they cannot be had, not where they fail to build."""
    if not instruction_sets() or shutil.which("c++") is None:
        pytest.skip("this processor has no AVX2, or no compiler is here")
    assert load_kernels()
