"""What the gateway knows of the model that it serves."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from inflight_client import AsyncClient, InflightError, ModelDescription
from inflight_gateway.formats import Formats

logger = logging.getLogger(__name__)

# The server may be started after the gateway, and may be started anew with another model.
_RETRY_SECONDS = 1.0
# Adapters may be added and removed.
_REFRESH_SECONDS = 10.0


class ServedModel:
    """Asks the server what the model is: at the start until it answers, then every ten seconds."""

    def __init__(self, client: AsyncClient, tool_format: str, reasoning_format: str) -> None:
        """The names of the formats are those of the command line; see `Formats.of`."""
        self._client = client
        self._names = (tool_format, reasoning_format)
        self._formats: Formats | None = None
        self._described: ModelDescription | None = None
        self._lock = asyncio.Lock()
        self._told: Formats | InflightError | None = None
        """What came of the last question."""
        self._told_at = -math.inf

    async def formats(self) -> Formats:
        """Return the formats of the model. Raises InflightError if the server has not told them yet, and cannot now."""
        return self._formats or await self._told_since(time.monotonic())

    async def max_draft_input_ids(self) -> int:
        """Return how many token ids a draft may have; 0 where the model takes none. Raises what `formats` raises."""
        await self.formats()
        return 0 if self._described is None else self._described.max_draft_input_ids

    async def classifies(self) -> bool:
        """Return whether the model has classes. Raises what `formats` raises."""
        await self.formats()
        return self._described is not None and bool(self._described.labels)

    async def has_adapter(self, name: str) -> bool:
        """Return whether the model has a LoRA adapter of this name. A new one may have come while the server runs.

        Raises:
            InflightError: the server must be asked, and does not answer.
        """
        await self.formats()
        if name not in self.known_adapters:
            await self._told_since(time.monotonic() - _RETRY_SECONDS)
        return name in self.known_adapters

    @property
    def known_adapters(self) -> tuple[str, ...]:
        """The names of the LoRA adapters at the time when the server last told them; none if it has not yet."""
        return () if self._described is None else self._described.lora_modules

    @property
    def max_model_len(self) -> int | None:
        """The length of the context in tokens; None if the server has not told it yet."""
        return None if self._described is None else self._described.max_model_len

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None, None]:
        """Ask again and again while the block runs."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            # Its call must have ended before the client is closed.
            await asyncio.wait([watching])

    async def _watch(self) -> None:
        while True:
            if isinstance(error := await self._ask(), InflightError):
                logger.debug("the model does not describe itself: %s", error)
            await asyncio.sleep(_RETRY_SECONDS if self._formats is None else _REFRESH_SECONDS)

    async def _told_since(self, moment: float) -> Formats:
        """Return what the server has told since a moment, or raise why it could not. If there is nothing, ask it.

        All that wait at the same time get one answer. A server that hangs takes seconds to fail: if each of many
        requests asked anew, the last one would wait for minutes.
        """
        async with self._lock:
            told = self._told
            if told is None or self._told_at < moment:
                told = await self._ask()
            if isinstance(told, InflightError):
                raise told.with_traceback(None)  # Otherwise it would keep the frames of all who have got it.
            return told

    async def _ask(self) -> Formats | InflightError:
        try:
            model = await self._client.describe_model()
        except InflightError as error:
            self._told = error
        else:
            self._told = found = Formats.of(model, *self._names)
            if found != self._formats:
                tools, reasoning = found.tool_format, found.reasoning_format
                logger.info("tool format %s, reasoning format %s", tools and tools.name, reasoning and reasoning.name)
            self._formats, self._described = found, model
        self._told_at = time.monotonic()
        return self._told
