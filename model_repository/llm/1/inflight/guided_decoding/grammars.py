"""Compiles constraints for a model, and keeps the newest ones."""

import functools
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from typing import Any

from llguidance import LLTokenizer
from tokenizers import Tokenizer

from inflight.errors import InvalidRequest
from inflight.guided_decoding.grammar import Grammar
from inflight.guided_decoding.grammar_text import grammar_text
from inflight.structured_outputs import StructuredOutputs
from inflight.tenant_turns import TenantTurns

logger = logging.getLogger(__name__)

# Normalizers of the library tokenizers that change more than spaces.
_CHANGE_TEXT = ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Lowercase", "StripAccents", "BertNormalizer")
_MAX_KEPT = 64
_MAX_WAITING = 256
_MAX_WAITING_IN_ALL = 1024


class FutureGrammar(Future[Grammar]):
    """A grammar that many requests may wait for."""

    def result(self, timeout: float | None = None) -> Grammar:
        """Wait for the grammar.

        Each reader gets an exception of its own. A traceback refers to all that its readers hold, such as prompts, so
        that an exception which is kept and raised again would keep all of them.

        Raises:
            InvalidRequest: the constraint cannot be enforced.
            RuntimeError: it could not be compiled for another reason.
        """
        error = self.exception(timeout)
        if error is not None:
            raise type(error)(str(error))
        return super().result()


class Grammars:
    """Compiles constraints on a thread of its own. Any thread may use it.

    Most take a few milliseconds, and the GIL is free most of that time. The worst take half a second. So tenants take
    turns: however many constraints one of them sends, the next one of another tenant waits for a single one.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        """`vocab_size` is the number of logits."""
        self._kept: OrderedDict[StructuredOutputs, FutureGrammar] = OrderedDict()
        self.num_compiled = 0
        self.seconds = 0.0
        """Time spent on compiling."""
        self._waiting = TenantTurns[tuple[StructuredOutputs, FutureGrammar]](
            "grammars wait to be compiled", most=_MAX_WAITING, most_in_all=_MAX_WAITING_IN_ALL
        )
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._tokenizer = functools.cache(lambda: _ll_tokenizer(tokenizer, vocab_size, eos_token_ids))
        self._special_tokens = functools.cache(lambda: _special_tokens(tokenizer, self._tokenizer()))

    def prepare(self) -> None:
        """Begin what only the first constraint has to wait for. It takes half a second."""
        self.compile(StructuredOutputs(json_object=True))

    def compile(self, wanted: StructuredOutputs, tenant: str = "") -> FutureGrammar:
        """Return the future grammar of a constraint. Its exception is InvalidRequest if it cannot be enforced.

        Raises:
            QueueFull: too many constraints wait to be compiled, of this tenant or of all.
        """
        with self._lock:
            future = self._kept.get(wanted)
            if future is not None:
                self._kept.move_to_end(wanted)
                return future
            future = FutureGrammar()
            self._waiting.add(tenant, (wanted, future))
            self._kept[wanted] = future
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        self._pool.submit(self._compile_next)
        return future

    def _compile_next(self) -> None:
        with self._lock:
            tenant, *_ = self._waiting.tenants()
            wanted, future = self._waiting.take(tenant)
        done = self._attempt(wanted)
        with self._lock:
            if self._kept.get(wanted) is future:
                # A future keeps its callbacks, and so the requests that waited for it. `done` has none.
                self._kept[wanted] = done
        if (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())

    def _attempt(self, wanted: StructuredOutputs) -> FutureGrammar:
        done = FutureGrammar()
        try:
            done.set_result(self._compile(wanted))
        # Without the tracebacks, which refer to the future and so to all who wait for it.
        except InvalidRequest as error:
            done.set_exception(InvalidRequest(str(error)))
        except Exception as error:
            logger.exception("a grammar cannot be compiled")
            done.set_exception(RuntimeError(f"the grammar cannot be compiled: {type(error).__name__}: {error}"))
        return done

    def _compile(self, wanted: StructuredOutputs) -> Grammar:
        tokenizer = self._tokenizer()
        begun = time.perf_counter()
        try:
            if isinstance(tokenizer, str):
                raise InvalidRequest(f"structured_outputs is given, but {tokenizer}")
            return Grammar(tokenizer, wanted.kind, grammar_text(wanted, self._special_tokens()))
        finally:
            self.num_compiled += 1
            self.seconds += time.perf_counter() - begun


def _ll_tokenizer(tokenizer: Tokenizer | None, vocab_size: int, eos_token_ids: Collection[int]) -> LLTokenizer | str:
    """Return llguidance's tokenizer, or why there is none."""
    if tokenizer is None:
        return "the model folder has no tokenizer"
    plain = copy(tokenizer)
    plain.no_padding()
    plain.no_truncation()
    ends = sorted(token for token in eos_token_ids if token < vocab_size)
    try:
        written = _written(plain, vocab_size)
        return LLTokenizer(written, n_vocab=vocab_size, eos_token=ends or _without_text(plain, vocab_size))
    except ValueError as error:
        logger.warning("guided decoding is off: llguidance does not know this kind of tokenizer: %s", error)
        return f"llguidance does not know the model's kind of tokenizer: {error}"


def _without_text(tokenizer: Tokenizer, vocab_size: int) -> int | None:
    """Return a token that does not show, for a model without an end token. None if there is none.

    An output may end with it where its grammar allows the end. llguidance would take token 0, which may be a letter.
    """
    added = tokenizer.get_added_tokens_decoder().items()
    return next((token_id for token_id, token in added if token.special and token_id < vocab_size), None)


def _written(tokenizer: Tokenizer, vocab_size: int) -> str:
    """Return a tokenizer as JSON, as llguidance needs it.

    Without the added tokens for which the model has no logit: outputs never have them, and llguidance refuses a
    tokenizer that is larger than the vocabulary. And without what composes characters, changes their case or puts a
    space before the text: forced text is tokenized, and then must be the text that the grammar has.
    """
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["id"] < vocab_size]
    parts["normalizer"] = _without_changes(parts["normalizer"])
    parts["pre_tokenizer"] = _without_prefix(parts["pre_tokenizer"])
    return json.dumps(parts)


def _without_prefix(pre_tokenizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a pre-tokenizer that puts no space before a text. llguidance itself takes away that of Metaspace."""
    if pre_tokenizer is None:
        return None
    if pre_tokenizer["type"] == "Sequence":
        return {**pre_tokenizer, "pretokenizers": list(map(_without_prefix, pre_tokenizer["pretokenizers"]))}
    return {**pre_tokenizer, "add_prefix_space": False} if pre_tokenizer["type"] == "ByteLevel" else pre_tokenizer


def _without_changes(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    if normalizer is None or normalizer["type"] in _CHANGE_TEXT:
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    kept = [part for part in map(_without_changes, normalizer["normalizers"]) if part is not None]
    return {**normalizer, "normalizers": kept} if kept else None


def _special_tokens(tokenizer: Tokenizer | None, ll_tokenizer: LLTokenizer | str) -> dict[str, int]:
    """The ids of the tokens that no text has, for llguidance, by what they are in a text.

    These are all special tokens, and others in angle brackets, such as `<tool_call>` and `</think>` of Qwen.
    """
    if tokenizer is None or isinstance(ll_tokenizer, str):
        return {}
    added = tokenizer.get_added_tokens_decoder().items()
    known = ((token.content, token_id) for token_id, token in added if token_id < ll_tokenizer.vocab_size)
    return {content: token_id for content, token_id in known if ll_tokenizer.is_special_token(token_id)}
