"""Finds out whether a model's images can be served, and makes the reader."""

import io
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from transformers import AutoProcessor

from inflight.config import EngineConfig
from inflight.errors import InvalidRequest, UnsupportedModel
from inflight.model.forward import takes
from inflight.model.loading.self_check import SelfCheck
from inflight.prompt_images import PromptImages

if TYPE_CHECKING:
    from PIL.Image import Image

    from inflight.model.images.image_reader import ImageReader

logger = logging.getLogger(__name__)

ErrorOf: TypeAlias = Callable[[torch.Tensor, list[int], PromptImages], float | None]

_TEXT = " This is a picture. What does it show?"
_SIZE = (70, 50)
_SAME = 1e-3
"""Bound on the relative error of logits that are the same."""


def load_image_reader(module: Any, config: EngineConfig, check: SelfCheck, error_of: ErrorOf) -> "ImageReader | None":
    """Return the reader of a model's images, if the logits of a prompt with an image come out right.

    `error_of` serves a prompt with images, see `SelfCheck.error_with_images`. The log says why there is no reader.
    """
    if not takes(module, "mm_encoder_outputs") or getattr(module.config, "image_token_id", None) is None:
        return None
    try:
        return _checked(module, config, check, error_of)
    except UnsupportedModel as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - processors and encoders are code of the model's authors
        reason = f"{type(error).__name__}: {error}"
    logger.warning("prompts with images are refused: %s", reason.strip().partition("\n")[0])
    return None


def _checked(module: Any, config: EngineConfig, check: SelfCheck, error_of: ErrorOf) -> "ImageReader":
    # Not at the top: a server without Pillow serves text.
    from inflight.model.images.image_reader import ImageReader

    processor: Any = AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]
        config.model, revision=config.revision, trust_remote_code=config.trust_remote_code
    )
    reader = ImageReader(module, processor)
    picture = _noise()
    given = processor(
        text=[reader.placeholder + _TEXT], images=[picture], return_tensors="pt", add_special_tokens=False
    )
    file = io.BytesIO()
    picture.save(file, "PNG")
    tail = processor.tokenizer(_TEXT, add_special_tokens=False)["input_ids"]
    try:
        token_ids, images = reader.read([reader.placeholder_id, *tail], [file.getvalue()])
    except InvalidRequest as error:
        raise UnsupportedModel(str(error)) from error
    if token_ids != given["input_ids"][0].tolist():
        raise UnsupportedModel("its processor changes the text beside an image")
    inputs = {
        name: value.to(module.device, module.dtype if value.is_floating_point() else None)
        for name, value in given.items()
        if isinstance(value, torch.Tensor)
    }
    _check_causal(check, reader.without_pixels(inputs), images)
    difference = error_of(check.own_logits(inputs), token_ids, images)
    if difference is not None:
        raise UnsupportedModel(f"logits after an image differ by {difference:.1%} from those of its own forward pass")
    return reader


def _check_causal(check: SelfCheck, inputs: Mapping[str, Any], images: PromptImages) -> None:
    """Check that no token of an image attends to later ones, as in Gemma 3. Chunks of a prompt could not show them.

    Raises:
        UnsupportedModel: One does.
    """
    last = int(images.rows[-1])
    one, other = (
        check.own_logits({**inputs, "mm_encoder_outputs": {"image": features.output()}})[:last]
        for features in (images.features, images.features.with_other_end())
    )
    if ((one - other).norm(dim=-1) > _SAME * one.norm(dim=-1)).any():
        raise UnsupportedModel("the tokens of its images attend to later ones")


def _noise() -> "Image":
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (*reversed(_SIZE), 3), dtype=np.uint8)
    return Image.fromarray(pixels)
