"""A real server with the default model in float32, and transformers for the expected answers."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import text_format
from transformers import AutoModelForCausalLM, AutoTokenizer
from tritonclient.grpc import model_config_pb2

from scripts.launch.default_model import default_model
from scripts.launch.model_repository import MODEL_REPOSITORY, render_repository
from scripts.launch.triton_server import TritonServer
from tests.running_server import running_server


@pytest.fixture(scope="session")
def server_log() -> list[str]:
    """The lines that `server` has written so far."""
    return []


@pytest.fixture(scope="session")
def kv_events(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The setting `kv_events_config` of `server`."""
    folder = tmp_path_factory.mktemp("kv-events")
    endpoints = {"endpoint": f"ipc://{folder}/live", "replay_endpoint": f"ipc://{folder}/replay"}
    return {"enable_kv_cache_events": True, "topic": "kv", **endpoints}


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, server_log: list[str], kv_events: dict[str, Any]
) -> Iterator[TritonServer]:
    """A server with the unchanged repository, but in float32, with a KV cache too small for a burst of requests, with
    metrics by vLLM's names, and with KV events."""
    repository = render_repository(
        tmp_path_factory.mktemp("repository") / "models",
        parameters={
            "model": str(default_model()),
            "dtype": "float32",
            "kv_cache_tokens": "6144",
            "vllm_metric_names": "true",
            "kv_events_config": json.dumps(kv_events),
        },
    )
    with running_server(repository, ["llm"], log=server_log.append) as running:
        yield running


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(default_model())


@pytest.fixture(scope="session")
def reference() -> Any:
    """The default model as transformers loads it, in float32."""
    return AutoModelForCausalLM.from_pretrained(default_model(), dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def greedy(tokenizer: Any, reference: Any) -> Callable[[str, int], str]:
    """Returns the answer of transformers' `generate` to a prompt, greedy and in float32."""

    @cache
    def answer(prompt: str, max_tokens: int) -> str:
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            output = reference.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        return str(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))

    return answer


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    return default_model()


def add_llm(repository: Path, name: str, config: str, parameters: Mapping[str, str]) -> None:
    """Add `llm` to a repository under the given name, with one of its configuration files and changed parameters."""
    llm = MODEL_REPOSITORY / "llm"
    text = (llm / config).read_text()
    parsed = text_format.Parse(text, model_config_pb2.ModelConfig())
    parsed.name = name
    for key, value in parameters.items():
        parsed.parameters[key].string_value = value
    (repository / name).mkdir(parents=True)
    (repository / name / "1").symlink_to(llm / "1")
    (repository / name / "config.pbtxt").write_text(text_format.MessageToString(parsed))
