"""Converts tokens to text, one at a time. It never returns part of a character."""

from collections.abc import Sequence
from itertools import islice

from tokenizers import Tokenizer

# Decoders need some tokens of context: whether a word begins with a space depends on the tokens before it.
_CONTEXT = 8
_MAX_BYTES = 4
"""Maximum number of bytes of a character in UTF-8."""
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class TokenDecoder:
    """Decodes lists of tokens. The detokenizers of a model share it."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        added = tokenizer.get_added_tokens_decoder().values()
        self._skipped = {token.content for token in added if token.special and skip_special_tokens}

    def has_text(self, token_id: int) -> bool:
        """Whether `decode` heeds a token. It skips ids that no token has, and special tokens unless they are wanted."""
        token = self._tokenizer.id_to_token(token_id)
        return token is not None and token not in self._skipped

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of some tokens. Bytes that form no character become U+FFFD."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=self._skip))


class Detokenizer:
    """Produces the text of one output as its tokens arrive.

    The time per token is bounded, also while tokens give no text: at most some tens of tokens are decoded for each.

    The `DecodeStream` of the tokenizers library has two faults, so it is not used. It raises an error if bytes that
    form no character follow bytes that form one. And if a prompt ends within a character, `DecodeStream` returns the
    end of the prompt as output.
    """

    def __init__(self, decoder: TokenDecoder, prompt_ids: Sequence[int]) -> None:
        self._decoder = decoder
        with_text = (token_id for token_id in reversed(prompt_ids) if decoder.has_text(token_id))
        self._context, self._shown = self._end_of([*islice(with_text, _CONTEXT + _MAX_BYTES - 1)][::-1])
        self._pending: list[int] = []
        """Tokens since the last one that completed some text."""

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes.

        Replacement characters at the end are held back while they may stand for the beginning of a character. The last
        ones of an output are never returned.
        """
        if not self._decoder.has_text(token_id):
            return ""
        self._pending.append(token_id)
        text = self._new_text()
        complete = text.rstrip(_BROKEN)
        if text and complete == text:
            self._context, self._shown = self._pending, self._decoder.decode(self._pending)
            self._pending = []
        elif complete or len(self._pending) >= _CONTEXT:
            complete += text[len(complete) : 1 - _MAX_BYTES]  # Of so many bytes only the last can become a character.
            self._context, shown = self._end_of(self._context + self._pending)
            self._shown = shown[: len(shown) - (len(text) - len(complete))]
            self._pending = []
        return complete

    def _new_text(self) -> str:
        """Return the text that the pending tokens add."""
        text = self._decoder.decode(self._context + self._pending)
        if text.startswith(self._shown):
            return text[len(self._shown) :]
        # An incomplete character at the end of the prompt may be complete now.
        whole = self._shown.rstrip(_BROKEN)
        if whole and text.startswith(whole):
            return text[len(whole) :]
        # With byte fallback, one wrong byte spoils its whole run of bytes, even characters that were returned already.
        return self._decoder.decode(self._pending)

    def _end_of(self, token_ids: list[int]) -> tuple[list[int], str]:
        """Return the last tokens and their text. If possible, they begin at the start of a character."""
        for length in range(_CONTEXT, _CONTEXT + _MAX_BYTES):
            tail = token_ids[-length:]
            text = self._decoder.decode(tail)
            if not text.startswith(_BROKEN):
                break
        return tail, text
