"""Reads the images of a prompt, as a model's own processor and encoder do it."""

import inspect
import io
import re
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError

from inflight.errors import InvalidRequest
from inflight.model.images.features import Features
from inflight.model.images.text_seams import TextSeams
from inflight.prompt_images import Ints, PromptImages

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_GRID = "_grid_thw"
_DIGEST_BYTES = 16
MAX_IMAGES = 64
"""In one prompt."""
MAX_PIXELS = 2**25
"""Of one image, before the processor scales it."""
MAX_RATIO = 200
"""Of its longer side to the shorter one. Some processors enlarge an image until its shorter side has so many pixels: a
line of 65,535 pixels would take 20 GB. Qwen's processor has the same bound."""
MAX_SCANS = 64
"""Of one JPEG. Each goes over the whole image and may have 50 bytes: a file of 20 MB could take hours. Most have 10."""
_JPEG_BEGIN, _JPEG_END, _SCAN = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
_JPEG_SEGMENT = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
_TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""By the orientation in a photo's EXIF data."""

# Pillow warns of each wrong value in the EXIF data of an image. Python would print all texts that are new, and keep
# them, and clients could send any number.
warnings.filterwarnings("ignore", module=r"PIL\.")


@dataclass(frozen=True, eq=False)
class _Seen:
    """One image."""

    token_ids: list[int]
    """What stands for it in the prompt."""
    features: Features
    grid: Mapping[str, torch.Tensor]
    """What the model needs to place its tokens."""


