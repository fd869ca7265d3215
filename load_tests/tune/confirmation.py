"""Serves the same requests on the real server, with the default configuration and the tuned one in turn."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tqdm import tqdm

from load_tests.compare.contenders import Connect, Contender
from load_tests.compare.turns import paused, warm_up
from load_tests.generator import closed_loop, open_loop
from load_tests.prompts import PlannedRequest
from load_tests.records import Run
from load_tests.simulate.result import Result
from load_tests.tune.load import Load
from load_tests.tune.objective import Objective, Served

DEFAULT, TUNED = "default", "tuned"


@dataclass(frozen=True)
class Confirmation:
    """What was measured, and what the simulator predicts for the same requests. Lists have an entry for each round."""

    measured: dict[str, list[Run]]
    """By the name of the configuration, `DEFAULT` or `TUNED`."""
    predicted: dict[str, list[Result]]
    others: float
    """Fraction of the processors that other processes used, 0 to 1."""

    def measured_value(self, name: str, objective: Objective) -> float:
        """Mean of a configuration's rounds."""
        return _mean(self.measured[name], objective)

    def predicted_value(self, name: str, objective: Objective) -> float:
        """Mean of a configuration's rounds in the simulator."""
        return _mean(self.predicted[name], objective)

    def measured_gain(self, objective: Objective) -> float:
        """By which fraction the tuned configuration is better than the default."""
        return objective.gain(*(self.measured_value(name, objective) for name in (TUNED, DEFAULT)))

    def predicted_gain(self, objective: Objective) -> float:
        """The same in the simulator."""
        return objective.gain(*(self.predicted_value(name, objective) for name in (TUNED, DEFAULT)))

    def difference(self, objective: Objective) -> float:
        """The measured ratio of tuned to default over the predicted one, less 1. NaN if a value of the default is 0."""
        ratios = []
        for value in (self.measured_value, self.predicted_value):
            default = value(DEFAULT, objective)
            ratios.append(value(TUNED, objective) / default if default else math.nan)
        measured, predicted = ratios
        return measured / predicted - 1 if predicted else math.nan

    def errors(self, name: str) -> int:
        """Number of requests that were not answered."""
        return sum(len(run.records) - len(run.done) for run in self.measured[name])


def take_turns(
    contenders: Sequence[Contender], load: Load, rounds: Sequence[list[PlannedRequest]]
) -> dict[str, list[Run]]:
    """Serve all rounds with each server in turn, with a progress bar. A server is paused while another one runs.

    Raises LauncherError if a server does not start.
    """
    runs: dict[str, list[Run]] = {each.name: [] for each in contenders}
    users = load.users or 1
    with ExitStack() as stack, tqdm(total=len(contenders) * (1 + len(rounds)), unit="run") as bar:
        servers = []
        for contender in contenders:
            bar.set_description_str(f"starting {contender.name}")
            servers.append(stack.enter_context(paused(contender, users)))
            with servers[-1].awake() as connect:
                asyncio.run(warm_up(connect, load.workload))
            bar.update()
        for number, requests in enumerate(rounds, 1):
            for server in servers:
                bar.set_description_str(f"{load.text}: {number}/{len(rounds)} {server.name}")
                with server.awake() as connect:
                    runs[server.name].append(asyncio.run(_serve(connect, load, requests)))
                bar.update()
    return runs


async def _serve(connect: Connect, load: Load, requests: list[PlannedRequest]) -> Run:
    async with connect() as endpoint:
        if load.users is None:
            return await open_loop(endpoint, requests)
        return await closed_loop(endpoint, load.users, iter(requests), count=len(requests))


def _mean(served: Sequence[Served], objective: Objective) -> float:
    return sum(map(objective.value, served)) / len(served)
