"""The converted default model equals the quantised one: its tokens, its chat template and its answers."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from scripts.launch.default_model import default_model, save_model

END_OF_TURN = 2


@pytest.fixture(scope="module")
def folder() -> Path:
    return default_model()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_the_folder_is_whole(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    config = json.loads((folder / "config.json").read_text())
    expected = {
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
        "vocab_size": 49152,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "eos_token_id": END_OF_TURN,
        "pad_token_id": END_OF_TURN,
        "bos_token_id": 1,
    }
    assert {key: config[key] for key in expected} == expected
    assert config["rope_parameters"]["rope_theta"] == 100000
    assert "quantization_config" not in config
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == END_OF_TURN


def test_weights_that_cannot_be_written_are_an_error_of_the_system(tmp_path: Path) -> None:
    """As on a full disk. `make serve` then ends with one line."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(OSError, match=r"^the weights of SmolLM2-135M-Instruct cannot be written: .*I/O error"):
        save_model(LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes)), tmp_path)


def test_digits_are_pieces_of_their_own(tokenizer: Any) -> None:
    assert tokenizer.tokenize("in 2024") == ["in", "Ġ", "2", "0", "2", "4"]
    assert tokenizer.tokenize("   5 x") == ["ĠĠĠ", "5", "Ġx"]


@pytest.mark.parametrize(
    "text",
    [
        "Grüße, naïve café, e\u0301 and é",
        "日本語のテキスト、漢字、한국어, ไทย",
        "🙂👩‍👩‍👧‍👦🏳️‍🌈",
        "مرحبا بالعالم, שלום, हिन्दी",
        "\t tabs \n\n and \r\n lines \u00a0 \u200b",
        "def f(x):\n    return x**2  # 10 'll don't",
    ],
)
def test_text_survives_the_round_trip(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_every_letter_of_the_first_plane_survives(tokenizer: Any) -> None:
    letters = [chr(code) for code in range(0x10000) if unicodedata.category(chr(code))[0] in "LNP"]
    text = " ".join(letters)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_chat_template_ends_in_an_open_turn(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == text
    ids = tokenizer(text)["input_ids"]
    assert (ids.count(1), ids.count(2)) == (3, 2)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)
    assert tokenizer.model_max_length == 8192


def test_the_model_answers_and_ends_its_turn(folder: Path, tokenizer: Any) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    question = [{"role": "user", "content": "What is the capital of France? Answer briefly."}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == END_OF_TURN
