"""Prompts with images beside other features of the engine. The parity tests compare their tokens with transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from inflight import Engine, EngineConfig, ImagePrompt, InvalidRequest, RequestOptions, SamplingParams
from inflight.model.images import image_reader
from inflight.model.images.features import Features
from scripts.reference.random_adapter import RandomAdapter
from scripts.reference.tiny_image_models import save_image_model
from scripts.reference.tiny_models import greedy
from tests.images import picture

GREEDY = SamplingParams(max_tokens=10, temperature=0)
PICTURES = [picture(seed, 70, 50) for seed in range(3)]
TEXT = "<image> What is this?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("idefics3")
    save_image_model("idefics3", folder)
    return folder


def make_engine(folder: Path, **settings: Any) -> Engine:
    usual = {"dtype": "float32", "block_size": 8, "kv_cache_tokens": 1024, "max_model_len": 512}
    return Engine(EngineConfig(model=str(folder), **{**usual, **settings}))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return make_engine(folder)


def tokens(engine: Engine, prompts: Sequence[Any], params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.token_ids for output in engine.generate(prompts, params)]


def prompt(number: int, text: str = TEXT) -> ImagePrompt:
    return ImagePrompt(text, [PICTURES[number]])


def test_an_image_changes_the_answer(engine: Engine) -> None:
    answers = tokens(engine, [prompt(0), prompt(1), prompt(2), prompt(0)])
    assert answers[0] == answers[3]
    assert len({tuple(answer) for answer in answers}) > 1


@pytest.mark.parametrize(
    ("text", "images", "says"),
    [
        (
            "No place.",
            PICTURES[:1],
            "1 images are given, and the prompt has 0 places for them, which are the token '<im",
        ),
        ("No place.", [], "images is empty; a prompt with images must have at least 1"),
        (TEXT, PICTURES, "3 images are given, and the prompt has 1 places"),
        ("<image>" * 65, PICTURES[:1] * 65, "65 images are given; there must be at most 64"),
        (TEXT, [PICTURES[0][:100]], r"images\[0\] cannot be decoded"),
        (
            TEXT,
            [b"GIF89a"],
            r"images\[0\] is no file in one of the formats PNG, JPEG, WEBP, GIF, BMP",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(engine: Engine, text: str, images: list[bytes], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        engine.submit(ImagePrompt(text, images), GREEDY)
    assert not engine.has_work


def test_an_image_is_bounded_before_it_is_decoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_reader, "MAX_PIXELS", 70 * 50 - 1)
    with pytest.raises(InvalidRequest, match=r"images\[0\] has 3500 pixels; it must have at most 3499"):
        engine.submit(prompt(0), GREEDY)


def test_images_do_not_go_with_what_is_elsewhere(folder: Path) -> None:
    role = {"kv_connector": "tcp", "kv_role": "kv_both"}
    engine = make_engine(folder, kv_transfer_config=role)
    options = RequestOptions(kv_transfer_params={"do_remote_decode": True})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="kv_transfer_params is given with images"):
        engine.submit(prompt(0), GREEDY, options)
    engine.close()


def test_rows_with_adapters_beside_images(folder: Path, tmp_path: Path) -> None:
    plain = make_engine(folder)
    adapter = RandomAdapter(layers=("mlp.up_proj", "mlp.down_proj")).save(tmp_path / "adapter", plain.model.module)
    engine = make_engine(folder, lora_modules={"poet": adapter})
    poet = RequestOptions(lora_name="poet")

    def answer(given: Sequence[tuple[Any, RequestOptions | None]]) -> list[list[int]]:
        ids = [engine.submit(text, GREEDY, options) for text, options in given]
        outputs = {}
        while engine.has_work:
            outputs |= {output.request_id: output for output in engine.step()}
        return [outputs[request_id].token_ids for request_id in ids]

    (alone,) = answer([("No picture, but a poem.", poet)])
    assert answer([(prompt(0), None), ("No picture, but a poem.", poet)]) == [*tokens(plain, [prompt(0)]), alone]
    assert alone != tokens(plain, ["No picture, but a poem."])[0]
    with pytest.raises(InvalidRequest, match="lora_name is 'poet'; it must be absent with images"):
        engine.submit(prompt(0), GREEDY, poet)


def test_drafts_change_nothing(folder: Path, engine: Engine) -> None:
    drafting = make_engine(folder, speculative_config={"method": "ngram", "num_speculative_tokens": 4})
    prompts = [prompt(0), prompt(1, "One <image> one two one two one two"), "one two one two one two"]
    assert tokens(drafting, prompts) == tokens(engine, prompts)


def test_samples_share_the_prompt(engine: Engine) -> None:
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=5)
    (one,) = tokens(engine, [prompt(2)], params)
    engine.submitter.submit_samples(prompt(2), {"a": params, "b": params})
    outputs = {}
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
    assert [outputs[name].token_ids for name in ("a", "b")] == [one, one]


def test_beams_keep_the_images(engine: Engine) -> None:
    params = SamplingParams(max_tokens=6, beam_width=3)
    found = [engine.generate([prompt(number)], params)[0].beams for number in (0, 1, 0)]
    assert found[0] == found[2] != found[1]


def test_images_whose_tokens_attend_to_later_ones_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, processor = save_image_model("gemma3", tmp_path)
    engine = make_engine(tmp_path)
    assert "prompts with images are refused: the tokens of its images attend to later ones" in caplog.text
    with pytest.raises(InvalidRequest, match="the model does not read images; the log of its start says why"):
        engine.submit(prompt(0, f"{processor.image_token} What is this?"), GREEDY)
    assert tokens(engine, [[5, 6, 7]]) == [greedy(model, [5, 6, 7], 10)]


def test_features_of_tokens_that_only_look_like_an_image() -> None:
    output = BaseModelOutputWithPooling(pooler_output=[torch.ones(2, 3), 2 * torch.ones(1, 3)])
    features = Features.of(output)
    taken = torch.tensor([True, False, True, True, False])
    spread = features.spread(taken, torch.full((3,), 7.0))
    (main,) = spread.output().pooler_output
    assert main[:, 0].tolist() == [1, 7, 1, 2, 7]
    assert features[1:3].main[:, 0].tolist() == [1, 2]
