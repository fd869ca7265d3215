"""The base of all kinds of Locust users: the requests, the rows of the report, and the file of gaps.

Each user is a closed loop over the requests of a workload file (`--workload`). The users of a process share these
requests, and no other process has the same prompts. All turns of a chat come from one user. The report has these rows,
in milliseconds: `ttft` is the time to the first piece of an answer, `itl` the mean time between two tokens of a
request, and `e2e` the time to the end. The row `tokens` has the lengths of answers in the columns for times. Errors are
counted under `e2e`, by their names. The row of all requests, from which Locust draws its charts, has what `e2e` has.
Requests that the end of the run cuts off are in no row; the log has their number.
With `--gaps FILE` each answer adds a line of JSON to the file, with all of its gaps in seconds.
"""

import argparse
import json
import logging
import os
import random
import time
from collections.abc import Iterator
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import ClassVar

import gevent
from locust import User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import WorkerRunner

from load_tests.failures import RequestFailed
from load_tests.hand_out import PAUSE_AFTER_FAILURE, HandOut
from load_tests.prompts import PlannedRequest
from load_tests.records import WRONG_LENGTH
from load_tests.workload import WORKLOADS, WorkloadError, part_seed, read_workload

logger = logging.getLogger(__name__)


def _workload_path(text: str) -> str:
    try:
        read_workload(Path(text))
    except (OSError, WorkloadError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _seed_text(text: str) -> str:
    if text and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, not {text!r}")
    return text


def _gaps_path(text: str) -> str:
    folder = Path(text).absolute().parent
    if text and (Path(text).is_dir() or not os.access(folder, os.W_OK)):
        raise argparse.ArgumentTypeError(f"{text!r} is no file that can be written")
    return text


def add_options(parser: LocustArgumentParser) -> None:
    """Add our options to Locust's."""
    parser.add_argument(
        "--workload",
        type=_workload_path,
        default=str(WORKLOADS / "small.yaml"),
        metavar="FILE",
        help="workload file with the users' requests; see load_tests/workloads",
    )
    parser.add_argument(
        "--gaps",
        type=_gaps_path,
        default="",
        env_var="LOCUST_GAPS",
        metavar="FILE",
        help="append the gaps between tokens to this file, as JSON lines",
    )
    parser.add_argument(
        "--seed",
        # Locust's web page sends the option as text, which is empty if the user leaves it so.
        type=_seed_text,
        default="",
        metavar="N",
        help="repeat the prompts of an earlier run; by default prompts are new in every run, as servers cache them",
    )


def begin_run(environment: Environment, **_: object) -> None:
    """Choose the seed of a run. The web page can start several in a process, and each begins with its first request."""
    _hand_out.cache_clear()
    LoadUser.cut_off.clear()
    if not isinstance(environment.runner, WorkerRunner):
        options = environment.parsed_options
        assert options is not None
        # Workers get all options of the master.
        options.seed_of_run = int(options.seed) if options.seed else random.randrange(2**31)
        logger.info("the prompts of this run are those of --seed %d", options.seed_of_run)


def end_run(**_: object) -> None:
    """Tell how many requests the end of the run cut off. A server that answers nothing has an empty report."""
    if waits := LoadUser.cut_off:
        logger.warning(
            "the end of the run cut off %d requests, which the report does not count; the longest had taken %.1f s",
            *(len(waits), max(waits)),
        )


def set_clock(**_: object) -> None:
    """Set gevent's clock, which stood still while modules were imported.

    Locust would count that time as part of `--run-time`.
    """
    gevent.get_hub().loop.update_now()


events.init_command_line_parser.add_listener(add_options)  # type: ignore[no-untyped-call]
events.init.add_listener(set_clock)  # type: ignore[no-untyped-call]
events.test_start.add_listener(begin_run)  # type: ignore[no-untyped-call]
events.test_stop.add_listener(end_run)  # type: ignore[no-untyped-call]


@cache
def _hand_out(workload: str, seed: int) -> HandOut[PlannedRequest]:
    return HandOut(read_workload(Path(workload)).requests(seed))


class LoadUser(User):
    """Sends a request, reads its answer to the end, and sends the next."""

    abstract = True
    kind: ClassVar[str]
    """The value of Locust's column "type"."""
    cut_off: ClassVar[list[float]] = []
    """Seconds that each request of this process had taken when its user was stopped."""
    _numbers: ClassVar[Iterator[int]] = count()
    """A number for each user of this process."""
    _logged: ClassVar[set[str]] = set()
    """Kinds of failures of which the log has an example. Locust's report contains no messages."""

    def answer(self, request: PlannedRequest, prompt: list[int]) -> Iterator[int]:
        """Send a request and yield the number of new tokens in each piece of its answer. Raises RequestFailed."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """`host` without its scheme. Locust's web page and its own users expect a scheme there."""
        return str(self.host).removeprefix("http://")

    def on_start(self) -> None:
        """Join the users who share the requests of this process."""
        runner = self.environment.runner
        options = self.environment.parsed_options
        worker = runner.worker_index if isinstance(runner, WorkerRunner) else 0
        self._number = next(self._numbers)
        self._hand_out = _hand_out(options.workload, part_seed(options.seed_of_run, worker))

    @task
    def ask(self) -> None:
        """Send one request and report its result."""
        request = self._hand_out.next_for(self._number)
        assert request is not None  # A workload has requests without end.
        prompt = request.prompt()
        times, tokens = [time.perf_counter()], 0
        try:
            for new in self.answer(request, prompt):
                times.append(time.perf_counter())
                tokens += new
            if tokens != request.output_tokens:
                raise RequestFailed(WRONG_LENGTH, f"{tokens} tokens came instead of {request.output_tokens}")
        except gevent.GreenletExit:
            self.cut_off.append(time.perf_counter() - times[0])
            raise
        # A server may send anything, and each request must be in the report: as a success, or as a failure.
        except Exception as failure:  # noqa: BLE001
            kind = failure.kind if isinstance(failure, RequestFailed) else type(failure).__name__
            self._fire(1000 * (time.perf_counter() - times[0]), exception=kind)
            if kind not in self._logged:
                self._logged.add(kind)
                logger.warning("the first %s: %s", kind, failure)
            gevent.sleep(PAUSE_AFTER_FAILURE)
            return
        self._report(times, tokens)

    def _report(self, times: list[float], tokens: int) -> None:
        """Write the rows of an answer. The first of `times` is the time of sending, the others are those of its
        pieces."""
        sent, first, last = times[0], times[1], times[-1]
        # If the answer arrived in one piece, the time of its first token is unknown.
        if len(times) > 2 or tokens == 1:
            self._note("ttft", 1000 * (first - sent))
        if len(times) > 2:
            self._note("itl", 1000 * (last - first) / (tokens - 1))
        self._fire(1000 * (last - sent), length=tokens)
        self._note("tokens", tokens, length=tokens)
        if path := self.environment.parsed_options.gaps:
            gaps = [later - earlier for earlier, later in pairwise(times[1:])]
            line = json.dumps({"type": self.kind, "tokens": tokens, "gaps": gaps})
            # One unbuffered write keeps lines of several processes apart.
            with Path(path).open("ab", buffering=0) as file:
                file.write(f"{line}\n".encode())

    def _note(self, name: str, value: float, *, length: int = 0) -> None:
        """Add to a row, and not to the row of all requests: Locust would count an answer once for each row."""
        self.environment.stats.get(name, self.kind).log(value, length)

    def _fire(self, value: float, *, length: int = 0, exception: str | None = None) -> None:
        """Report the end of a request, for the row `e2e` and that of all requests."""
        self.environment.events.request.fire(
            request_type=self.kind,
            name="e2e",
            response_time=value,
            response_length=length,
            exception=exception,
            context={},
        )
