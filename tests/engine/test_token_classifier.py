"""Models for text that score by two tokens, such as Qwen3-Reranker."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from inflight import TextPair, UnsupportedModel
from scripts.reference.tiny_models import SERVED, VOCABULARY, save_model
from tests.engine.models import Tiny, greedy, make_engine, make_prompt

PROMPTS = [make_prompt(length, seed=length) for length in (1, 2, 30, 71)]
NO, YES = 7, 9


def with_tokenizer(folder: Path) -> Path:
    words = {f"w{number}": number for number in range(VOCABULARY)} | {"no": NO, "yes": YES}
    del words[f"w{NO}"], words[f"w{YES}"]
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["qwen3", "gemma3", "gpt2"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp(request.param)
    return Tiny(with_tokenizer(folder), save_model(SERVED[request.param].config, folder))


def logits(module: Any, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = module(torch.tensor([prompt])).logits[0, -1]
    return found


def test_the_score_is_the_probability_of_yes_against_no(tiny: Tiny) -> None:
    engine = tiny.engine(classifier_from_token=["no", "yes"], max_num_batched_tokens=16)
    assert engine.model.classifier is not None
    assert engine.model.classifier.labels == ("yes",)
    found, raw = engine.classify(PROMPTS), engine.classify(PROMPTS, use_activation=False)
    for prompt, score, difference in zip(PROMPTS, found, raw, strict=True):
        both = logits(tiny.module, prompt)[[NO, YES]]
        assert score == pytest.approx([both.softmax(dim=0)[1].item()], abs=1e-5)
        assert difference == pytest.approx([(both[1] - both[0]).item()], abs=1e-4)
    # It still writes text.
    plain = tiny.engine().generate(PROMPTS[2], greedy(5))
    assert engine.generate(PROMPTS[2], greedy(5))[0].token_ids == plain[0].token_ids


def test_one_token_alone(tiny: Tiny) -> None:
    engine = tiny.engine(classifier_from_token=["yes"])
    wanted = np.array([logits(tiny.module, prompt)[YES] for prompt in PROMPTS])
    assert np.abs(engine.classify(PROMPTS, use_activation=False)[:, 0] - wanted).max() < 1e-4


def test_a_pair_is_read_by_a_template_for_pairs(tiny: Tiny) -> None:
    template = (
        "{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }} w3 "
        "{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }} {{ instruction }}"
    )
    engine = tiny.engine(classifier_from_token=["no", "yes"], chat_template=template)
    found = engine.classify(TextPair("w5 w6", "w8", {"instruction": "w4"}))
    assert found == pytest.approx(engine.classify([5, 6, 3, 8, 4]), abs=1e-6)


def test_in_bfloat16(tiny: Tiny) -> None:
    module = AutoModelForCausalLM.from_pretrained(tiny.folder, dtype=torch.bfloat16).eval()
    found = tiny.engine(classifier_from_token=["no", "yes"], dtype="bfloat16").classify(PROMPTS)[:, 0]
    wanted = [logits(module, prompt)[[NO, YES]].float().softmax(dim=0)[1] for prompt in PROMPTS]
    assert np.abs(found - np.array(wanted)).max() < 0.05


def test_logits_with_a_cap_are_refused(tmp_path: Path) -> None:
    config = copy.deepcopy(SERVED["gemma2"].config)
    config.final_logit_softcapping = 30.0
    save_model(config, tmp_path)
    with pytest.raises(UnsupportedModel, match="the head of Gemma2ForCausalLM does more than one linear layer"):
        make_engine(with_tokenizer(tmp_path), classifier_from_token=["no", "yes"])


def test_weights_without_an_output_head_are_refused(tmp_path: Path) -> None:
    module = save_model(SERVED["llama"].config, tmp_path)
    module.base_model.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="classifier_from_token is given, but the model's weights have no outpu"):
        make_engine(with_tokenizer(tmp_path), classifier_from_token=["no", "yes"])


def test_a_token_that_there_is_not_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ValueError, match="classifier_from_token has 'Yes', which is no token of the model's tokenizer"):
        tiny.engine(classifier_from_token=["no", "Yes"])
