"""The request field `kv_transfer_params`: what is taken, and what is refused."""

import json
import re

import pytest

from inflight import InvalidRequest
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from tests.unit.kv_peers import PROMPT, TCP, connector, export

COMPLETE = {
    "do_remote_prefill": True,
    "remote_engine_id": "0" * 32,
    "remote_request_id": "1" * 32,
    "num_tokens": 5,
    "fingerprint": "2" * 32,
}


def test_an_offer_survives_the_way_through_a_client() -> None:
    with connector(**TCP) as engine:
        offer = export(engine, PROMPT)
        assert offer is not None
        assert KVTransferParams.of(json.loads(json.dumps(offer.as_dict()))) == offer


def test_what_vllm_sends_in_its_first_call_is_taken() -> None:
    names = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
    given = {"do_remote_decode": True, "do_remote_prefill": False, **dict.fromkeys(names)}
    assert KVTransferParams.of(given) == KVTransferParams(do_remote_decode=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"do_remote_decode": 1}, "do_remote_decode is 1; it must be true or false"),
        ({**COMPLETE, "do_remote_decode": True}, "at most one of them may be true"),
        ({"remote_block_ids": [1]}, "has the key 'remote_block_ids'"),
        ({"do_remote_prefill": True}, "remote_engine_id is None; it must be 32 digits"),
        ({**COMPLETE, "remote_request_id": "../../x"}, "remote_request_id is '../../x'"),
        ({**COMPLETE, "fingerprint": 7}, "fingerprint is 7"),
        ({**COMPLETE, "num_tokens": 0}, "num_tokens is 0; it must be a whole number from 1"),
        ({**COMPLETE, "num_tokens": True}, "num_tokens is True"),
        ({**COMPLETE, "remote_host": 1}, "remote_host is 1; it must be an address"),
        ({**COMPLETE, "remote_host": "127.0.0.1"}, "remote_port is None"),
        ({**COMPLETE, "remote_host": "127.0.0.1", "remote_port": 65536}, "remote_port is 65536"),
    ],
)
def test_an_impossible_field_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        KVTransferParams.of(given)


@pytest.mark.parametrize(
    ("role", "params"),
    [("kv_consumer", KVTransferParams(do_remote_decode=True)), ("kv_producer", KVTransferParams.of(COMPLETE))],
)
def test_a_role_that_the_engine_has_not_is_refused(role: str, params: KVTransferParams) -> None:
    with connector(role) as engine, pytest.raises(InvalidRequest, match=f"kv_role in kv_transfer_config is {role}"):
        engine.check(params)