class ImageReader:
    """Makes features of images, and puts their tokens into prompts. Any thread may use it."""

    def __init__(self, module: Any, processor: Any) -> None:
        """`processor` is transformers' processor of the model."""
        self._module = module
        self._processor = processor
        # Fast tokenizers cannot be used by two threads at once. It also guards the counters.
        self._lock = threading.Lock()
        self._taken: int = module.config.image_token_id
        self._encoder = module.base_model.get_image_features
        self._seams = TextSeams(processor.tokenizer)
        # Blocks on disk may be older than the processor's settings.
        self._key = blake2b(processor.to_json_string().encode()).digest()
        self._wanted = inspect.signature(self._encoder).parameters.keys()
        """The outputs of the processor that the encoder takes."""
        self.sees_ahead = False
        """See `PromptImages`."""
        self.example: Features | None = None
        """The features of a token, of the form that all others have. None until the model is loaded."""
        self.num_read = 0
        self.seconds = 0.0
        self.placeholder: str = processor.image_token
        """What a prompt has in place of an image."""
        self.placeholder_id = int(processor.tokenizer.convert_tokens_to_ids(self.placeholder))

    def on_device(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors among a processor's outputs as the model takes them."""
        return {
            name: value.to(self._module.device, self._module.dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
            if isinstance(value, torch.Tensor)
        }

    def without_pixels(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a model's arguments without what its encoder alone reads."""
        return {name: value for name, value in inputs.items() if name not in self._wanted or name.endswith(_GRID)}

    def read(self, prompt_ids: Sequence[int], images: Sequence[bytes]) -> tuple[list[int], PromptImages]:
        """Return a prompt's tokens, with those of the images in place of the placeholders, and the images.

        Args:
            prompt_ids: tokens with one placeholder for each image, in order.
            images: files in one of `FORMATS`.

        Raises:
            InvalidRequest: An image cannot be read, or there are more or fewer placeholders than images.
        """
        count = list(prompt_ids).count(self.placeholder_id)
        if count != len(images):
            raise InvalidRequest(
                f"{len(images)} images are given, and the prompt has {count} places for them, which are the token "
                f"{self.placeholder!r}"
            )
        if count > MAX_IMAGES:
            raise InvalidRequest(f"{count} images are given; there must be at most {MAX_IMAGES}")
        begun = time.perf_counter()
        seen = [self._see(index, _decoded(index, image)) for index, image in enumerate(images)]
        with self._lock:
            self.num_read += len(seen)
            self.seconds += time.perf_counter() - begun
            token_ids = self._seams.joined(prompt_ids, self.placeholder_id, [each.token_ids for each in seen])
        rows = np.flatnonzero(np.array(token_ids) == self._taken)
        features = Features.joined([each.features for each in seen])
        if len(rows) != len(features.main):
            raise InvalidRequest(
                f"the prompt has {len(rows)} tokens for images, and the images have {len(features.main)} features; the "
                f"token {self._taken} must not be in the prompt"
            )
        ends = np.cumsum([len(each.features.main) for each in seen])
        places = tuple(
            (int(rows[end - len(each.features.main)]), int(rows[end - 1]) + 1, self._digest(image))
            for end, each, image in zip(ends, seen, images, strict=True)
        )
        return token_ids, PromptImages(places, rows, features, self._positions(token_ids, seen), self.sees_ahead)

    @torch.inference_mode()
    def _see(self, index: int, picture: Image.Image) -> _Seen:
        try:
            with self._lock:
                inputs = self._processor(
                    text=[self.placeholder], images=[picture], return_tensors="pt", add_special_tokens=False
                )
        except Exception as error:
            # Processors are code of the model's authors, and what they raise depends on the image.
            raise InvalidRequest(f"images[{index}] does not fit the model's processor: {error}") from error
        given = self.on_device(inputs)
        output = self._encoder(**{name: given[name] for name in self._wanted if name in given}, return_dict=True)
        grid = {name: value for name, value in given.items() if name.endswith(_GRID)}
        return _Seen(inputs["input_ids"][0].tolist(), Features.of(output), grid)

    def _digest(self, image: bytes) -> bytes:
        """Return what names the features of an image."""
        return blake2b(image, digest_size=_DIGEST_BYTES, key=self._key).digest()

    def _positions(self, token_ids: Sequence[int], seen: Sequence[_Seen]) -> Ints | None:
        """Return the positions [dimensions, tokens]; None if the model counts tokens."""
        index = getattr(self._module.base_model, "get_rope_index", None)
        if index is None or not seen[0].grid:
            return None
        kinds = self._processor.create_mm_token_type_ids([list(token_ids)])
        grid = {name: torch.cat([each.grid[name] for each in seen]) for name in seen[0].grid}
        device = next(iter(grid.values())).device
        positions, _ = index(
            input_ids=torch.tensor([list(token_ids)], device=device),
            mm_token_type_ids=torch.tensor(kinds, device=device),
            **grid,
        )
        found: Ints = positions[:, 0].cpu().numpy()
        return found


def _decoded(index: int, image: bytes) -> Image.Image:
    try:
        picture = Image.open(io.BytesIO(image), formats=FORMATS)
        if (pixels := picture.width * picture.height) > MAX_PIXELS:
            raise InvalidRequest(f"images[{index}] has {pixels} pixels; it must have at most {MAX_PIXELS}")
        if max(picture.size) > MAX_RATIO * min(picture.size):
            size = f"{picture.width} x {picture.height}"
            raise InvalidRequest(f"images[{index}] is {size}; a side must be at most {MAX_RATIO} times the other")
        if _num_scans(image) > MAX_SCANS:
            raise InvalidRequest(f"images[{index}] is a JPEG of more than {MAX_SCANS} scans")
        return _upright(picture).convert("RGB")
    except InvalidRequest:
        raise
    except UnidentifiedImageError as error:
        raise InvalidRequest(f"images[{index}] is no file in one of the formats {', '.join(FORMATS)}") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidRequest(f"images[{index}] cannot be decoded: {error}") from error


def _num_scans(image: bytes) -> int:
    """Return how many scans a JPEG has, 0 if the file is none. Those beyond `MAX_SCANS` are not counted."""
    count, at = 0, len(_JPEG_BEGIN)
    if not image.startswith(_JPEG_BEGIN):
        return count
    # In what is compressed, a zero follows each 0xff. So it holds no segments.
    while count <= MAX_SCANS and (found := _JPEG_SEGMENT.search(image, at)) and found[0] != _JPEG_END:
        at = found.end() + int.from_bytes(image[found.end() : found.end() + 2], "big")
        count += found[0] == _SCAN
    return count


def _upright(picture: Image.Image) -> Image.Image:
    """Return a photo as it was seen. Pillow's `exif_transpose` also writes the rest of the EXIF data anew, and raises
    errors of any kind where a camera or a program has written it wrong."""
    picture.load()  # In some files, the EXIF data comes last.
    method = _TO_UPRIGHT.get(picture.getexif().get(ExifTags.Base.Orientation, 1))
    return picture if method is None else picture.transpose(method)
