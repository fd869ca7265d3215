"""Turns prompts and chats into tokens."""

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from tokenizers import Tokenizer

from inflight.errors import InvalidRequest
from inflight.text.chat import Chat, chat_ids
from inflight.text.longest_token import LongestToken
from inflight.text.text_pair import TextPair, reads_pairs
from inflight.text.unicode import check_unicode
from inflight.text.unknown_text import unknown_text_refused

Prompt: TypeAlias = str | TextPair | Sequence[int]

# The bound where one token can stand for a text of any length. Words have about five characters.
_CHARACTERS_PER_TOKEN = 64
_ALWAYS_TOKENIZED = 2**20
# The pieces in which a long text is tokenized to count its tokens. Hardly any text with as many characters per token
# fits into the context.
_PIECE_CHARACTERS_PER_TOKEN = 8
_SHORTEST_PIECE = 2**16
# So many tokens more at most come of cutting a text in two: WordPiece makes one unknown token of a long word, but may
# know all letters of its halves, which have up to 100.
_TOKENS_OF_A_CUT = 256


class PromptEncoder:
    """Turns prompts and chats into tokens.

    A text that certainly has more tokens than the context is refused before it is tokenized, as that takes a second
    per megabyte. `LongestToken` says for which tokenizers this is known. A text for any other tokenizer has a bound
    that only text without sense exceeds. Of a shorter text, only the beginning is tokenized if that is too long.
    """

    def __init__(self, tokenizer: Any | None, max_model_len: int) -> None:
        """`tokenizer` is a transformers tokenizer."""
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._longest_token = None if tokenizer is None else LongestToken.of(tokenizer)
        if isinstance(backend := getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
            # Many tokenizers of rerankers come with a length of training. transformers resets it, but only when called.
            backend.no_truncation()
            backend.no_padding()

    def encode(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text or a pair of texts, or a list of tokens as it is.

        `add_special_tokens`: with those that the model expects around every text, if there are any.

        Raises:
            InvalidRequest: the prompt is no text and no list of whole numbers, or a text that is too long or that the
                tokenizer has no tokens for.
        """
        if isinstance(prompt, TextPair):
            return self._encode_pair(prompt)
        if not isinstance(prompt, str):
            return _whole_numbers(prompt)
        tokenizer = self.tokenizer("a text prompt")
        check_unicode("prompt", prompt)
        with unknown_text_refused("prompt"):
            self._check_size("prompt", prompt)
            return list(tokenizer(prompt, add_special_tokens=add_special_tokens)["input_ids"])

    def encode_end(self, prompt: Prompt, most: int) -> list[int]:
        """Return the last tokens of a prompt, `most` at most, and before them those that come before every text.

        Of a text that is far too long, only the end is tokenized.

        Raises:
            InvalidRequest: the prompt is no text and no list of whole numbers, or a text that the tokenizer has no
                tokens for.
        """
        return self._encode_part(prompt, most, beginning=False)

    def encode_beginning(self, prompt: Prompt, most: int) -> list[int]:
        """Return the first tokens of a prompt, and after them those that come after every text, as `encode_end` does
        the last ones. Of a query and a document, the document alone is cut.

        Raises:
            InvalidRequest: as `encode_end` does, or not even the query fits.
        """
        return self._encode_part(prompt, most, beginning=True)

    def _encode_part(self, prompt: Prompt, most: int, *, beginning: bool) -> list[int]:
        if isinstance(prompt, TextPair):
            if not beginning:
                raise InvalidRequest(
                    "truncate_prompt_tokens is given with a query and a document; truncation_side must be right, as "
                    "only the end of the document can be cut"
                )
            return self._encode_cut_pair(prompt, most)
        if not isinstance(prompt, str):
            return _whole_numbers(prompt)[:most] if beginning else _whole_numbers(prompt)[-most:]
        tokenizer = self.tokenizer("a text prompt")
        check_unicode("prompt", prompt)
        with unknown_text_refused("prompt"):
            encoded = tokenizer(self._part_of(prompt, most, beginning=beginning), return_special_tokens_mask=True)
        token_ids, is_added = list(encoded["input_ids"]), list(encoded["special_tokens_mask"])
        if len(token_ids) <= most:
            return token_ids
        fixed = is_added[::-1] if beginning else is_added
        outer = min(most, fixed.index(0) if 0 in fixed else len(fixed))
        first = most - outer if beginning else outer
        return token_ids[:first] + token_ids[len(token_ids) - (most - first) :]

    def encode_chat(self, chat: Chat) -> list[int]:
        """Return the tokens of a chat, built with the model's chat template.

        Raises:
            InvalidRequest: the chat is malformed or too long, or the model has no chat template or tokenizer.
        """

        def check_size(text: str) -> None:
            self._check_size("messages", text, ", chat template included")

        return chat_ids(self.tokenizer("messages"), chat, check_size)

    def _encode_pair(self, pair: TextPair) -> list[int]:
        """Return the tokens of a query and a document: by the chat template if it reads pairs, or as the tokenizer
        puts two texts together."""
        tokenizer = self.tokenizer("a query")
        if reads_pairs(tokenizer.chat_template):
            return self.encode_chat(Chat(pair.messages, template_kwargs=pair.template_kwargs))
        if pair.template_kwargs:
            raise InvalidRequest("chat_template_kwargs is given, but the chat template knows no query and document")
        for name, text in (("query", pair.query), ("document", pair.document)):
            check_unicode(name, text)
        with unknown_text_refused("query and document"):
            self._check_size("query and document", pair.query + pair.document)
            return list(tokenizer(pair.query, pair.document)["input_ids"])

    def _encode_cut_pair(self, pair: TextPair, most: int) -> list[int]:
        backend, token_ids = self.tokenizer("a query").backend_tokenizer, list[int]()
        document = self._part_of(pair.document, most, beginning=True)
        while True:
            (encoding,) = backend.encode_batch([document], add_special_tokens=False)
            too_many = len(encoding) - most
            if too_many <= 0:
                token_ids = self._encode_pair(replace(pair, document=document))
                too_many = len(token_ids) - most
                if too_many <= 0:
                    return token_ids
            if not (document and len(encoding)):  # A tokenizer may drop some characters.
                raise InvalidRequest(
                    f"truncate_prompt_tokens is {most}; the prompt has {len(token_ids)} tokens without the document, "
                    "which alone can be cut"
                )
            # Of a document that spells control tokens, these are one token each here, and several beside the query.
            kept = max(len(encoding) - too_many, len(encoding) // 2)
            # The tokens on both sides may be parts of one character. Then it goes, too.
            end = min(encoding.offsets[kept - 1][1], encoding.offsets[kept][0])
            document = document[: min(end, len(document) - 1)]

    def tokenizer(self, needed_for: str) -> Any:
        """Return the tokenizer, which a request needs for one of its fields.

        Raises:
            InvalidRequest: there is none.
        """
        if self._tokenizer is None:
            raise InvalidRequest(f"{needed_for} is given, but the model folder has no tokenizer; give token ids")
        return self._tokenizer

    def _part_of(self, text: str, most: int, *, beginning: bool) -> str:
        """Return so much of the end of a text, or of its beginning, that it has `most` tokens, and enough beside them
        that these are right.

        Of a text with very long tokens, it may be less.
        """

        def part(size: int) -> str:
            return text[:size] if beginning else text[-size:]

        size = max(_SHORTEST_PIECE, _PIECE_CHARACTERS_PER_TOKEN * most)
        longest = max(_ALWAYS_TOKENIZED, _CHARACTERS_PER_TOKEN * most)
        backend = self.tokenizer("prompt").backend_tokenizer
        while size < min(len(text), longest):
            (encoding,) = backend.encode_batch_fast([part(size)], add_special_tokens=False)
            if len(encoding) >= most + _TOKENS_OF_A_CUT:
                break
            size *= 2
        return part(min(size, longest))

    def _check_size(self, name: str, text: str, extent: str = "") -> None:
        longest = self._longest_token
        if longest is None:
            bound = max(_ALWAYS_TOKENIZED, _CHARACTERS_PER_TOKEN * self._max_model_len)
            if len(text) > bound:
                raise InvalidRequest(
                    f"{name} is {len(text)} characters long{extent}; it must be at most {bound}, as the context is "
                    f"{self._max_model_len} tokens"
                )
        else:
            size, bound = longest.size_of(text), (self._max_model_len - 1) * longest.size
            if size > bound:
                raise InvalidRequest(
                    f"{name} is {size} {longest.unit} long{extent}; it must be at most {bound}, as the context is "
                    f"{self._max_model_len} tokens of at most {longest.size} {longest.unit}"
                )
        self._check_pieces(name, text, extent)

    def _check_pieces(self, name: str, text: str, extent: str) -> None:
        """Count the tokens of a long text piece by piece, and refuse it as soon as they are too many."""
        piece = max(_SHORTEST_PIECE, _PIECE_CHARACTERS_PER_TOKEN * self._max_model_len)
        # Code that ships with a model may make fewer tokens than its tokenizer's backend.
        if len(text) <= piece or not type(self._tokenizer).__module__.startswith("transformers."):
            return
        backend, count = self.tokenizer(name).backend_tokenizer, 0
        for start in range(0, len(text), piece):
            # `encode` would keep Python's lock, for which the engine's steps would wait.
            (encoding,) = backend.encode_batch_fast([text[start : start + piece]], add_special_tokens=False)
            tokens = len(encoding)
            count += max(0, tokens - _TOKENS_OF_A_CUT)
            if count >= self._max_model_len:
                raise InvalidRequest(
                    f"{name} has over {count - 1} tokens{extent}; it must have at most {self._max_model_len - 1}, as "
                    f"the context is {self._max_model_len}"
                )


def _whole_numbers(prompt: Sequence[int]) -> list[int]:
    token_ids = []
    for token in prompt:
        try:
            token_ids.append(operator.index(token))
        except TypeError:
            raise InvalidRequest(f"prompt holds {token!r}; a token must be a whole number") from None
    return token_ids
