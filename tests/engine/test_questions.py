"""Where clients ask for tokens, one of them holds up only itself."""

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def asked(**parameters: object) -> Any:
    """A request to Triton."""
    return SimpleNamespace(
        request_id=lambda: "", parameters=lambda: json.dumps(parameters), get_response_sender=lambda: None
    )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server that notes in `turns` for whom a question waits, and in `refused` why one is refused."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.server import Server

    server: Any = object.__new__(Server)
    server.turns, server.refused = [], []
    server._controls = SimpleNamespace(answer=lambda sender: False)
    server._questions = SimpleNamespace(asked=lambda parameters: "tokenize")
    server._long_prompts = SimpleNamespace(add=lambda tenant, work: server.turns.append(tenant))
    server._failures = SimpleNamespace(refuse=lambda sender, error: server.refused.append(str(error)))
    return server


def test_a_question_waits_for_the_turn_of_its_tenant(server: Any) -> None:
    server.accept(asked(tokenize=True, tenant="a"))
    server.accept(asked(tokenize=True))
    server.accept(asked(tokenize=True, tenant=""))
    assert (server.turns, server.refused) == (["a", "", ""], [])


def test_the_tenant_of_a_question_is_a_name_as_in_other_requests(server: Any) -> None:
    server.accept(asked(tokenize=True, tenant="a" * 257))
    server.accept(asked(tokenize=True, tenant=1))
    assert server.turns == []
    assert server.refused == [
        "tenant has 257 characters; it must have at least 1 and at most 256",
        "tenant is 1; it must be a text",
    ]
