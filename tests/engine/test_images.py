"""Prompts with images beside other features of the engine. The parity tests compare their tokens with transformers."""

import io
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.gemma3 import modeling_gemma3

from inflight import Engine, EngineConfig, ImagePrompt, InvalidRequest, RequestOptions, SamplingParams
from inflight.model.images import image_reader
from inflight.model.images.features import Features
from scripts.reference.random_adapter import RandomAdapter
from scripts.reference.tiny_image_models import IMAGE_MODELS, save_image_model
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


@pytest.mark.parametrize(("width", "height"), [(201, 1), (1, 201)])
def test_a_line_is_not_enlarged(engine: Engine, width: int, height: int) -> None:
    says = rf"images\[0\] is {width} x {height}; a side must be at most 200 times the other"
    with pytest.raises(InvalidRequest, match=says):
        engine.submit(ImagePrompt(TEXT, [picture(0, width, height)]), GREEDY)


@pytest.mark.parametrize(("more", "is_read"), [(58, True), (59, False)])
def test_scans_are_bounded(engine: Engine, more: int, is_read: bool) -> None:
    file = io.BytesIO()
    Image.new("L", (70, 50), 100).save(file, "JPEG", progressive=True)
    image = file.getvalue()
    assert image.count(b"\xff\xda") == 6
    last = image[image.rindex(b"\xff\xda") : -2]
    # The data behind the end is none of the image's, as in photos with a short video.
    image = image[:-2] + last * more + image[-2:] + last * 100
    if is_read:
        assert tokens(engine, [ImagePrompt(TEXT, [image])]) == tokens(engine, [ImagePrompt(TEXT, [file.getvalue()])])
    else:
        with pytest.raises(InvalidRequest, match=r"images\[0\] is a JPEG of more than 64 scans"):
            engine.submit(ImagePrompt(TEXT, [image]), GREEDY)


def test_wrong_exif_data_is_not_in_the_log() -> None:
    entry = struct.pack("<HHII", 270, 2, 60_000, 8)  # A text that would end behind the file.
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 100) + b"".join(entry for _ in range(100)) + bytes(4)
    file = io.BytesIO()
    Image.new("RGB", (70, 50)).save(file, "JPEG", exif=exif)
    code = (
        "import sys; from inflight.model.images import image_reader; image_reader._decoded(0, sys.stdin.buffer.read())"
    )
    read = subprocess.run([sys.executable, "-c", code], input=file.getvalue(), capture_output=True, check=True)
    assert b"EXIF" not in read.stderr
    assert b"Tag data" not in read.stderr


def test_other_settings_of_the_processor_make_blocks_on_disk_useless(folder: Path, tmp_path: Path) -> None:
    model, disk = Path(shutil.copytree(folder, tmp_path / "model")), str(tmp_path / "disk")

    def cached() -> int | None:
        engine = make_engine(model, kv_offloading_path=disk)
        (output,) = engine.generate([prompt(0)], GREEDY)
        engine.close()
        return output.num_cached_tokens

    assert cached() == 0
    assert cached()
    settings = json.loads((model / "processor_config.json").read_text())
    settings["image_processor"]["image_mean"] = [0.1, 0.1, 0.1]
    (model / "processor_config.json").write_text(json.dumps(settings))
    assert cached() == 0


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
    first, other, again = ([beam.token_ids for beam in beams] for beams in found)
    assert first == again != other
    # In float32 the last bits depend on how much of a prompt is cached.
    scores = [[beam.logprob for beam in beams] for beams in found]
    assert scores[0] == pytest.approx(scores[2], rel=1e-5)
    assert scores[0] != pytest.approx(scores[1], rel=1e-5)


def test_images_whose_tokens_attend_to_other_images_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Molmo 2, where later images change the keys and values of earlier ones."""
    monkeypatch.setattr(
        modeling_gemma3, "get_block_sequence_ids_for_mask", lambda kinds, device: (kinds == 1).to(device).int() - 1
    )
    model, processor = save_image_model("gemma3", tmp_path)
    engine = make_engine(tmp_path)
    reason = "the tokens of its images attend to others than those of the same image"
    assert f"prompts with images are refused: {reason}" in caplog.text
    with pytest.raises(InvalidRequest, match="the model does not read images"):
        engine.submit(prompt(0, f"{processor.image_token} What is this?"), GREEDY)
    assert tokens(engine, [[5, 6, 7]]) == [greedy(model, [5, 6, 7], 10)]


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model in which the 16 tokens of an image attend to one another, and its processor."""
    folder = tmp_path_factory.mktemp("gemma3")
    return folder, save_image_model("gemma3", folder)[1]


def test_an_image_that_no_step_can_compute_is_refused(gemma: tuple[Path, Any]) -> None:
    folder, processor = gemma
    engine = make_engine(folder, max_num_batched_tokens=15)
    text = f"{processor.image_token} and {processor.image_token}"
    with pytest.raises(
        InvalidRequest,
        match=r"images\[0\] takes 16 tokens, which one step must compute; it must take at most 15, which is "
        "max_num_batched_tokens",
    ):
        engine.submit(ImagePrompt(text, PICTURES[:2]), GREEDY)
    assert not engine.has_work


