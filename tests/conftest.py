"""What all tests share."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis.internal.conjecture import providers

from inflight.lasting_imports import lasting_imports

# Before torch is imported. The models here gain little from more threads, and lose much where others use the same
# cores: torch's threads wait for each other by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before the kernels for GPUs are: on the CPU they are interpreted.
os.environ["TRITON_INTERPRET"] = "1"

# Hypothesis also draws the constants of all our modules that are imported by then. Which these are depends on the tests
# that run before, and so would the examples of a test whose examples are to be the same on every run.
providers.is_local_module_file = lambda path: False

# A script that starts the suite in the background has SIGINT ignored, and whatever the tests start would inherit that
# and not hear Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The modules of the tests import all of torch and transformers, and the tests themselves are many objects, too."""
    with lasting_imports():
        return (yield)


@pytest.fixture(scope="session")
def first_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layers of the default model, for tests in which answers need not make sense."""
    # Imports torch, which the unit tests do without.
    from tests.first_layers import save_first_layers

    return save_first_layers(tmp_path_factory.mktemp("first-layers"))
