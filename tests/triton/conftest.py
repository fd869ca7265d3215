"""A real server with the default model in float32, and transformers beside it for the right answers."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.default_model import default_model
from scripts.model_repository import render_repository
from scripts.triton_server import TritonServer

READY_SECONDS = 120


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """The repository as it is, but in float32, with a cache so small that a burst has to share it."""
    repository = render_repository(
        tmp_path_factory.mktemp("repository") / "models",
        parameters={"model": str(default_model()), "dtype": "float32", "kv_cache_tokens": "6144"},
    )
    with TritonServer(repository, drain_seconds=10) as running:
        running.wait_ready(READY_SECONDS, ["llm"])
        yield running


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(default_model())


@pytest.fixture(scope="session")
def greedy(tokenizer: Any) -> Callable[[str, int], str]:
    """What transformers' `generate` answers to a prompt, greedy and in float32."""
    model = AutoModelForCausalLM.from_pretrained(default_model(), dtype=torch.float32).eval()

    @cache
    def answer(prompt: str, max_tokens: int) -> str:
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        return str(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))

    return answer


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    return default_model()
