"""Files of a tokenizer that are damaged, missing, or of another model."""

import base64
import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from inflight import EngineConfig
from inflight.model.loading.tokenizer import load_tokenizer
from scripts.reference.tiny_models import SERVED, save_model
from tests.engine.models import make_engine
from tests.unit.tiny_tokenizers import byte_level

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer and the config of its model."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level())
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def set_template(folder: Path, template: object) -> None:
    (folder / "chat_template.jinja").unlink()
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))


def refused(folder: Path) -> str:
    """Return why the tokenizer is refused, as the model's own one, and as the one that the setting names."""
    with pytest.raises(ValueError, match=rf"^model is '{folder}'; a file of its tokenizer, .* is damaged: ") as own:
        load_tokenizer(EngineConfig(model=str(folder)))
    with pytest.raises(ValueError, match=rf"^tokenizer is '{folder}', which cannot be loaded: ") as named:
        load_tokenizer(EngineConfig(model="m", tokenizer=str(folder)))
    reason = str(own.value).partition("a file of its tokenizer, ")[2]
    assert str(named.value).endswith(reason)
    return reason


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "it is not JSON: 'utf-8' codec can't decode"),
        (b"[" * 100_000, "it is not JSON: maximum recursion depth exceeded"),
        (b"[]", "it must be a JSON object"),
        (b"null", "it must be a JSON object"),
    ],
    ids=["no UTF-8", "deep", "list", "null"],
)
def test_a_file_that_is_no_object_is_named(folder: Path, name: str, content: bytes, reason: str) -> None:
    (folder / name).write_bytes(content)
    assert refused(folder).startswith(f"{name}, is damaged: {reason}")


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_a_template_that_is_not_utf_8_is_named(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes("né {{ messages }}".encode("latin-1"))
    assert refused(folder).startswith(f"{name}, is damaged: it is not UTF-8: ")


@pytest.mark.parametrize("in_sequence", [False, True])
def test_a_post_processor_with_an_unknown_token_is_named(folder: Path, in_sequence: bool) -> None:
    text = {"Sequence": {"id": "A", "type_id": 0}}
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    processor: dict[str, object] = {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [text],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [0], "tokens": ["</s>"]}},
    }
    if in_sequence:
        processor = {"type": "Sequence", "processors": [processor]}
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "post_processor": processor}))
    assert refused(folder) == (
        "tokenizer.json, is damaged: its post_processor names the token '<s>', but has no ids for it"
    )


@pytest.mark.parametrize("template", [["x"], [{"name": "default"}], [{"template": "x"}], [None]])
def test_a_malformed_list_of_templates_is_named(folder: Path, template: object) -> None:
    set_template(folder, template)
    assert refused(folder) == (
        "tokenizer_config.json, is damaged: chat_template must be a text, or objects with name and template"
    )


@pytest.mark.parametrize("fields", [{"eos_token": 5}, {"padding_side": "up"}, {"extra_special_tokens": 5}])
def test_a_field_that_is_wrong_is_no_missing_tokenizer(folder: Path, fields: dict[str, object]) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"its tokenizer\.json or tokenizer_config\.json cannot be read, .*Error: "):
        load_tokenizer(EngineConfig(model=str(folder)))


def test_a_length_that_is_no_number_is_named(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"model_max_length": "512"}')
    with pytest.raises(ValueError, match=r"model_max_length of its tokenizer_config\.json is '512'; it must be a numb"):
        load_tokenizer(EngineConfig(model=str(folder)))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for", "unexpected 'end of template'"),
        (
            [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "{{ x | y }}"}],
            "No filter named 'y'",
        ),
        (5, "Can't compile non template nodes"),
    ],
    ids=["text", "one of several", "number"],
)
def test_the_log_says_that_a_template_cannot_be_used(
    folder: Path, template: object, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    set_template(folder, template)
    assert load_tokenizer(EngineConfig(model=str(folder))) is not None
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"the model's chat template cannot be used, so such chats are refused: {reason}"
    )


@pytest.mark.parametrize("template", [None, TEMPLATE, [{"name": "default", "template": TEMPLATE}]])
def test_a_good_template_needs_no_warning(folder: Path, template: object, caplog: pytest.LogCaptureFixture) -> None:
    set_template(folder, template)
    assert load_tokenizer(EngineConfig(model=str(folder))) is not None
    assert not caplog.records


@pytest.mark.parametrize("model_type", ["gemma", "gpt_neox", "cohere", "qwen2", "gpt2"])
def test_a_tokenizer_that_transformers_makes_without_files_is_none(
    tmp_path: Path, model_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has a few special tokens, so each text would become unknown tokens."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert load_tokenizer(EngineConfig(model=str(tmp_path))) is None
    assert "the model has no files of a tokenizer, so only token ids are served" in caplog.text
    with pytest.raises(ValueError, match="which cannot be loaded: it has no files of a tokenizer"):
        load_tokenizer(EngineConfig(model="m", tokenizer=str(tmp_path)))


def write_tekken(folder: Path) -> None:
    """Write Mistral's own file of a tokenizer, which knows single bytes and two special tokens."""
    special = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(("<s>", "</s>"))]
    words = [{"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode()} for byte in range(256)]
    config = {"pattern": r"\S+|\s+", "default_vocab_size": 258, "default_num_special_tokens": 2, "version": "v3"}
    written = {"config": config, "vocab": words, "special_tokens": special}
    (folder / "tekken.json").write_text(json.dumps(written))
    (folder / "config.json").write_text('{"model_type": "mistral"}')


def test_a_file_of_mistral_alone_is_a_tokenizer(tmp_path: Path) -> None:
    write_tekken(tmp_path)
    for config in (EngineConfig(model=str(tmp_path)), EngineConfig(model="m", tokenizer=str(tmp_path))):
        tokenizer = load_tokenizer(config)
        assert tokenizer is not None
        assert tokenizer.decode(tokenizer("Straße")["input_ids"]) == "Straße"


def test_a_damaged_file_of_mistral_is_named(tmp_path: Path) -> None:
    write_tekken(tmp_path)
    (tmp_path / "tekken.json").write_text("version https://git-lfs")
    assert refused(tmp_path).startswith("tekken.json, is damaged: it is not JSON: ")


def test_the_log_says_that_a_tokenizer_has_more_tokens_than_the_model(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(SERVED["llama"].config, folder)
    assert make_engine(folder).model.tokenizer is not None
    assert "the tokenizer has 258 tokens, but the model has only 160" in caplog.text
