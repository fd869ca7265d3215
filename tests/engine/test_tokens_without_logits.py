"""Models and tokenizers may have tokens for which there is no logit. Outputs never have them, but prompts may."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoModelForImageTextToText, LlamaConfig, MllamaConfig, PreTrainedTokenizerFast

from inflight import Engine, InvalidRequest, StructuredOutputs
from scripts.reference.tiny_models import save_model
from tests.engine.models import alone, drain, greedy, make_engine
from tests.unit.tiny_tokenizers import byte_level

LOGITS = 264
SIZES = {
    "vocab_size": LOGITS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_global_layers": 1,
    "attention_heads": 2,
    "intermediate_size": 64,
    "vision_output_dim": 64,
    "image_size": 28,
    "patch_size": 14,
    "intermediate_layers_indices": [0],
    "supported_aspect_ratios": [[1, 1]],
    "max_num_tiles": 1,
}
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A model with 8 embeddings more than logits."""
    folder = tmp_path_factory.mktemp("mllama")
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    text = {**SIZES, "num_hidden_layers": 4, "cross_attention_layers": [1, 3], "rope_parameters": rope}
    save_model(
        MllamaConfig(text_config=text, vision_config=VISION, image_token_index=LOGITS),
        folder,
        AutoModelForImageTextToText,
    )
    PreTrainedTokenizerFast(tokenizer_object=byte_level()).save_pretrained(folder)
    settings = {"speculative_config": {"method": "ngram", "adaptive": False, "prompt_lookup_min": 1}}
    engine = make_engine(folder, **settings)
    assert (engine.model.vocab_size, engine.model.num_logits) == (LOGITS + 8, LOGITS)
    return engine


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"])
def test_parameters_name_only_tokens_with_a_logit(engine: Engine, name: str) -> None:
    token: Any = {LOGITS: 1.0} if name == "logit_bias" else (LOGITS,)
    with pytest.raises(InvalidRequest) as refusal:
        engine.submit(PROMPT, greedy(4, **{name: token}))
    assert str(refusal.value) == f"{name} holds token {LOGITS}; it must be at least 0 and below {LOGITS}"


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": (5, 6)},
        {"logit_bias": {LOGITS - 1: 1.0}},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 1.0},
        {"structured_outputs": StructuredOutputs(regex="[a-z]{20}")},
    ],
    ids=str,
)
def test_parameters_work_after_a_prompt_with_such_tokens(engine: Engine, params: dict[str, Any]) -> None:
    """The prompt repeats itself, so that its tokens are drafted."""
    prompt = [token for each in range(5, LOGITS) for token in (each, LOGITS, LOGITS + 7)][-200:]
    expected = alone(engine, PROMPT, greedy(20, ignore_eos=True))
    engine.submit(PROMPT, greedy(20, ignore_eos=True), request_id="neighbour")
    engine.submit(prompt, greedy(20, ignore_eos=True, **params), request_id="r")
    outputs = drain(engine)
    assert outputs["neighbour"].token_ids == expected
    assert (outputs["r"].finish_reason, outputs["r"].error) in {("length", None), ("stop", None)}
    assert max(outputs["r"].token_ids) < LOGITS


def test_bad_words_of_the_tokenizer_alone_change_nothing(tmp_path: Path) -> None:
    save_model(LlamaConfig(**SIZES, num_hidden_layers=2), tmp_path)
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken(f"<{number}>", special=True) for number in range(20)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    engine = make_engine(tmp_path)
    expected = alone(engine, PROMPT, greedy(20))
    assert alone(engine, PROMPT, greedy(20, bad_words=("<19>", "x<19>"))) == expected
    (guided,) = engine.generate([PROMPT], greedy(20, structured_outputs=StructuredOutputs(choice=["yes", "no"])))
    assert guided.text in {"yes", "no"}
