"""A real server with a tiny model that reads images."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from scripts.launch.model_repository import render_repository
from scripts.launch.triton_server import TritonServer
from scripts.reference.tiny_image_models import save_image_model
from tests.running_server import running_server

NUM_TOKENS = 8


@dataclass(frozen=True)
class ServedImages:
    """The server, and what it must agree with."""

    server: TritonServer
    model: Any
    processor: Any

    @classmethod
    @contextmanager
    def start(cls, folder: Path, kind: str = "idefics3") -> "Iterator[ServedImages]":
        """Serve a model of `IMAGE_MODELS` whose files are written to `folder`. A step has 32 tokens at most."""
        model, processor = save_image_model(kind, folder / "model")
        parameters = {
            "model": str(folder / "model"),
            "dtype": "float32",
            "kv_cache_tokens": "2048",
            "max_num_batched_tokens": "32",
        }
        repository = render_repository(folder / "models", parameters=parameters)
        with running_server(repository, ["llm", "completion"]) as server:
            yield cls(server, model, processor)

    def expected(self, text: str, images: Sequence[bytes]) -> str:
        """Return what transformers' `generate` answers."""
        pictures = [Image.open(io.BytesIO(image)) for image in images]
        given = [pictures] if pictures else None
        inputs = self.processor(text=[text], images=given, return_tensors="pt", add_special_tokens=False)
        with torch.inference_mode():
            output = self.model.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False)
        new = output[0, inputs["input_ids"].shape[1] :]
        return str(self.processor.tokenizer.decode(new, skip_special_tokens=True))
