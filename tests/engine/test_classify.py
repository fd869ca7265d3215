"""Models that classify: how their heads are loaded, what becomes of the logits, and what is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, ModernBertDecoderConfig

from inflight import InvalidRequest, PoolingParams, UnsupportedModel
from inflight.model.loading.classification_head import load_classifier
from scripts.reference.tiny_models import SERVED, save_model
from tests.engine.models import Tiny, drain, make_engine, make_prompt

PROMPT = make_prompt(20)


def classifier(folder: Path, **config: Any) -> Tiny:
    changed = copy.deepcopy(SERVED["llama"].config)
    for name, value in config.items():
        setattr(changed, name, value)
    return Tiny(folder, save_model(changed, folder, AutoModelForSequenceClassification))


def logits(module: Any, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = module(torch.tensor([prompt])).logits[0]
    return found


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"num_labels": 3}, lambda given: given.softmax(dim=0)),
        ({"num_labels": 1}, torch.sigmoid),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.sigmoid),
        ({"num_labels": 1, "problem_type": "regression"}, lambda given: given),
        # What sentence-transformers writes, in its older releases and in newer ones.
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, lambda x: x),
        ({"num_labels": 3, "sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, torch.sigmoid),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "own.Function"}}, torch.sigmoid),
    ],
)
def test_probabilities_are_those_of_the_library_that_made_the_model(
    tmp_path: Path, config: dict[str, Any], activation: Any
) -> None:
    tiny = classifier(tmp_path, **config)
    wanted = activation(logits(tiny.module, PROMPT))
    assert np.abs(tiny.engine().classify(PROMPT)[0] - wanted.numpy()).max() < 1e-6


def test_the_last_token_that_is_no_padding_is_read(tmp_path: Path) -> None:
    """Chats of reward models may end with the token that also pads."""
    tiny = classifier(tmp_path, num_labels=2)
    prompts = [[*PROMPT, 0, 0], [0, 0], [*PROMPT, 0, 7]]
    found = tiny.engine().classify(prompts, use_activation=False)
    for prompt, each in zip(prompts, found, strict=True):
        assert np.abs(each - logits(tiny.module, prompt).numpy()).max() < 1e-5


def test_they_share_steps_with_embeddings(tmp_path: Path) -> None:
    tiny = classifier(tmp_path, num_labels=2)
    engine = tiny.engine(max_num_batched_tokens=16)
    alone = engine.embed(PROMPT)[0]
    engine.submit_embedding(PROMPT, PoolingParams(task="classify", use_activation=False), request_id="class")
    engine.submit_embedding(PROMPT, request_id="embedding")
    outputs = drain(engine)
    assert np.allclose(outputs["class"].embedding, logits(tiny.module, PROMPT), atol=1e-5)
    assert np.allclose(outputs["embedding"].embedding, alone, atol=1e-6)
    assert outputs["class"].finish_reason == "stop"


def test_labels_are_those_of_the_config(tmp_path: Path) -> None:
    names = [f"name {number}" for number in range(12)]
    tiny = classifier(tmp_path, id2label=dict(enumerate(names)))
    found = tiny.engine().model.classifier
    assert found is not None
    assert found.labels == tuple(names)


def test_a_model_for_text_does_not_classify(tiny: Tiny) -> None:
    with pytest.raises(InvalidRequest, match="task is classify, but the model has no head for classes"):
        tiny.engine().classify(PROMPT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "score"}, "task is 'score'; it must be embed or classify"),
        ({"task": "classify", "use_activation": 1}, "use_activation is 1; it must be true or false"),
        ({"task": "classify", "pooling": "mean"}, "pooling, normalize or dimensions is given with the task classify"),
        ({"use_activation": False}, "use_activation is false; it must be absent with the task embed"),
    ],
)
def test_what_is_no_classification_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        PoolingParams(**arguments)


def test_weights_without_the_head_are_refused(tmp_path: Path) -> None:
    classifier(tmp_path, num_labels=2)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["score.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"its weights lack score\.weight"):
        make_engine(tmp_path)


def test_a_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    classifier(tmp_path, num_labels=2)
    path = tmp_path / "config.json"
    labels = {str(index): f"LABEL_{index}" for index in range(5)}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id2label": labels}))
    with pytest.raises(ValueError, match=r"score\.weight has the shape \[2, 64\] in its weights and \[5, 64\] by its"):
        make_engine(tmp_path)


def test_tokens_and_a_head_that_classifies_are_refused(tmp_path: Path) -> None:
    classifier(tmp_path, num_labels=2)
    with pytest.raises(ValueError, match="classifier_from_token is given, but the model has a head that classifies"):
        make_engine(tmp_path, classifier_from_token=["no", "yes"])


def test_a_head_of_more_than_one_layer_is_refused() -> None:
    config = ModernBertDecoderConfig(architectures=["ModernBertDecoderForSequenceClassification"])
    with pytest.raises(UnsupportedModel, match="the head of ModernBertDecoderForSequenceClassification has"):
        load_classifier(config, [])


def test_a_draft_needs_a_head_for_text(tmp_path: Path, tiny: Tiny) -> None:
    classifier(tmp_path, num_labels=2)
    with pytest.raises(ValueError, match="whose weights have no output head"):
        tiny.engine(speculative_config={"method": "draft_model", "model": str(tmp_path)})
