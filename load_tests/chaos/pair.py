"""Disaggregated prefill under test: one server computes the prompts, and another one behind the gateway answers."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import cast

from inflight_client import Prefill
from load_tests.chaos.doors import Question
from load_tests.chaos.faults import Fault, answering, cut, delay, sever, signals
from load_tests.chaos.server import Server
from load_tests.chaos.service import Service, usual_parameters
from load_tests.chaos.users import QUESTIONS
from scripts.launch.server_process import ADDRESS, fill_ports

_PROMPTS, _KEYS_AND_VALUES = "prompts", "keys and values"
_CACHE_TOKENS = 4096
"""Less than all questions have, so that most of a prompt is rarely in the prefix cache."""
_EXPORT_SECONDS = 5
_IMPORTS = "inflight:kv_transfer_imports_total"
_SEVERED_SECONDS = 6
"""Longer than clients need to notice it."""


class Pair(Service):
    """Both servers. All requests for prompts, and all keys and values, go over links."""

    def __init__(self, folder: Path) -> None:
        """`folder` is empty."""
        *ports, self._keys, self._keys_link, self._prompts_link = fill_ports(*[None] * 6)
        computes_prompts = f"{ADDRESS}:{self._prompts_link}"
        self.prefill = Prefill(url=f"grpc://{computes_prompts}", min_tokens=1)
        super().__init__(
            folder,
            _parameters(folder / "server", kv_role="kv_consumer"),
            [f"--prefill-server={computes_prompts}", "--prefill-min-tokens=1"],
        )
        parameters = _parameters(folder / "prompts", kv_role="kv_producer", kv_port=self._keys)
        self.prompts = Server(folder / "prompts", ports, parameters, folder / "prompts.log")
        self.prompts.advertise(self._keys_link)

    @property
    def servers(self) -> Sequence[Server]:
        """See `Service`."""
        return [self.server, self.prompts]

    def link_ports(self) -> Mapping[str, tuple[int, int]]:
        """See `Service`."""
        return {
            **super().link_ports(),
            _PROMPTS: (self.prompts.grpc_port, self._prompts_link),
            _KEYS_AND_VALUES: (self._keys, self._keys_link),
        }

    async def is_ready(self) -> bool:
        """See `Service`."""
        return await super().is_ready() and await self.is_started(self.prompts)

    async def wait_taking_part(self) -> None:
        """Wait until the server that answers fetches prompts again. Raises what `wait_ready` raises."""
        await self.wait_ready()
        async with self.server.client() as client:

            async def imports() -> float:
                return (await client.metrics()).value(_IMPORTS)

            before = await imports()

            async def more() -> bool:
                return await imports() > before

            await self._wait("fetching prompts", more)


def _parameters(folder: Path, **transfer: object) -> Mapping[str, str]:
    extra = {"export_timeout": _EXPORT_SECONDS}
    config = {"kv_connector": "tcp", "kv_connector_extra_config": extra, **transfer}
    return {
        **usual_parameters(folder),
        "kv_cache_tokens": str(_CACHE_TOKENS),
        "kv_transfer_config": json.dumps(config),
    }


def _question(number: int) -> Question:
    page = " ".join(f"This is line {line} of page {number}." for line in range(12))
    return Question(f"{page} {QUESTIONS[number % len(QUESTIONS)].prompt}")


LONG_QUESTIONS = tuple(_question(number) for number in range(64))
"""Each has a beginning of its own."""


def _computing(find: Callable[[Server], int]) -> Callable[[Service], int]:
    """Find a process of the server that computes prompts."""
    return lambda service: find(cast(Pair, service).prompts)


PAIR_FAULTS = (
    Fault("prefill model killed", signals(_computing(Server.model), SIGKILL)),
    Fault("prefill model stopped for 3 s", signals(_computing(Server.model), SIGSTOP, SIGCONT), 3),
    Fault("prefill tritonserver killed", signals(_computing(Server.triton), SIGKILL)),
    Fault("prefill server, SIGTERM", signals(_computing(lambda server: server.pid), SIGTERM, orderly=True)),
    Fault("decode model killed", signals(answering(Server.model), SIGKILL), restarts=True),
    Fault("decode tritonserver killed", signals(answering(Server.triton), SIGKILL), restarts=True),
    Fault("gateway killed", signals(lambda service: service.gateway.pid, SIGKILL), restarts=True),
    Fault("link of prompts cut", cut(_PROMPTS)),
    Fault("link of prompts severed", sever(_PROMPTS), _SEVERED_SECONDS),
    Fault("link of prompts 0.3 s slower", delay(_PROMPTS), 5),
    Fault("link of keys and values cut", cut(_KEYS_AND_VALUES)),
    Fault("link of keys and values severed", sever(_KEYS_AND_VALUES), _SEVERED_SECONDS),
    Fault("link of keys and values 0.3 s slower", delay(_KEYS_AND_VALUES), 5),
    Fault("both links severed", sever(_PROMPTS, _KEYS_AND_VALUES), _SEVERED_SECONDS),
)
