"""A short version of `make chaos`, on a real service with the default model."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from load_tests.chaos.__main__ import chaos
from load_tests.chaos.deployments import DEPLOYMENTS, Deployment
from load_tests.chaos.experiment import Outcome
from load_tests.chaos.faults import Fault
from load_tests.chaos.report import broken_promises
from load_tests.chaos.workplace import workplace

ROOT = Path(__file__).parents[3]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the server gets its own /dev/shm, which needs root")


def run(deployment: Deployment, name: str, number: int) -> Outcome:
    """Cause a fault once under the load of `number` users. It must break no promise but those about time."""
    fault = next(fault for fault in deployment.faults if fault.name == name)
    outcomes: dict[Fault, list[Outcome]] = {}
    with workplace(None) as folder:
        service = deployment.make(folder)
        busy = asyncio.run(chaos(service, deployment.questions, [fault], 1, number, outcomes))
    assert broken_promises(outcomes) == []
    assert busy == []
    assert service.processes() == {}
    return outcomes[fault][0]


@pytest.mark.slow
@needs_root
def test_the_service_comes_back_with_right_answers() -> None:
    outcome = run(DEPLOYMENTS["single"], "gateway killed", 8)
    # Two of the eight users ask the gateway, in step with each other. So both answers may end just before it is killed.
    assert outcome.failed <= 2
    assert outcome.unhealthy
    assert outcome.start > 0, "no new gateway was started"


@pytest.mark.slow
@needs_root
def test_nobody_notices_that_keys_and_values_do_not_arrive() -> None:
    outcome = run(DEPLOYMENTS["pair"], "link of keys and values severed", 4)
    assert outcome.failed == 0


@pytest.mark.slow
@needs_root
def test_a_dead_rank_ends_all_requests() -> None:
    outcome = run(DEPLOYMENTS["ranks"], "rank killed", 4)
    assert outcome.failed > 0


def test_an_unknown_fault_is_named() -> None:
    command = [sys.executable, "-m", "load_tests.chaos", "--deployment=pair", "--faults=flood"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "'flood' is none of prefill model killed," in run.stderr
