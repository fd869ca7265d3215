"""What clients ask of the model and the server besides answers, for threads and for asyncio."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeVar

from inflight_client import questions
from inflight_client.errors import InflightError
from inflight_client.options import TimeLimits, Timeouts
from inflight_client.questions import DrainState, ModelDescription, Question, Tokenization, UnfinishedRequest
from inflight_client.request import Message
from inflight_client.transport.connection import AsyncConnection, Connection

_T = TypeVar("_T")


def ask(connection: Connection, question: Question[_T], seconds: float) -> _T:
    """Ask the model on one server. Raises an InflightError if that fails."""
    call = connection.start(question.request, TimeLimits(seconds, seconds, seconds))
    return question.answer([text for reply in call.replies() for text in reply.texts])


async def ask_async(connection: AsyncConnection, question: Question[_T], seconds: float) -> _T:
    """Like `ask`, for asyncio."""
    call = connection.start(question.request, TimeLimits(seconds, seconds, seconds))
    return question.answer([text async for reply in call.replies() for text in reply.texts])


class Asking(ABC):
    """The questions of `Client`."""

    _model: str
    _timeouts: Timeouts

    @abstractmethod
    def _ask(self, question: Question[_T], seconds: float) -> _T:
        """Ask the model, and return its answer."""

    @abstractmethod
    def _ask_all(self, question: Question[_T], seconds: float) -> list[_T]:
        """Ask the model on every server that is in order, and return the answers: at least one."""

    def unfinished_requests(self) -> list[UnfinishedRequest]:
        """The requests that are waiting or running: the oldest first, at most 100 of each server."""
        answers = self._ask_all(questions.unfinished_requests(self._model), self._timeouts.connect)
        return sorted(chain(*answers), key=lambda request: -request.seconds)

    def is_serving(self) -> bool:
        """Whether the model itself answers, its engine runs, and it does not drain.

        `is_ready` asks only Triton, which before 26.01 does not notice that a model's process has died.
        """
        try:
            self.check_serving()
        except InflightError:
            return False
        return True

    def check_serving(self) -> None:
        """Like `is_serving`, but raise the error that says why it is not: ModelNotReady if the model drains."""
        self._ask(questions.is_serving(self._model), self._timeouts.connect)

    def drain(self, operator_key: str) -> DrainState:
        """Tell the model to take no further requests; it finishes those that it has. Call it until it is complete.

        The key is the environment variable OPERATOR_KEY of the server. From now on `is_serving` is false, and from 3
        seconds later requests are refused with ModelNotReady, so that clients and load balancers go elsewhere. Only a
        new start ends this. Call it with a client of one server.
        """
        return self._ask(questions.drain(self._model, operator_key), self._timeouts.connect)

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
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        add_special_tokens: bool = True,
        return_token_strs: bool = False,
        tenant: str | None = None,
    ) -> Tokenization:
        """Return the tokens of a prompt or of a chat, as `generate` would send them to the model.

        Tenants take turns where the server tokenizes.

        >>> client.tokenize("A, B, C,").token_ids
        (49, 28, 389, 28, 340, 28)
        """
        chat = questions.chat_fields(tools, chat_template_kwargs, add_generation_prompt, continue_final_message)
        question = questions.tokens(
            self._model,
            prompt,
            messages,
            chat,
            add_special_tokens=add_special_tokens,
            return_token_strs=return_token_strs,
            tenant=tenant,
        )
        return self._ask(question, self._timeouts.first_token)

    def detokenize(self, token_ids: Sequence[int], *, tenant: str | None = None) -> str:
        """Return the text of some tokens, special tokens included."""
        return self._ask(questions.text_of(self._model, token_ids, tenant), self._timeouts.first_token)


class AsyncAsking(ABC):
    """The questions of `AsyncClient`. See `Asking`."""

    _model: str
    _timeouts: Timeouts

    @abstractmethod
    async def _ask(self, question: Question[_T], seconds: float) -> _T:
        """Ask the model, and return its answer."""

    @abstractmethod
    async def _ask_all(self, question: Question[_T], seconds: float) -> list[_T]:
        """Ask the model on every server that is in order, and return the answers: at least one."""

    async def unfinished_requests(self) -> list[UnfinishedRequest]:
        """The requests that are waiting or running: the oldest first, at most 100 of each server."""
        answers = await self._ask_all(questions.unfinished_requests(self._model), self._timeouts.connect)
        return sorted(chain(*answers), key=lambda request: -request.seconds)

    async def is_serving(self) -> bool:
        """Whether the model itself answers, its engine runs, and it does not drain. See `Client.is_serving`."""
        try:
            await self.check_serving()
        except InflightError:
            return False
        return True

    async def check_serving(self) -> None:
        """Like `is_serving`, but raise the error that says why it is not. See `Client.check_serving`."""
        await self._ask(questions.is_serving(self._model), self._timeouts.connect)

    async def drain(self, operator_key: str) -> DrainState:
        """Tell the model to take no further requests. See `Client.drain`."""
        return await self._ask(questions.drain(self._model, operator_key), self._timeouts.connect)

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
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        add_special_tokens: bool = True,
        return_token_strs: bool = False,
        tenant: str | None = None,
    ) -> Tokenization:
        """Return the tokens of a prompt or of a chat, as `generate` would send them to the model."""
        chat = questions.chat_fields(tools, chat_template_kwargs, add_generation_prompt, continue_final_message)
        question = questions.tokens(
            self._model,
            prompt,
            messages,
            chat,
            add_special_tokens=add_special_tokens,
            return_token_strs=return_token_strs,
            tenant=tenant,
        )
        return await self._ask(question, self._timeouts.first_token)

    async def detokenize(self, token_ids: Sequence[int], *, tenant: str | None = None) -> str:
        """Return the text of some tokens, special tokens included."""
        return await self._ask(questions.text_of(self._model, token_ids, tenant), self._timeouts.first_token)
