"""Each way in which a request can fail has one exception."""

import pytest

from inflight_client import (
    Client,
    DeadlineExceeded,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RequestCancelled,
    ServerFault,
    ServerOverloaded,
    TransportError,
)

ERROR_OF_TRITON_CODE = {
    "INVALID_ARG": InvalidRequest,
    "UNSUPPORTED": InvalidRequest,
    "UNAVAILABLE": ServerOverloaded,
    "CANCELLED": RequestCancelled,
    "NOT_FOUND": ModelNotReady,
    "INTERNAL": ServerFault,
    "UNKNOWN": ServerFault,
}


@pytest.mark.parametrize(("code", "error"), ERROR_OF_TRITON_CODE.items())
def test_code_of_the_model_decides(client: Client, code: str, error: type[InflightError]) -> None:
    with pytest.raises(error, match=f"^failed with {code}$"):
        client.generate(f"!error {code}")


def test_failing_in_the_middle_keeps_what_came_before(client: Client) -> None:
    with client.stream("one two !error INTERNAL") as stream:
        assert [next(stream).text, next(stream).text] == ["one ", "two "]
        with pytest.raises(ServerFault):
            next(stream)


def test_input_that_the_model_does_not_take(server) -> None:
    # `completion` has no input named `stream`, which Triton refuses without a status code.
    with Client(server.grpc_url, model="completion") as client, pytest.raises(InvalidRequest, match="stream"):
        client.generate("one")


def test_model_that_is_not_there(server) -> None:
    with Client(server.grpc_url, model="nothing") as client:
        assert not client.is_ready()
        with pytest.raises(ModelNotReady, match="nothing"):
            client.generate("one")


def test_no_server() -> None:
    # Port 1 is reserved and listened on by nobody.
    with Client("127.0.0.1:1") as client:
        assert not client.is_ready()
        with pytest.raises(TransportError, match="Connection refused"):
            client.generate("one")


def test_timeout(client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        client.generate("!gap 10 !forever", timeout=0.2)
