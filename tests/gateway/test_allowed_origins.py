"""Web pages of other servers: browsers let their scripts send requests only if the gateway allows the origin."""

from collections.abc import Iterator, Mapping

import httpx
import pytest

from inflight_gateway.__main__ import main
from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_keys import FILE

PAGE = "https://chat.example.com"
ALLOW = "access-control-allow-origin"


@pytest.fixture(scope="module")
def open_to_page(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(FILE)
    with GatewayProcess(server.grpc_url, "--api-keys", str(keys), "--allowed-origin", PAGE) as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


def preflight(gateway: GatewayProcess, origin: str, path: str = "/v1/chat/completions") -> httpx.Response:
    """What a browser asks before a script's request."""
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    return httpx.options(gateway.url + path, headers={"Origin": origin, **wanted})


def ask(gateway: GatewayProcess, headers: Mapping[str, str]) -> httpx.Response:
    body = {"model": "llm", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)


def test_an_allowed_page_may_send_requests(open_to_page: GatewayProcess) -> None:
    asked = preflight(open_to_page, PAGE)
    assert asked.status_code == 200
    assert asked.headers[ALLOW] == PAGE
    assert "authorization" in asked.headers["access-control-allow-headers"].lower()
    answer = ask(open_to_page, {"Origin": PAGE, "Authorization": "Bearer secret-a"})
    assert answer.status_code == 200
    assert answer.headers[ALLOW] == PAGE
    # The script can read why it is refused.
    refused = ask(open_to_page, {"Origin": PAGE})
    assert refused.status_code == 401
    assert refused.headers[ALLOW] == PAGE


def test_other_pages_may_not(open_to_page: GatewayProcess) -> None:
    for origin in ("https://other.example.com", "http://chat.example.com", "null"):
        assert ALLOW not in preflight(open_to_page, origin).headers
        assert ALLOW not in ask(open_to_page, {"Origin": origin, "Authorization": "Bearer secret-a"}).headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_other_pages_are_told_so(open_to_page: GatewayProcess, path: str) -> None:
    asked = preflight(open_to_page, "https://other.example.com", path)
    assert (asked.status_code, asked.text) == (400, "Disallowed CORS origin")


def test_by_default_no_page_may(gateway: GatewayProcess) -> None:
    assert preflight(gateway, PAGE).status_code == 405
    assert ALLOW not in ask(gateway, {"Origin": PAGE}).headers


@pytest.mark.parametrize("origin", ["chat.example.com", "https://a.example.com/", "ftp://a", "https://a/b"])
def test_an_origin_has_a_scheme_and_no_path(origin: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--allowed-origin", origin])
    assert f"--allowed-origin: it is {origin}; it must be like https://chat.example.com" in capsys.readouterr().err
