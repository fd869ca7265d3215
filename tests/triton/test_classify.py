"""A model that classifies, over the wire: its logits are those of transformers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from inflight_client import Client
from scripts.launch.model_repository import render_repository
from scripts.launch.triton_server import TritonServer
from tests.first_layers import save_classifier
from tests.running_server import running_server
from tests.triton.test_contract import generate

PAIR = {"query": "capital of France", "document": "Paris is a city."}
CHAT = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"), ["bad", "fair", "good"])


@pytest.fixture(scope="module")
def classifier(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    parameters = {"model": str(folder), "dtype": "float32", "kv_cache_tokens": "2048"}
    repository = render_repository(tmp_path_factory.mktemp("classify") / "models", parameters=parameters)
    with running_server(repository, ["llm"]) as running:
        yield running


def classify(server: TritonServer, given: Any, *, raw: bool = False, **fields: Any) -> dict[str, Any]:
    params = {"task": "classify", "use_activation": not raw}
    return generate(server, embedding_request=json.dumps({"input": given, "pooling_params": params}), **fields)


def test_logits_are_those_of_transformers(classifier: TritonServer, folder: Path, tokenizer: Any) -> None:
    module = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    chat = tokenizer.apply_chat_template(CHAT, return_dict=False)
    for given, prompt in (
        ("A text", tokenizer("A text")["input_ids"]),
        ([5, 6, 7], [5, 6, 7]),
        (PAIR, tokenizer(*PAIR.values())["input_ids"]),
        (CHAT, chat),
    ):
        with torch.inference_mode():
            wanted = module(torch.tensor([prompt])).logits[0]
        found = json.loads(classify(classifier, given, raw=True)["text_output"])
        assert np.abs(np.array(found) - wanted.numpy()).max() < 1e-4
        as_tensor = classify(classifier, given, return_embedding=True, return_num_input_tokens=True)
        assert np.abs(np.array(as_tensor["embedding"]) - wanted.softmax(dim=0).numpy()).max() < 1e-4
        assert as_tensor["num_input_tokens"] == len(prompt)


def test_text_is_refused_and_the_labels_are_known(classifier: TritonServer) -> None:
    url = f"http://{classifier.http_url}/v2/models/llm/generate"
    reply = httpx.post(url, json={"text_input": "Hello", "max_tokens": 3}, timeout=60)
    assert reply.status_code == 400
    assert "text is asked for, but the model's weights have no output head; it classifies" in reply.text
    with Client(classifier.grpc_url) as client:
        assert client.describe_model().labels == ("bad", "fair", "good")