@pytest.mark.usefixtures("cpu_kernels")
def test_with_the_kernels_of_the_processor_chunks_change_no_bit_of_an_image(gemma: tuple[Path, Any]) -> None:
    folder, processor = gemma
    place = processor.image_token
    prompts = [
        ImagePrompt(f"{place} What is this?", PICTURES[:1]),
        ImagePrompt(f"Before it, {place}{place} and after it.", PICTURES[1:3]),
        "No picture at all, but some text.",
    ]
    params = SamplingParams(max_tokens=10, temperature=0, logprobs=3, prompt_logprobs=1)
    settings = {"dtype": "bfloat16", "block_size": 16, "enable_prefix_caching": False}
    found = []
    for budget, together in ((16, True), (20, True), (2048, True), (2048, False)):
        engine = make_engine(folder, max_num_batched_tokens=budget, **settings)
        assert engine.model.backend.name == "cpu kernels"
        outputs = [engine.generate(each, params) for each in ([prompts] if together else [[p] for p in prompts])]
        found.append([(o.token_ids, o.logprobs, o.prompt_logprobs) for some in outputs for o in some])
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.usefixtures("cpu_kernels")
def test_with_the_kernels_of_the_processor_a_text_does_not_depend_on_images_beside_it(folder: Path) -> None:
    params = SamplingParams(max_tokens=30, temperature=0, logprobs=3, prompt_logprobs=1)
    settings = {"dtype": "bfloat16", "block_size": 16, "enable_prefix_caching": False, "max_num_batched_tokens": 24}
    text = "No picture at all, but a text that needs more than a step."
    (alone,) = make_engine(folder, **settings).generate([text], params)
    beside, *_ = make_engine(folder, **settings).generate([text, prompt(0), prompt(1), prompt(2)], params)
    assert beside.logprobs == alone.logprobs
    assert beside.prompt_logprobs == alone.prompt_logprobs


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize(
    "kind",
    [
        each if each in ("idefics3", "gemma3", "qwen3_vl") else pytest.param(each, marks=pytest.mark.slow)
        for each in IMAGE_MODELS
    ],
)
def test_images_are_read_where_the_kernels_of_the_processor_serve(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, processor = save_image_model(kind, tmp_path)
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lambda *_, **__: processor)
    engine = make_engine(tmp_path, dtype="bfloat16", block_size=16)
    assert engine.model.backend.name == "cpu kernels"
    reader = engine.model.images
    assert reader is not None
    assert reader.num_read == 0
    answers = tokens(engine, [prompt(number, f"{processor.image_token} What is this?") for number in (0, 0, 1, 2)])
    assert reader.num_read == 4
    assert answers[0] == answers[1]
    assert len({tuple(answer) for answer in answers}) > 1


@pytest.mark.usefixtures("cpu_kernels")
def test_the_rounding_of_quantized_weights_does_not_refuse_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this model, the logits after an image depend on it by more than the self-check allows."""
    _, processor = save_image_model("gemma4", tmp_path)
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lambda *_, **__: processor)
    engine = make_engine(tmp_path, dtype="bfloat16", block_size=16, quantization="int4")
    assert engine.model.images is not None


@pytest.mark.parametrize("text", ["user\n@\n\nWhat is this?", "@@", "\n\n@ @\n", "Lines\n\n\n@\nLines", "a@b"])
def test_text_beside_images_is_tokenized_as_the_models_processor_does(gemma: tuple[Path, Any], text: str) -> None:
    folder, processor = gemma
    text = text.replace("@", processor.image_token)
    pictures = [Image.open(io.BytesIO(PICTURES[0]))] * text.count(processor.image_token)
    wanted = processor(text=[text], images=pictures, add_special_tokens=False)["input_ids"][0]
    prompt_ids = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    reader = make_engine(folder).model.images
    assert reader is not None
    found, _ = reader.read(prompt_ids, PICTURES[:1] * len(pictures))
    assert found == wanted


def test_text_that_only_looks_like_a_control_token_stays_text(gemma: tuple[Path, Any]) -> None:
    """Tokenized anew with the line breaks of an image, it would become one."""
    folder, processor = gemma
    tokenizer = processor.tokenizer
    reader = make_engine(folder).model.images
    assert reader is not None
    as_text = tokenizer.encode("<|im_", add_special_tokens=False) + tokenizer.encode("end|>", add_special_tokens=False)
    assert tokenizer.decode(as_text) == "<|im_end|>"
    found, _ = reader.read([*as_text, reader.placeholder_id], PICTURES[:1])
    assert found[: len(as_text)] == as_text


def test_features_of_tokens_that_only_look_like_an_image() -> None:
    output = BaseModelOutputWithPooling(pooler_output=[torch.ones(2, 3), 2 * torch.ones(1, 3)])
    features = Features.of(output)
    taken = torch.tensor([True, False, True, True, False])
    spread = features.spread(taken, torch.full((3,), 7.0))
    (main,) = spread.output().pooler_output
    assert main[:, 0].tolist() == [1, 7, 1, 2, 7]
    assert features[1:3].main[:, 0].tolist() == [1, 2]


def test_the_log_names_the_package_that_a_processor_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def require(*_: Any, **__: Any) -> None:
        raise ImportError("\nPixtralProcessor requires the Torchvision library but it was not found.\nInstall it.\n")

    model, _processor = save_image_model("gemma3", tmp_path)
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", require)
    engine = make_engine(tmp_path)
    assert "prompts with images are refused: ImportError: PixtralProcessor requires the Torchvision" in caplog.text
    assert tokens(engine, [[5, 6, 7]]) == [greedy(model, [5, 6, 7], 10)]
