"""Prompts with images: the engine's tokens are those of transformers' `generate`, token for token."""

import io
import random
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from inflight import Engine, EngineConfig, ImagePrompt, SamplingParams
from inflight.model.loading.loader import LoadedModel, load_model
from scripts.reference.tiny_image_models import IMAGE_MODELS, save_image_model
from tests.images import picture

NUM_TOKENS = 10
LONGEST_IMAGE = {"gemma3": 16, "gemma4": 70}
"""In tokens, where a step must compute all of an image."""


class Served:
    """An engine, and the model and the processor that it must agree with."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        self.model, self.processor = save_image_model(kind, folder)
        self.place = self.processor.image_token
        self.least_budget = LONGEST_IMAGE.get(kind, 1)
        self._expected: dict[tuple[str, tuple[bytes, ...]], list[int]] = {}

    def config(self, **settings: Any) -> EngineConfig:
        usual = {"dtype": "float32", "block_size": 8, "kv_cache_tokens": 1024, "max_model_len": 512}
        return EngineConfig(model=str(self.folder), **{**usual, **settings})

    @cached_property
    def loaded(self) -> LoadedModel:
        """The settings of the tests below do not concern what is loaded."""
        return load_model(self.config())

    def engine(self, **settings: Any) -> Engine:
        return Engine(self.config(**settings), self.loaded)

    def expected(self, text: str, images: Sequence[bytes]) -> list[int]:
        """What `generate` says to a prompt. Several tests ask for the same."""
        asked = text, tuple(images)
        if asked not in self._expected:
            self._expected[asked] = self._generate(text, images)
        return self._expected[asked]

    def _generate(self, text: str, images: Sequence[bytes]) -> list[int]:
        pictures = [Image.open(io.BytesIO(image)) for image in images]
        inputs = self.processor(text=[text], images=pictures or None, return_tensors="pt", add_special_tokens=False)
        with torch.inference_mode():
            output = self.model.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False)
        return list(output[0, inputs["input_ids"].shape[1] :].tolist())


@pytest.fixture(scope="module", params=IMAGE_MODELS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    served = Served(request.param, tmp_path_factory.mktemp(request.param))
    with pytest.MonkeyPatch.context() as patch:
        if request.param.startswith(("qwen", "gemma4", "llava_onevision")):
            # transformers loads them with a processor of videos, for which torchvision is needed.
            patch.setattr(transformers.AutoProcessor, "from_pretrained", lambda *_, **__: served.processor)
        yield served


def prompts(place: str) -> list[tuple[str, list[bytes]]]:
    return [
        (f"{place} What is this?", [picture(1, 70, 50)]),
        ("No picture at all.", []),
        (f"First {place}, then {place}. Compare them.", [picture(2, 40, 90), picture(3, 120, 30, "BMP")]),
        (f"{place} What is this?", [picture(4, 70, 50)]),
        ("A long text without any picture, so that chunks of both kinds share steps. " * 3, []),
        (f"{'Words before it. ' * 5}{place}.", [picture(1, 70, 50)]),
        (f"Lines\n{place}\n{place}\n\nLines", [picture(5, 60, 60), picture(1, 70, 50)]),
    ]


def given(prompts: Sequence[tuple[str, list[bytes]]]) -> list[str | ImagePrompt]:
    return [ImagePrompt(text, images) if images else text for text, images in prompts]


@pytest.mark.parametrize(
    ("budget", "kv_cache_tokens"),
    [
        *((7, 160), (64, 160), (2048, 1024)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((7, 1024), (64, 1024), (2048, 160))),
    ],
)
def test_prompts_with_and_without_images_share_steps(served: Served, budget: int, kv_cache_tokens: int) -> None:
    budget, kv_cache_tokens = max(budget, served.least_budget), kv_cache_tokens + 2 * served.least_budget
    engine = served.engine(max_num_batched_tokens=budget, kv_cache_tokens=kv_cache_tokens // 8 * 8)
    cases = prompts(served.place)
    outputs = engine.generate(given(cases), SamplingParams(max_tokens=NUM_TOKENS, temperature=0))
    assert [output.token_ids for output in outputs] == [served.expected(*case) for case in cases]


def test_images_matter(served: Served) -> None:
    """The tokens after one picture are not those after another one."""
    found = {tuple(served.expected(f"{served.place} What is this?", [picture(seed, 70, 50)])) for seed in range(6)}
    assert len(found) > 1


def test_cached_prefixes_tell_images_apart(served: Served) -> None:
    engine = served.engine()
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0)
    text = f"{served.place} What is this, and what is behind it?"
    cases = [(text, [picture(seed, 70, 50)]) for seed in (1, 2, 1, 3, 2)]
    random.Random(0).shuffle(cases)
    hits = []
    for case in cases:
        (output,) = engine.generate(given([case]), params)
        assert output.token_ids == served.expected(*case)
        hits.append(output.num_cached_tokens > output.prompt_ids.index(served.model.config.image_token_id))
    seen: list[bytes] = []
    for (_, (image,)), hit in zip(cases, hits, strict=True):
        assert hit == (image in seen)
        seen.append(image)


def test_what_comes_before_another_image_is_found_again(served: Served) -> None:
    """As in a chat of many turns, whose later messages bring further images."""
    engine = served.engine()
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0)
    first = (f"{served.place} What is this, and what is behind it?", [picture(1, 70, 50)])
    more = f"{first[0]} And this one? {served.place}."
    outputs = []
    for turn in (first, *((more, [*first[1], picture(seed, 70, 50)]) for seed in (2, 3))):
        (output,) = engine.generate(given([turn]), params)
        assert output.token_ids == served.expected(*turn)
        outputs.append(output)
    one, two, three = outputs
    of_an_image = one.prompt_ids.count(served.model.config.image_token_id)
    assert one.num_cached_tokens == 0
    assert two.num_cached_tokens >= len(one.prompt_ids) // 8 * 8 > of_an_image
    assert two.num_cached_tokens <= three.num_cached_tokens <= len(three.prompt_ids) - of_an_image
