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


def test_a_question_waits_for_the_turn_of_its_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.server import Server

    turns: list[str] = []
    server: Any = object.__new__(Server)
    server._controls = SimpleNamespace(answer=lambda sender: False)
    server._questions = SimpleNamespace(asked=lambda parameters: "tokenize")
    server._long_prompts = SimpleNamespace(add=lambda tenant, work: turns.append(tenant))
    server.accept(asked(tokenize=True, tenant="a"))
    server.accept(asked(tokenize=True))
    assert turns == ["a", ""]
