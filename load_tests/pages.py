"""The pages of this project's documentation, as a text for measurements."""

from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "docs"


def tokens_of_pages(tokenizer: Any) -> list[int]:
    """All pages, one after the other, as token ids of a transformers tokenizer."""
    text = "\n".join(page.read_text() for page in sorted(PAGES.rglob("*.md")))
    tokens: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return tokens
