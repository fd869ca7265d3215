"""A prompt that another server has computed is freed there at once if its request is refused before it is fetched."""

import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from inflight import Engine
from inflight.guided_decoding import grammars
from tests.engine.models import Tiny
from tests.engine.test_kv_transfer import PROMPT, Model, engines, offer_of
from tests.eventually import eventually

Refuse = Callable[[Engine, dict[str, Any]], Exception]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """What gives a request with some fields to the server's part of an engine, and returns the error of its answer.

    Triton's module exists only inside of Triton.
    """
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.adapter_reads import AdapterReads
    from serving.parse import parse
    from serving.preparation import Preparation
    from serving.stream import ResponseStream
    from serving.streams import Streams

    def refused(engine: Engine, fields: dict[str, Any]) -> Exception:
        answers: list[Exception] = []
        failures: Any = SimpleNamespace(refuse=lambda _, error: answers.append(error))
        sender: Any = SimpleNamespace(is_cancelled=lambda: False)
        request = SimpleNamespace(inputs=list, parameters=lambda: json.dumps(fields), timeout=int, request_id=str)
        unused: Any = None
        parsed = parse(request, 256, 256)
        streams = Streams()
        adapter_reads = AdapterReads(engine, streams, unused)
        preparation = Preparation(engine, streams, failures, *[unused] * 4, adapter_reads)
        try:
            preparation.begin(ResponseStream(sender, parsed, unused, interval=1), parsed)
        except Exception as error:  # noqa: BLE001 - the caller of `begin` answers it
            answers.append(error)
        assert eventually(lambda: len(answers) == 1)
        assert len(streams) == 0
        return answers[0]

    return refused


def check(tiny: Tiny, refuse: Refuse, fields: dict[str, Any], message: str) -> None:
    with engines(Model(tiny)) as (prefill, decode):
        offer = offer_of(prefill, PROMPT)
        assert prefill.stats().kv_transfer.exported_bytes > 0
        error = refuse(decode, {**fields, "kv_transfer_params": json.dumps(offer.as_dict())})
        assert message in str(error)
        assert eventually(lambda: prefill.stats().kv_transfer.exported_bytes == 0)


def test_a_prompt_that_cannot_be_read(tiny: Tiny, refuse: Refuse) -> None:
    check(tiny, refuse, {"input_ids": [10**6]}, "prompt holds token 1000000")


def test_a_grammar_that_cannot_be_compiled(tiny: Tiny, refuse: Refuse) -> None:
    fields = {"input_ids": PROMPT, "guided_json": "{}"}
    check(tiny, refuse, fields, "structured_outputs is given, but")


def test_too_many_grammars(tiny: Tiny, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "_MAX_WAITING", 0)
    fields = {"input_ids": PROMPT, "guided_json": "{}"}
    check(tiny, refuse, fields, "grammars wait to be compiled")
