"""`make chaos`: cause one fault at a time under load, and show what users notice.

It starts a service of its own: `make serve` and the gateway, each started again when it ends. Users ask for greedy
answers over gRPC, HTTP, the gateway and `completion`, and compare each piece of text with the right answer. It needs
Linux, root and util-linux's `unshare`, because the server gets its own small /dev/shm.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from tqdm import tqdm

from load_tests.chaos.doors import NotAnswered, open_doors
from load_tests.chaos.experiment import Health, Outcome, experiment
from load_tests.chaos.faults import FAULTS, Fault, Stage, set_clock
from load_tests.chaos.proxy import proxy
from load_tests.chaos.report import broken_promises, late, table
from load_tests.chaos.service import Service
from load_tests.chaos.users import LIMIT_SECONDS, Users
from load_tests.chaos.workplace import workplace
from load_tests.option_types import count, results_folder
from scripts.launch.errors import LauncherError


def _faults(text: str) -> list[Fault]:
    wanted = [name.strip() for name in text.split(",")]
    if unknown := [name for name in wanted if name not in {fault.name for fault in FAULTS}]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(fault.name for fault in FAULTS)}")
    return [fault for fault in FAULTS if fault.name in wanted]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--times", type=count, default=5, help="how often each fault is caused (%(default)s)")
    add("--users", type=count, default=32, help="number of users (%(default)s)")
    add("--faults", type=_faults, default=FAULTS, metavar="NAME,...", help="the faults to cause; all if not given")
    add("--set-clock", action="store_true", help="also set this machine's clock a minute forward, for 5 s each time")
    add(
        "--logs",
        type=results_folder,
        metavar="FOLDER",
        help="keep the logs of the server and the gateway in this folder",
    )
    return parser


async def chaos(
    service: Service, faults: Sequence[Fault], times: int, number: int, outcomes: dict[Fault, list[Outcome]]
) -> None:
    """Cause each fault `times` times under the load of `number` users, with a progress bar. Fill in `outcomes`.

    Raises LauncherError if the service does not get ready, NotAnswered if it gives no answers without a fault.
    """
    async with (
        service.running(),
        proxy(service.ports.grpc) as grpc,
        proxy(service.ports.http) as http,
        open_doors(grpc.port, http.port, service.ports.gateway, 2 * LIMIT_SECONDS) as (doors, _),
    ):
        stage, users = Stage(service, (grpc, http)), Users(doors)
        await users.learn()
        health = Health(stage)
        load = [asyncio.create_task(users.run(number)), asyncio.create_task(health.watch())]
        try:
            with tqdm(total=len(faults) * times, unit="fault") as bar:
                for fault in faults:
                    bar.set_description_str(fault.name)
                    for _ in range(times):
                        outcome = await experiment(fault, stage, users, health)
                        outcomes.setdefault(fault, []).append(outcome)
                        bar.write(f"{fault.name}: {outcome}")
                        bar.update()
        finally:
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)


def main() -> int:
    """Return the exit status: 0 if every promise was kept, 1 if one was broken or the service does not start."""
    options = _parser().parse_args()
    faults = [fault for fault in options.faults if fault.begin is not set_clock or options.set_clock]
    outcomes: dict[Fault, list[Outcome]] = {}
    failed = False
    try:
        with workplace(options.logs) as folder:
            service = Service(folder)
            asyncio.run(chaos(service, faults, options.times, options.users, outcomes))
    except* (LauncherError, NotAnswered, ProcessLookupError) as errors:
        print(f"error: {errors.exceptions[0]}", file=sys.stderr)
        failed = True
    except* KeyboardInterrupt:
        print("stopped before the end", file=sys.stderr)
        failed = True
    if not outcomes:
        return 1
    print(f"Without load, a start took {service.first_start:.1f} s.", table(outcomes), sep="\n\n")
    for process in service.processes().values():
        print(f"left behind at the end: {process}")
    broken = broken_promises(outcomes) + late(outcomes)
    print("\n".join(broken) or "every promise was kept")
    return 1 if failed or broken or service.processes() else 0


if __name__ == "__main__":
    sys.exit(main())
