"""The base of users whose answers arrive as lines of an HTTP response."""

from collections.abc import Iterator

import httpx
from httpx_sse._decoders import SSELineDecoder

from load_tests.endpoints import ANSWER_SECONDS
from load_tests.failures import failing
from load_tests.locust.load_user import LoadUser
from load_tests.openai_stream import refusal


class HttpStreamUser(LoadUser):
    """A user with its own connection to `host`, a URL."""

    abstract = True

    def on_start(self) -> None:
        """Connect."""
        super().on_start()
        assert self.host is not None
        self.client = httpx.Client(base_url=self.host, timeout=ANSWER_SECONDS, trust_env=False)

    def on_stop(self) -> None:
        """Close the connection."""
        self.client.close()

    def lines(self, path: str, body: dict[str, object]) -> Iterator[str]:
        """Post a body and yield the lines of the answer as they arrive. Raises RequestFailed."""
        with failing(httpx.HTTPError), self.client.stream("POST", path, json=body) as response:
            if response.is_error:
                raise refusal(response.status_code, response.read().decode(errors="replace"))
            # httpx's `iter_lines` also ends lines at characters such as U+2028, which are part of JSON texts.
            lines = SSELineDecoder()
            for text in response.iter_text():
                yield from lines.decode(text)
            yield from lines.flush()
