"""Prompts of random tokens."""

import random


def random_prompts(count: int, length: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Return `count` prompts of the same length. No two start with the same tokens."""
    chance = random.Random(f"{count} {length} {seed}")
    return [[chance.randrange(vocabulary) for _ in range(length)] for _ in range(count)]
