"""What comes back: pieces of text, or all of it."""

from dataclasses import dataclass

from tritonclient.grpc import service_pb2


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of text as it came: often one token, more when the server sent several at once."""

    text: str
    finish_reason: str | None
    """None until the last chunk, then "stop" or "length"."""


@dataclass(frozen=True, slots=True)
class Completion:
    """All the text of a finished request, without its prompt."""

    text: str
    finish_reason: str
    """"stop" or "length"."""


def decode(response: service_pb2.ModelInferResponse) -> Chunk:
    """Return the chunk that a response of the model holds."""
    contents = dict(zip((output.name for output in response.outputs), response.raw_output_contents, strict=True))
    finish_reason = _first_string(contents["finish_reason"])
    return Chunk(
        text=_first_string(contents["text_output"]),
        # The model has no null on the wire and says "None".
        finish_reason=None if finish_reason == "None" else finish_reason,
    )


def _first_string(content: bytes) -> str:
    length = int.from_bytes(content[:4], "little")
    return content[4 : 4 + length].decode()
