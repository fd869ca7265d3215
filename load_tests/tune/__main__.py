"""`make tune`: find settings for a workload and an objective, and confirm them on the real server.

    python -m load_tests.tune small --objective goodput --users 16
    python -m load_tests.tune load_tests/workloads/chat.yaml --objective latency --rate 0.5 --no-confirm

A short run fits step times to this machine. The simulator then serves the workload with the default configuration and
with others, which optuna proposes. What brings nothing is returned to its default. At last a server with the default
configuration and one with the found settings serve the same requests in turn. Results go to results/: a variant of
config.pbtxt, and a report that says what each setting brings.

Objectives: `throughput` (output tokens per second), `latency` (mean time to the last token), `ttft` (p99 of the time to
the first token), `goodput` (requests per second within the workload's objective), `cost` (machine time for a token, as
long as p95 of the first tokens and p99 of the gaps are within the targets).
"""

import argparse
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from load_tests.compare.contenders import ours
from load_tests.loads import read_loads, write_prompts_in_text
from load_tests.model_options import add_model_options, model_folder, model_name
from load_tests.option_types import count, positive, results_folder, seed
from load_tests.slo import Slo
from load_tests.tune.ablation import ablate, prune
from load_tests.tune.confirmation import DEFAULT, TUNED, Confirmation, take_turns
from load_tests.tune.load import Load
from load_tests.tune.machine import Machine, calibrate, read_machine
from load_tests.tune.objective import OBJECTIVES, Served, objective
from load_tests.tune.outcome import Outcome
from load_tests.tune.report import summary, write_outcome
from load_tests.tune.search import TRIALS, best, search
from load_tests.tune.simulated import Simulated, default_config
from load_tests.tune.space import space_for
from load_tests.workload import Workload
from scripts.launch.environment import environment
from scripts.launch.errors import LauncherError
from scripts.launch.other_load import OtherLoad

_CALIBRATION_SECONDS = 30.0
_CALIBRATION_USERS = 16
"""For an open loop."""
# Seeds of the requests: what the search sees, what the gains are predicted for, and what the servers get.
_SEARCHED, _PREDICTED, _SENT = 0, 1, 2


def run(options: argparse.Namespace) -> Path:
    """Tune, write the results and return their folder.

    Raises LauncherError, ValueError or OSError, with a message for the user.
    """
    load = Load(options.workload, None if options.rate else options.users, options.rate)
    machine = _machine(options, load)
    aim = objective(options.objective, _targets(options, load.workload), load.users)
    requests = load.requests(options.requests, _SEARCHED)
    space = space_for(default_config(machine), requests, load.users, aim.targets)
    serve = Simulated(load, requests, space, machine)
    with tqdm(total=min(options.trials, space.size), desc="searching", unit="trial") as bar:
        trials = search(space, serve, aim.loss, trials=options.trials, seed=options.seed, bar=bar)
    choice = prune(space, best(trials), serve, aim.loss)
    serve_others = Simulated(load, load.requests(options.requests, _PREDICTED), space, machine)
    if aim.loss(serve_others(choice)) >= aim.loss(serve_others(space.default)):
        choice = space.default
    ablation = ablate(space, choice, serve_others)
    outcome = Outcome(load, aim, machine, space, trials, ablation, None, _about(options))
    folder: Path = options.results / time.strftime(f"tune-{load.workload.name}-{aim.name}-%Y%m%d-%H%M%S")
    variant = write_outcome(outcome, folder)
    if options.confirm and ablation.without:
        outcome = replace(outcome, confirmation=_confirm(outcome, options))
        write_outcome(outcome, folder)
    print(f"{summary(outcome)}\nSettings: {variant}" if outcome.settings else summary(outcome))
    return folder


