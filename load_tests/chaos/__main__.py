"""`make chaos`: cause one fault at a time under load, and show what users notice.

It starts a service of its own: `make serve` and the gateway, each started again when it ends. Users ask for greedy
answers over gRPC, HTTP, the gateway and `completion`, and compare each piece of text with the right answer. With
`--deployment ranks` the model is divided over three processes; with `pair` a second server computes the prompts. It
needs Linux, root and util-linux's `unshare`, because each server gets its own small /dev/shm.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from tqdm import tqdm

from load_tests.chaos.deployments import DEPLOYMENTS
from load_tests.chaos.doors import NotAnswered, Question, open_doors
from load_tests.chaos.experiment import Health, Outcome, experiment
from load_tests.chaos.faults import Fault, set_clock
from load_tests.chaos.report import broken_promises, late, table
from load_tests.chaos.server import IDLE_SECONDS, Server
from load_tests.chaos.service import GRPC, HTTP, Service
from load_tests.chaos.users import LIMIT_SECONDS, Users
from load_tests.chaos.workplace import workplace
from load_tests.option_types import count, results_folder
from scripts.launch.errors import LauncherError


def _chosen(faults: Sequence[Fault], names: str) -> Sequence[Fault]:
    """The faults with these names. Raises ValueError for a name that none of them has."""
    wanted = [name.strip() for name in names.split(",")]
    known = [fault.name for fault in faults]
    for name in wanted:
        if name not in known:
            raise ValueError(f"{name!r} is none of {', '.join(known)}")
    return [fault for fault in faults if fault.name in wanted]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--times", type=count, default=5, help="how often each fault is caused (%(default)s)")
    default = ", ".join(f"{each.users} of {name}" for name, each in DEPLOYMENTS.items())
    add("--users", type=count, help=f"number of users ({default})")
    add("--deployment", choices=DEPLOYMENTS, default="single", help="what to start (%(default)s)")
    add("--faults", metavar="NAME,...", help="the faults to cause; all of the deployment if not given")
    add("--set-clock", action="store_true", help="also set this machine's clock a minute forward, for 5 s each time")
    add(
        "--logs",
        type=results_folder,
        metavar="FOLDER",
        help="keep the logs of the server and the gateway in this folder",
    )
    return parser


async def chaos(
    service: Service,
    questions: Sequence[Question],
    faults: Sequence[Fault],
    times: int,
    number: int,
    outcomes: dict[Fault, list[Outcome]],
) -> list[Server]:
    """Cause each fault `times` times under the load of `number` users, with a progress bar. Fill in `outcomes`.

    Returns the servers that are not idle after the last answer. Raises LauncherError if the service does not get ready,
    NotAnswered if it gives no answers without a fault.
    """
    async with service.running():
        grpc, http, gateway = service.links[GRPC].port, service.links[HTTP].port, service.ports.gateway
        async with open_doors(grpc, http, gateway, 2 * LIMIT_SECONDS, service.prefill) as (doors, _):
            users, health = Users(doors, questions), Health(service)
            await users.learn()
            load = [asyncio.create_task(users.run(number)), asyncio.create_task(health.watch())]
            try:
                with tqdm(total=len(faults) * times, unit="fault") as bar:
                    for fault in faults:
                        bar.set_description_str(fault.name)
                        for _ in range(times):
                            outcome = await experiment(fault, service, users, health)
                            outcomes.setdefault(fault, []).append(outcome)
                            bar.write(f"{fault.name}: {outcome}")
                            bar.update()
            finally:
                for task in load:
                    task.cancel()
                await asyncio.gather(*load, return_exceptions=True)
        return [server for server in service.servers if not await server.becomes_idle()]


def main() -> int:
    """Return the exit status: 0 if every promise was kept, 1 if one was broken or the service does not start."""
    parser = _parser()
    options = parser.parse_args()
    deployment = DEPLOYMENTS[options.deployment]
    faults = deployment.faults
    if options.faults is not None:
        try:
            faults = _chosen(faults, options.faults)
        except ValueError as error:
            parser.error(f"argument --faults: {error}")
    faults = [fault for fault in faults if fault.begin is not set_clock or options.set_clock]
    outcomes: dict[Fault, list[Outcome]] = {}
    service, busy, failed = None, [], False
    try:
        with workplace(options.logs) as folder:
            service = deployment.make(folder)
            users = options.users or deployment.users
            busy = asyncio.run(chaos(service, deployment.questions, faults, options.times, users, outcomes))
    except* (LauncherError, NotAnswered, ProcessLookupError) as errors:
        print(f"error: {errors.exceptions[0]}", file=sys.stderr)
        failed = True
    except* KeyboardInterrupt:
        print("stopped before the end", file=sys.stderr)
        failed = True
    if service is None or not outcomes:
        return 1
    print(f"Without load, a start took {service.first_start:.1f} s.", table(outcomes), sep="\n\n")
    left = [f"left behind at the end: {process}" for process in service.processes().values()]
    left += [f"still busy {IDLE_SECONDS:g} s after the last answer: {server.repository}" for server in busy]
    broken = broken_promises(outcomes) + late(outcomes) + left
    print("\n".join(broken) or "every promise was kept")
    return 1 if failed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
