"""Answers health checks, `inflight top`, operators, and the model `completion`."""

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from inflight.core import EngineCore
from serving import values
from serving.drain import MESSAGE, Drain
from serving.failures import ENGINE_DEAD_CODE
from serving.response import ResponseFormat
from serving.sender import Sender
from serving.stream import ResponseStream
from serving.streams import Streams

_CONTROLS = ("list_requests", "drain", "is_serving")
# More than fit on a screen.
_MAX_LISTED = 100


class Controls:
    """Does what a request parameter asks for besides answers of the model. None of it counts as a refused request."""

    def __init__(
        self,
        core: EngineCore,
        form: ResponseFormat,
        streams: Streams,
        drain: Drain,
        *,
        is_alive: Callable[[], bool],
        cancel: Callable[[ResponseStream], None],
    ) -> None:
        self._core, self._form, self._streams, self._drain = core, form, streams, drain
        self._is_alive, self._cancel = is_alive, cancel

    def answer(self, sender: Sender) -> bool:
        """Answer a request, and return whether it asked for such a thing.

        Raises:
            InvalidRequest: the key to drain is wrong, or a parameter is neither true nor false.
        """
        parameters = sender.parameters
        if (key := parameters.get("cancel")) is not None:
            self._cancel_by_key(key, sender)
        elif (control := self._asked(parameters)) is None:
            return False
        elif not self._is_alive():
            sender.fail("the engine has stopped", ENGINE_DEAD_CODE)
        elif control == "list_requests":
            oldest = itertools.islice(self._streams, _MAX_LISTED)
            self._send(sender, [stream.summary(self._core) for stream in oldest])
        elif control == "drain":
            self._drain.begin(parameters)
            unfinished = sum(1 for _ in self._streams)
            self._send(sender, {"num_unfinished": unfinished, "takes_requests": not self._drain.refuses})
        elif self._drain.has_begun:
            sender.fail(MESSAGE, "UNAVAILABLE")
        else:
            self._send(sender, {"is_serving": True})
        return True

    def _asked(self, parameters: Mapping[str, Any]) -> str | None:
        return next((name for name in _CONTROLS if values.truth(name, parameters.get(name, False))), None)

    def _send(self, sender: Sender, answer: object) -> None:
        sender.send(self._form.text(json.dumps(answer)), final=True)

    def _cancel_by_key(self, key: object, sender: Sender) -> None:
        """Cancel the unfinished requests that came with this key.

        The model `completion` sends such a cancellation, because Triton does not pass cancellations on between models.
        Without the key nobody can cancel the request of another client.
        """
        for stream in self._streams:
            if stream.cancel_key == key:
                self._cancel(stream)
        sender.close()
