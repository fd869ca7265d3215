"""The settings `tokenizer` and `chat_template` replace what the model's folder has, or lacks."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from inflight import Engine, EngineConfig, SamplingParams
from inflight.model.loading.tokenizer import load_tokenizer
from inflight.text.chat import Chat, chat_ids
from scripts.launch.default_model import default_model

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def bare_folder(first_layers: Path, tmp_path: Path) -> Path:
    """A model without its tokenizer."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).symlink_to(first_layers / name)
    return folder


def written(config: EngineConfig) -> str:
    """Return the prompt that a chat becomes."""
    tokenizer = load_tokenizer(config)
    assert tokenizer is not None
    return str(tokenizer.decode(chat_ids(tokenizer, Chat(HELLO))))


def test_a_model_without_tokenizer_takes_another_ones(first_layers: Path, bare_folder: Path) -> None:
    config = EngineConfig(model=str(bare_folder), dtype="float32", kv_cache_tokens=256, enable_prefix_caching=False)
    whole = replace(config, model=str(first_layers))
    assert load_tokenizer(config) is None
    greedy = SamplingParams(max_tokens=4, temperature=0)
    texts = []
    for settings in (replace(config, tokenizer=str(first_layers)), whole):
        engine = Engine(settings)
        texts.append([output.text for output in engine.generate(["The capital of France is"], greedy)])
    assert texts[0] == texts[1]


def test_a_chat_template_is_a_file_or_a_text(tmp_path: Path) -> None:
    config = EngineConfig(model=str(default_model()))
    assert "<|im_start|>user" in written(config)
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    for setting in (str(file), TEMPLATE):
        assert written(replace(config, chat_template=setting)) == "<user>Hello\n"


def test_what_cannot_be_used_is_named(tmp_path: Path, bare_folder: Path) -> None:
    config = EngineConfig(model=str(bare_folder))
    with pytest.raises(ValueError, match="chat_template is given, but the model has no tokenizer"):
        load_tokenizer(replace(config, chat_template=TEMPLATE))
    whole = EngineConfig(model=str(default_model()))
    with pytest.raises(ValueError, match=r"chat_template is '/nowhere/chat\.jinja', a file that cannot be read"):
        load_tokenizer(replace(whole, chat_template="/nowhere/chat.jinja"))
    with pytest.raises(ValueError, match=r"chat_template is '{% for', which is no Jinja template"):
        load_tokenizer(replace(whole, chat_template="{% for"))
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder in (empty, Path("/nowhere")):
        with pytest.raises(ValueError, match=f"tokenizer is '{folder}', which cannot be loaded"):
            load_tokenizer(replace(config, tokenizer=str(folder)))


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    folder.mkdir()
    shutil.copy(Path(default_model()) / "tokenizer_config.json", folder)
    (folder / "tokenizer.json").write_text('{"model": {"type": "from the future"}}')
    with pytest.raises(ValueError, match=f"tokenizer is '{folder}', which cannot be loaded"):
        load_tokenizer(EngineConfig(model=str(default_model()), tokenizer=str(folder)))


def test_the_code_of_a_named_tokenizer_runs_only_where_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    (tmp_path / "config.json").write_text('{"model_type": "of_its_own"}')
    (tmp_path / "tokenizer.json").symlink_to(Path(default_model()) / "tokenizer.json")
    (tmp_path / "own.py").write_text(
        "from transformers import PreTrainedTokenizerFast\nclass Own(PreTrainedTokenizerFast): pass\n"
    )
    monkeypatch.setattr("builtins.input", lambda _: "y")
    config = EngineConfig(model=str(default_model()), tokenizer=str(tmp_path))
    with pytest.raises(ValueError, match=r"which cannot be loaded: .* contains custom code"):
        load_tokenizer(config)
    tokenizer = load_tokenizer(replace(config, trust_remote_code=True))
    assert type(tokenizer).__name__ == "Own"


def test_the_package_that_a_tokenizer_needs_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.model").write_bytes(b"")
    assert load_tokenizer(EngineConfig(model=str(tmp_path))) is None
    assert "tokenizer.model is read with the package sentencepiece" in caplog.text


def test_code_that_knows_no_fast_tokenizers_serves_token_ids(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So does the package mistral-common, as transformers wraps it."""
    names = {"tokenizer_class": "Plain", "auto_map": {"AutoTokenizer": ["plain.Plain", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    (tmp_path / "plain.py").write_text(
        "class Plain:\n"
        "    @classmethod\n"
        "    def from_pretrained(cls, *args, **kwargs): return cls()\n"
        "    @classmethod\n"
        "    def register_for_auto_class(cls, *args): pass\n"
    )
    assert load_tokenizer(EngineConfig(model=str(tmp_path), trust_remote_code=True)) is None
    assert "has no Rust backend" in caplog.text
