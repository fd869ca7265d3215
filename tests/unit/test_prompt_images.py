"""Images in a prompt: the names of its blocks, and the positions of its tokens."""

import numpy as np

from inflight.kv_cache.block_hash import BlockHasher
from inflight.kv_cache.cache_salt import CacheSalt
from inflight.prompt_images import PromptImages

SIZE = 4
PROMPT = [7, 1, 1, 1, 1, 8, 9, 9, 1, 1, 8, 8]
"""Two images, whose tokens are 1."""


def images(*digests: bytes) -> PromptImages:
    places = ((1, 5, digests[0]), (8, 10, digests[1]))
    return PromptImages(places, rows=np.array([1, 2, 3, 4, 8, 9]), features=None)


def names(seen: PromptImages | None) -> list[bytes]:
    hashes: list[bytes] = []
    BlockHasher(SIZE, b"key").extend(hashes, PROMPT, len(PROMPT), CacheSalt(), seen)
    return hashes


def test_a_block_is_named_by_the_images_in_it_and_before_it() -> None:
    one, other, text = names(images(b"a", b"b")), names(images(b"a", b"c")), names(None)
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert not set(one) & set(text)
    swapped = names(images(b"b", b"a"))
    assert not set(one) & set(swapped)


def test_a_block_without_images_before_it_is_named_by_its_tokens() -> None:
    seen = PromptImages(((4, 6, b"a"),), rows=np.array([4, 5]), features=None)
    assert names(seen)[0] == names(None)[0]
    assert names(seen)[1] != names(None)[1]


def test_tokens_after_a_prompt_follow_all_its_positions() -> None:
    # Two texts, four tokens of an image at one time in two rows, a text.
    positions = np.array([[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]])
    seen = PromptImages(((2, 6, b"a"),), np.arange(2, 6), None, positions)
    assert seen.positions_of(1, 4).tolist() == positions[:, 1:4].tolist()
    assert seen.positions_of(5, 9).tolist() == [[2, 4, 5, 6], [3, 4, 5, 6], [3, 4, 5, 6]]
    assert seen.positions_of(9, 11).tolist() == [[7, 8]] * 3
