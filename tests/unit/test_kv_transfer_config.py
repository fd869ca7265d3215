"""The setting `kv_transfer_config`."""

import json
import re
from typing import Any

import pytest

from inflight import EngineConfig
from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from serving.settings import read_settings


def test_nothing_is_transferred_by_default() -> None:
    config = KVTransferConfig.of(EngineConfig(model="m").kv_transfer_config)
    assert not config.produces
    assert not config.consumes


@pytest.mark.parametrize(
    ("role", "produces", "consumes"),
    [("kv_producer", True, False), ("kv_consumer", False, True), ("kv_both", True, True)],
)
def test_the_role_says_what_an_engine_does(role: str, produces: bool, consumes: bool) -> None:
    engine, _ = read_settings({"model": "m", "kv_transfer_config": json.dumps({"kv_role": role})})
    config = KVTransferConfig.of(engine.kv_transfer_config)
    assert (config.produces, config.consumes) == (produces, consumes)


def test_extra_values_have_defaults() -> None:
    config = KVTransferConfig(kv_connector_extra_config={"fetch_timeout": 7, "peers": ["10.0.0.0/8"]})
    assert (config.export_timeout, config.fetch_timeout) == (60, 7)
    assert config.may_fetch_from("10.1.2.3")
    assert not config.may_fetch_from("127.0.0.1")
    assert KVTransferConfig().may_fetch_from("127.0.0.1")
    assert KVTransferConfig().may_fetch_from("::1")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kv_rol": "kv_both"}, "kv_transfer_config has 'kv_rol'; it may have kv_connector, kv_role"),
        ({"kv_connector": "mooncake"}, "kv_connector is 'mooncake'; it must be one of shared_memory, tcp, nixl"),
        ({"kv_role": "both"}, "kv_role is 'both'; it must be one of kv_producer, kv_consumer, kv_both"),
        ({"kv_ip": "localhost"}, "kv_ip has 'localhost'; it must be an address of IPv4 or IPv6 in digits"),
        ({"kv_ip": 7}, "kv_ip has 7"),
        ({"kv_port": 65536}, "kv_port is 65536; it must be a number from 0 to 65535"),
        ({"kv_port": True}, "kv_port is True"),
        ({"kv_buffer_size": 0}, "kv_buffer_size is 0; it must be over 0"),
        ({"kv_buffer_size": "1"}, "kv_buffer_size is '1'"),
        ({"kv_connector_extra_config": []}, "kv_connector_extra_config is []; it must be an object"),
        ({"kv_connector_extra_config": {"x": 1}}, "kv_connector_extra_config has 'x'; it may have export_timeout"),
        ({"kv_connector_extra_config": {"fetch_timeout": -1}}, "fetch_timeout is -1; it must be over 0"),
        ({"kv_connector_extra_config": {"export_timeout": 3601}}, "export_timeout is 3601"),
        ({"kv_connector_extra_config": {"peers": "10.0.0.0/8"}}, "peers is '10.0.0.0/8'; it must be a list"),
        ({"kv_connector_extra_config": {"peers": ["example.org"]}}, "peers has 'example.org'"),
    ],
)
def test_invalid_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        EngineConfig(model="m", kv_transfer_config=values)
