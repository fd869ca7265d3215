"""Which models a test has in `make test`: those that differ most. `make test-slow` runs it with the others."""

from collections.abc import Iterable
from typing import Any

import pytest

# `scripts/reference/tiny_models.py` says what each of them has.
_OF_EACH_KIND = frozenset(
    {
        *("llama", "gemma2", "gpt2", "gpt_oss", "deepseek_v3"),
        *("bart", "bloom", "deepseek_v32"),
        *("qwen3_5", "jamba", "mamba2"),
    }
)


def a_few_of(names: Iterable[str]) -> list[Any]:
    """The names as parameters of a test. Those of models that are like others are marked as slow."""
    return [name if name in _OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow) for name in names]
