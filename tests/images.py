"""Files with random pictures."""

import io

import numpy as np
from PIL import Image


def picture(seed: int, width: int, height: int, form: str = "PNG") -> bytes:
    """Return a file with noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()
