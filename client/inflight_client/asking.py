"""What clients ask of the model and the server besides answers, for threads and for asyncio."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

from inflight_client import questions
from inflight_client.errors import InflightError
from inflight_client.options import Timeouts
from inflight_client.questions import ModelDescription, Question, Tokenization, UnfinishedRequest
from inflight_client.request import Message

_T = TypeVar("_T")


class Asking(ABC):
    """The questions of `Client`."""

    _model: str
    _timeouts: Timeouts

    @abstractmethod
    def _ask(self, question: Question[_T], seconds: float) -> _T:
        """Ask the model, and return its answer."""

    def unfinished_requests(self) -> list[UnfinishedRequest]:
        """The requests that are waiting or running on the server: the oldest first, at most 100."""
        return self._ask(questions.unfinished_requests(self._model), self._timeouts.connect)

    def is_serving(self) -> bool:
        """Whether the model itself answers, and its engine runs.

        `is_ready` asks only Triton, which before 26.01 does not notice that a model's process has died.
        """
        try:
            self.unfinished_requests()
        except InflightError:
            return False
        return True

    def describe_model(self) -> ModelDescription:
        """What the model says of itself: its context, chat template, special tokens and ends."""
        return self._ask(questions.description(self._model), self._timeouts.connect)

    def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        add_special_tokens: bool = True,
        return_token_strs: bool = False,
    ) -> Tokenization:
        """Return the tokens of a prompt or of a chat, as `generate` would send them to the model.

        >>> client.tokenize("A, B, C,").token_ids
        (49, 28, 389, 28, 340, 28)
        """
        flags = {"add_special_tokens": add_special_tokens, "return_token_strs": return_token_strs}
        question = questions.tokens(self._model, prompt, messages, tools, chat_template_kwargs, **flags)
        return self._ask(question, self._timeouts.first_token)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of some tokens, special tokens included."""
        return self._ask(questions.text_of(self._model, token_ids), self._timeouts.first_token)


class AsyncAsking(ABC):
    """The questions of `AsyncClient`. See `Asking`."""

    _model: str
    _timeouts: Timeouts

    @abstractmethod
    async def _ask(self, question: Question[_T], seconds: float) -> _T:
        """Ask the model, and return its answer."""

    async def unfinished_requests(self) -> list[UnfinishedRequest]:
        """The requests that are waiting or running on the server: the oldest first, at most 100."""
        return await self._ask(questions.unfinished_requests(self._model), self._timeouts.connect)

    async def is_serving(self) -> bool:
        """Whether the model itself answers, and its engine runs. See `Client.is_serving`."""
        try:
            await self.unfinished_requests()
        except InflightError:
            return False
        return True

    async def describe_model(self) -> ModelDescription:
        """What the model says of itself: its context, chat template, special tokens and ends."""
        return await self._ask(questions.description(self._model), self._timeouts.connect)

    async def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        add_special_tokens: bool = True,
        return_token_strs: bool = False,
    ) -> Tokenization:
        """Return the tokens of a prompt or of a chat, as `generate` would send them to the model."""
        flags = {"add_special_tokens": add_special_tokens, "return_token_strs": return_token_strs}
        question = questions.tokens(self._model, prompt, messages, tools, chat_template_kwargs, **flags)
        return await self._ask(question, self._timeouts.first_token)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of some tokens, special tokens included."""
        return await self._ask(questions.text_of(self._model, token_ids), self._timeouts.first_token)
