"""Fixtures for the tests of load generators and of the simulator."""

from collections.abc import Iterator

import pytest

from inflight.config import EngineConfig
from load_tests.arrivals import Gamma
from load_tests.lengths import Uniform
from load_tests.simulate.step_cost import StepCost
from load_tests.traffic import Arrival, Stream
from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess
from tests.load.servers import echo_server


@pytest.fixture(scope="session")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with echo_server(tmp_path_factory.mktemp("echo")) as server:
        yield server


@pytest.fixture(scope="session")
def gateway(echo: TritonServer) -> Iterator[GatewayProcess]:
    with GatewayProcess(echo.grpc_url) as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@pytest.fixture
def cost() -> StepCost:
    """Step times of a machine that serves about 100 small requests per second."""
    return StepCost(per_step=1e-3, per_token=1e-4, per_cached_token=1e-7)


@pytest.fixture
def arrivals() -> list[Arrival]:
    return Stream(Gamma(60.0, cv=2.0), Uniform(1, 40), Uniform(1, 20), max_tokens=16).make(120, seed=3)


@pytest.fixture
def config() -> EngineConfig:
    return EngineConfig(
        model="simulated", kv_cache_tokens=512, max_num_seqs=8, max_num_batched_tokens=32, enable_prefix_caching=False
    )
