"""Locust users that stream over OpenAI's protocol, from our gateway or another server."""

from collections.abc import Iterator

from locust import events
from locust.argument_parser import LocustArgumentParser

from load_tests.locust.http_stream_user import HttpStreamUser
from load_tests.openai_stream import TokenCounts, completion_body
from load_tests.prompts import PlannedRequest


def add_option(parser: LocustArgumentParser) -> None:
    """Add our option to Locust's."""
    parser.add_argument("--model", default="llm", metavar="NAME", help="the server's name for its model")


events.init_command_line_parser.add_listener(add_option)  # type: ignore[no-untyped-call]


class OpenAIUser(HttpStreamUser):
    """Streams from /v1/completions of the model given by `--model`."""

    kind = "openai"
    host = "http://127.0.0.1:9000"

    def answer(self, request: PlannedRequest, prompt: list[int]) -> Iterator[int]:
        """See `LoadUser`."""
        model = self.environment.parsed_options.model
        body = completion_body(model, request, prompt)
        counts = TokenCounts()
        for line in self.lines("/v1/completions", body):
            if new := counts.read(line):
                yield new
        counts.check_end()