def _machine(options: argparse.Namespace, load: Load) -> Machine:
    """The machine of `--machine`, or this one."""
    if options.confirm or options.machine is None:
        write_prompts_in_text([load.workload], model_folder(options))
    if options.machine is not None:
        return read_machine(options.machine)
    return calibrate(model_folder(options), load.workload, load.users or _CALIBRATION_USERS, _CALIBRATION_SECONDS)


def _targets(options: argparse.Namespace, workload: Workload) -> Slo:
    return Slo(options.target_ttft or workload.slo.ttft, options.target_itl or workload.slo.itl)


def _confirm(outcome: Outcome, options: argparse.Namespace) -> Confirmation:
    """Serve so many requests on the real server that a round takes about `--seconds` with the default."""
    load, space = outcome.load, outcome.space
    needed = round_size(load, options.requests, outcome.ablation.default, options.seconds)
    rounds = [load.requests(needed, _SENT + number) for number in range(options.rounds)]
    model, other_load = model_folder(options), OtherLoad()
    contenders = [ours(DEFAULT, model, {}), ours(TUNED, model, outcome.settings)]
    measured = take_turns(contenders, load, rounds)
    share = other_load.share()
    served = [Simulated(load, requests, space, outcome.machine) for requests in rounds]
    choices = {DEFAULT: space.default, TUNED: outcome.ablation.choice}
    return Confirmation(measured, {name: [each(choice) for each in served] for name, choice in choices.items()}, share)


def round_size(load: Load, requests: int, served: Served, seconds: float) -> int:
    """How many requests take so many seconds, as `requests` of them were served."""
    rate = load.rate or requests / served.busy_seconds
    return max(round(rate * seconds), 2 * (load.users or 1))


def _about(options: argparse.Namespace) -> dict[str, str]:
    return {"model": model_name(options), **environment("bfloat16", "cpu"), "when": time.strftime("%Y-%m-%d %H:%M %Z")}


def _workload(text: str) -> Workload:
    found = read_loads(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} names {len(found)} workloads; it must be one")
    return found[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("workload", type=_workload, metavar="WORKLOAD", help="a name in load_tests/workloads, or the path of a file")
    add("--objective", choices=OBJECTIVES, default="goodput", help="(%(default)s)")
    load = parser.add_mutually_exclusive_group().add_argument
    load("--users", type=count, default=16, help="users who wait for their answers, a closed loop (%(default)s)")
    load("--rate", type=positive, help="requests per second instead, an open loop")
    add_model_options(parser)
    add("--target-ttft", type=positive, metavar="SECONDS", help="instead of the workload's")
    add("--target-itl", type=positive, metavar="SECONDS", help="instead of the workload's")
    add("--trials", type=count, default=TRIALS, help="configurations to simulate (%(default)s)")
    add("--requests", type=count, default=256, help="requests in each simulation (%(default)s)")
    add("--seed", type=seed, default=0, help="seed of the search (%(default)s)")
    add("--machine", type=Path, metavar="FILE", help="step times of an earlier run, its machine.json")
    add("--confirm", action=argparse.BooleanOptionalAction, default=True, help="measure on the real server")
    add("--rounds", type=count, default=2, help="rounds of that measurement (%(default)s)")
    add("--seconds", type=positive, default=30.0, help="length of a round with the default (%(default)s)")
    add("--results", type=results_folder, metavar="FOLDER", default="results", help="(%(default)s)")
    return parser


def main() -> int:
    """Tune and return the exit status. If it is 1, a line on standard error says why."""
    parser = _parser()
    options = parser.parse_args()
    if options.objective == "ttft" and options.rate is None and options.requests <= options.users:
        parser.error(
            f"argument --requests: must be more than the {options.users} --users, whose first requests do not count "
            f"for ttft, not {options.requests}"
        )
    # Handle SIGTERM like Ctrl-C, so that `kill` stops the servers too, including the paused ones.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        folder = run(options)
    except KeyboardInterrupt:
        return 130
    except (LauncherError, ValueError, OSError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    print(f"Report: {folder / 'report.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
