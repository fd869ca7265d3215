"""The simulator as the search uses it."""

from collections.abc import Sequence
from dataclasses import replace

from inflight.config import EngineConfig
from load_tests.prompts import PlannedRequest
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.tune.load import Load
from load_tests.tune.machine import Machine
from load_tests.tune.space import Choice, Space
from scripts.launch.model_repository import model_parameters
from serving.settings import read_settings


class Simulated:
    """Serves some requests with the settings of a choice. Each choice is simulated once."""

    def __init__(self, load: Load, requests: Sequence[PlannedRequest], space: Space, machine: Machine) -> None:
        self._load, self._requests, self._space, self._machine = load, requests, space, machine
        # A prefix cache finds nothing where no prefix is shared, and hashing blocks is most of the work then.
        self._shares = any(request.prefix_tokens for request in requests)
        self._results: dict[tuple[str, ...], Result] = {}

    def __call__(self, choice: Choice) -> Result:
        """Raises what `simulate` raises."""
        key = tuple(choice.values())
        if key not in self._results:
            config = self._space.config(choice)
            config = replace(config, enable_prefix_caching=config.enable_prefix_caching and self._shares)
            self._results[key] = simulate(self._requests, config, self._machine.cost, users=self._load.users)
        return self._results[key]


def default_config(machine: Machine) -> EngineConfig:
    """The settings of config.pbtxt, with the size of a machine's KV cache."""
    return replace(read_settings(model_parameters())[0], kv_cache_tokens=machine.kv_cache_tokens)
