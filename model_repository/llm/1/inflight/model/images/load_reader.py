"""Finds out whether a model's images can be served, and makes the reader."""

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from transformers import AutoProcessor

from inflight.config import EngineConfig
from inflight.errors import InvalidRequest, UnsupportedModel
from inflight.model.attention.backend import AttentionBackend
from inflight.model.forward import takes
from inflight.model.images.mask_probe import layers_that_see_ahead
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.loading.config_errors import one_line
from inflight.model.loading.self_check import SelfCheck
from inflight.model.parallel.shards import Shards
from inflight.model.routed_forward import RoutedForward
from inflight.prompt_content import PromptContent
from inflight.prompt_images import PromptImages

if TYPE_CHECKING:
    from PIL.Image import Image

    from inflight.model.images.image_reader import ImageReader

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TEXT = " This is a picture. What does it show?"
_BETWEEN = " And this one?\n"
_SIZE = (70, 50)
_SAME = 1e-3
"""Bound on the relative error of logits that are the same."""


class ImageForwards(Protocol):
    """Returns forward passes of a model that reads images, the fastest first.

    `ahead` is that of `EagerForward`. `prompt` is an example.
    """

    def __call__(self, ahead: tuple[bool, ...], prompt: PromptContent) -> Iterator[RoutedForward]: ...


class _Sample(NamedTuple):
    """A text with images."""

    inputs: dict[str, Any]
    """The model's own arguments for it."""
    prompt_ids: list[int]
    files: list[bytes]
    images: PromptImages


class ImageTrial(NamedTuple):
    """The prompt with images that the self-check expects."""

    reader: "ImageReader"
    prompt_ids: list[int]
    files: list[bytes]
    ahead: tuple[bool, ...]
    """See `EagerForward`."""


def image_trial(
    module: Any, config: EngineConfig, check: SelfCheck, windows: Sequence[int | None], shards: Shards | None
) -> ImageTrial | None:
    """Return a prompt to try a model's images with. Call this before the model is optimized.

    `windows` are those of `EagerForward`. The log says why there is none.
    """
    if not takes(module, "mm_encoder_outputs") or getattr(module.config, "image_token_id", None) is None:
        return None
    # At requests, only rank 0 reads images.
    with nullcontext() if shards is None else shards.alone("its encoder of images is divided over the ranks"):
        begun = _or_refused(lambda: _begin(module, config))
    if not check.everywhere(begun is not None):
        if begun is not None:
            logger.warning("prompts with images are refused: another rank cannot read them, and its log says why")
        return None
    assert begun is not None
    return _or_refused(lambda: _trial(module, check, windows, *begun))


def load_image_reader(
    trial: ImageTrial,
    check: SelfCheck,
    layers: Sequence[AttentionLayer],
    backend: AttentionBackend,
    forwards: ImageForwards,
) -> "tuple[ImageReader, RoutedForward] | None":
    """Return the reader of a model's images, and the first forward pass that computes them right.

    The log says why there is none.
    """
    return _or_refused(lambda: _checked(trial, check, layers, backend, forwards))


def _or_refused(work: Callable[[], T]) -> T | None:
    try:
        return work()
    except UnsupportedModel as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - processors and encoders are code of the model's authors
        reason = one_line(error)  # Where a package is missing, the first line is empty.
    logger.warning("prompts with images are refused: %s", reason)
    return None


def _begin(module: Any, config: EngineConfig) -> "tuple[ImageReader, Any, _Sample]":
    # Not at the top: a server without Pillow serves text.
    from inflight.model.images.image_reader import ImageReader

    processor: Any = AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]
        config.model, revision=config.revision, trust_remote_code=config.trust_remote_code
    )
    reader = ImageReader(module, processor)
    return reader, processor, _sample(reader, processor, reader.placeholder + _TEXT)


def _trial(
    module: Any, check: SelfCheck, windows: Sequence[int | None], reader: "ImageReader", processor: Any, sample: _Sample
) -> ImageTrial:
    ahead: tuple[bool, ...] = ()
    if not _is_causal(check, reader.without_pixels(sample.inputs), sample.images):
        reader.sees_ahead = True
        place = reader.placeholder
        sample = _sample(reader, processor, f"{place}{_BETWEEN}{place}{place}{_TEXT}")
        ahead = layers_that_see_ahead(module, sample.inputs, sample.images, windows)
    check.expect_inserts(sample.inputs)
    return ImageTrial(reader, sample.prompt_ids, sample.files, ahead)


def _checked(
    trial: ImageTrial,
    check: SelfCheck,
    layers: Sequence[AttentionLayer],
    backend: AttentionBackend,
    forwards: ImageForwards,
) -> "tuple[ImageReader, RoutedForward]":
    reader, difference = trial.reader, None
    check.expect_inserts_of_optimized()
    # Again, as the encoder may have been optimized.
    prompt = PromptContent(*reader.read(trial.prompt_ids, trial.files))
    assert prompt.images is not None
    for forward in forwards(trial.ahead, prompt):
        difference = check.error_with_inserts(prompt, forward, layers, backend)
        if difference is None:
            reader.num_read, reader.seconds = 0, 0.0  # The metrics count those of requests alone.
            reader.example = prompt.images.features[:1]
            return reader, forward
    raise UnsupportedModel(f"logits after an image differ by {difference:.1%} from those of its own forward pass")


def _sample(reader: "ImageReader", processor: Any, text: str) -> _Sample:
    """Return a text with images, as the processor and as the reader read it.

    Raises:
        UnsupportedModel: The tokens differ, or an image cannot be read.
    """
    pictures = [_noise(seed) for seed in range(text.count(reader.placeholder))]
    given = processor(text=[text], images=pictures, return_tensors="pt", add_special_tokens=False)
    files = []
    for picture in pictures:
        file = io.BytesIO()
        picture.save(file, "PNG")
        files.append(file.getvalue())
    prompt_ids = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    try:
        token_ids, images = reader.read(prompt_ids, files)
    except InvalidRequest as error:
        raise UnsupportedModel(str(error)) from error
    if token_ids != given["input_ids"][0].tolist():
        raise UnsupportedModel("its processor changes the text beside an image")
    return _Sample(reader.on_device(given), prompt_ids, files, images)


def _is_causal(check: SelfCheck, inputs: Mapping[str, Any], images: PromptImages) -> bool:
    """Return whether all tokens of an image attend to earlier ones alone."""
    last = int(images.rows[-1])
    one, other = (
        check.own_logits({**inputs, "mm_encoder_outputs": {"image": features.output()}})[:last]
        for features in (images.features, images.features.with_other_end())
    )
    return check.everywhere(not ((one - other).norm(dim=-1) > _SAME * one.norm(dim=-1)).any())


def _noise(seed: int) -> "Image":
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (*reversed(_SIZE), 3), dtype=np.uint8)
    return Image.fromarray(pixels)
