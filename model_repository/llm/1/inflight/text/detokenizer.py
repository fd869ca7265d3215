"""Converts tokens to text, one at a time. It never returns part of a character."""

from collections.abc import Sequence

from tokenizers import Tokenizer

# Decoders need some tokens of context: whether a word begins with a space depends on the tokens before it.
_CONTEXT = 8
_MAX_BYTES = 4
"""Maximum number of bytes of a character in UTF-8."""
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Produces the text of one output as its tokens arrive. Special tokens have no text.

    The `DecodeStream` of the tokenizers library has two faults, so it is not used. It raises an error if bytes that
    form no character follow bytes that form one. And if a prompt ends within a character, `DecodeStream` returns the
    end of the prompt as output.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._pending: list[int] = []
        self._context, self._shown = self._end_of(prompt_ids)

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes. Empty while a character is incomplete."""
        self._pending.append(token_id)
        text = self._new_text()
        if not text or text.endswith(_BROKEN):
            return ""
        self._context, self._shown = self._pending, self._decode(self._pending)
        self._pending = []
        return text

    def flush(self) -> str:
        """At the end of the output, return the complete characters of the tokens that have given no text yet."""
        text = self._new_text().rstrip(_BROKEN) if self._pending else ""
        self._pending = []
        return text

    def _new_text(self) -> str:
        """Return the text that the pending tokens add."""
        text = self._decode(self._context + self._pending)
        if text.startswith(self._shown):
            return text[len(self._shown) :]
        # An incomplete character at the end of the prompt may be complete now.
        whole = self._shown.rstrip(_BROKEN)
        if whole and text.startswith(whole):
            return text[len(whole) :]
        # With byte fallback, one wrong byte spoils its whole run of bytes, even characters that were returned already.
        return self._decode(self._pending)

    def _end_of(self, prompt_ids: Sequence[int]) -> tuple[list[int], str]:
        """Return the last tokens of the prompt and their text. If possible, they begin at the start of a character."""
        for length in range(_CONTEXT, _CONTEXT + _MAX_BYTES):
            tail = list(prompt_ids[-length:])
            text = self._decode(tail)
            if not text.startswith(_BROKEN):
                break
        return tail, text

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))
