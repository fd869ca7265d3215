"""The worst requests that one user can send, by name."""

import io
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from PIL import Image

from load_tests.chaos.doors import Question

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "and", "then", "but", "or")
_SIDE = 2048
"""Pixels."""
_ALL = -1
"""As many tokens as the context has room for."""


def _words(chance: random.Random, count: int) -> str:
    """A text that begins as no other one, so that no prefix of it is cached."""
    return f"{chance.getrandbits(64)} {_text(count)}"


@cache
def _text(count: int) -> str:
    """Made once, as the time that it takes must not slow the server."""
    return " ".join(random.Random(count).choices(_WORDS, k=count))


@dataclass(frozen=True)
class Worst:
    """A kind of request. Its user sends the next one when one has ended, whatever its end was."""

    make: Callable[[random.Random], Question]
    leaves_after: int | None = None
    """After how many pieces its user cancels it."""
    at_the_gateway: bool = True
    """Whether the gateway takes its fields."""
    reads_images: bool = False
    """Whether it needs a model that reads images."""
    refused: bool = False
    """Whether it must be refused. All others must be answered."""


def _prompt(count: int, **sampling: Any) -> Callable[[random.Random], Question]:
    return lambda chance: Question(_words(chance, count), (), {"temperature": 0, **sampling})


def _limits(chance: random.Random) -> Question:
    """Every list of the sampling parameters is as long as it may be."""
    sampling = {
        "max_tokens": 1000,
        "min_tokens": 1000,
        "temperature": 1.5,
        "top_p": 0.99,
        "min_p": 0.0001,
        "repetition_penalty": 1.2,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.0,
        "bad_words": [" ".join(chance.choices(_WORDS, k=14)) for _ in range(128)],
        "logit_bias": dict.fromkeys(range(1000, 2024), 0.5),
        "stop": [_words(chance, 180) for _ in range(16)],
        "stop_token_ids": list(range(2000, 3024)),
        "logprobs": 20,
    }
    return Question(_words(chance, 1000), (), sampling)


def _chat(chance: random.Random) -> Question:
    messages = [{"role": "user", "content": word} for word in chance.choices(_WORDS, k=4096)]
    return Question("", messages, {"max_tokens": 1, "temperature": 0})


def _image(chance: random.Random) -> Question:
    """An image of noise, which no cache knows, in the size that models scale images to."""
    file = io.BytesIO()
    Image.frombytes("RGB", (_SIDE, _SIDE), chance.randbytes(3 * _SIDE * _SIDE)).save(file, "JPEG")
    return Question(f"{chance.getrandbits(64)}<image>", (), {"max_tokens": 1, "temperature": 0}, [file.getvalue()])


WORST: Mapping[str, Worst] = {
    "prompts of 7,800 words, for one token": Worst(_prompt(7800, max_tokens=1)),
    "prompts of 250 words, for one token": Worst(_prompt(250, max_tokens=1)),
    "prompts of 500 words, cancelled at the first token": Worst(_prompt(500, max_tokens=200), leaves_after=1),
    "16 samples as long as the context": Worst(
        _prompt(10, max_tokens=_ALL, ignore_eos=True, n=16), at_the_gateway=False
    ),
    "16 samples with 20 log-probabilities": Worst(
        _prompt(10, max_tokens=400, ignore_eos=True, n=16, temperature=1.0, logprobs=20), at_the_gateway=False
    ),
    "16 samples of 400 tokens": Worst(_prompt(10, max_tokens=400, ignore_eos=True, n=16, temperature=1.0)),
    "all sampling parameters at their bounds": Worst(_limits, at_the_gateway=False),
    "texts just under the bound, refused when tokenized": Worst(_prompt(130_000, max_tokens=1), refused=True),
    "chats of 4,096 messages, refused when tokenized": Worst(_chat, refused=True),
    "large images, for one token": Worst(_image, at_the_gateway=False, reads_images=True),
    "malformed fields, without a pause": Worst(lambda chance: Question("Hello", (), {"max_tokens": 0}), refused=True),
}
