"""Photos are read as they were seen, whatever else a camera or a program has noted in them."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from inflight.model.images.image_reader import _decoded

ASCII, SHORT = 2, 3
ORIENTATION, X_RESOLUTION = 0x0112, 0x011A


def photo(*entries: bytes) -> bytes:
    """Return a file with these entries of EXIF data."""
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", exif=exif)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    return struct.pack("<HHIHH", ORIENTATION, SHORT, 1, orientation, 0)


@pytest.mark.parametrize("orientation", range(10))
def test_a_photo_is_turned_as_pillow_turns_it(orientation: int) -> None:
    file = photo(turned(orientation))
    wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    assert np.array_equal(np.asarray(_decoded(0, file)), np.asarray(wanted))


def test_a_photo_is_read_where_the_rest_of_its_exif_data_is_wrong() -> None:
    text_in_place_of_a_fraction = struct.pack("<HHI4s", X_RESOLUTION, ASCII, 4, b"72\0\0")
    file = photo(turned(6), text_in_place_of_a_fraction)
    assert np.array_equal(np.asarray(_decoded(0, file)), np.asarray(_decoded(0, photo(turned(6)))))
