"""`python -m load_tests.simulate`: simulate the engine's scheduler under a workload, in virtual time.

Examples:

    python -m load_tests.simulate --rate 4 --compare scheduling_policy=fcfs,sjf
    python -m load_tests.simulate --arrivals AzureLLMInferenceTrace_conv.csv --speed 1.5 --set max_num_seqs=128
    python -m load_tests.simulate --rate 4 --sweep
    python -m load_tests.simulate --rate 1 --acceptance 0.8
    python -m load_tests.simulate --cost trace.json --lengths uniform:30:120,uniform:16:64

Step times are those of Llama 3 8B on an A100, or are fitted to a trace of the engine (`trace_file`). Lengths are those
of the Azure traces (azure_chat, azure_code), or PROMPT,OUTPUT where each is fixed:N, uniform:LOW:HIGH,
exponential:MEAN:MAX or lognormal:MEDIAN:SIGMA:MIN:MAX.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from load_tests.arrivals import LEAST_CV, MOST_CV, AllAtOnce, Arrivals, Gamma, OnOff, Staircase
from load_tests.lengths import AZURE_CHAT, AZURE_CODE, Lengths
from load_tests.option_types import LEAST_NUMBER, MOST_NUMBER, count, count_or_none, positive, results_file, seed, whole
from load_tests.simulate.acceptance import AcceptanceProfile
from load_tests.simulate.report import columns, table, tenant_table
from load_tests.simulate.settings import MOST_CACHE_TOKENS, configured, read_setting
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import A100_CACHE_TOKENS, A100_LLAMA_8B, StepCost
from load_tests.simulate.sweep import GRID, Candidate, sweep
from load_tests.slo import Slo
from load_tests.traffic import Arrival, Stream, replay
from load_tests.workload_fields import LengthField

_LENGTH: TypeAdapter[LengthField] = TypeAdapter(LengthField)
_LENGTH_FIELDS = {
    "fixed": ("tokens",),
    "uniform": ("low", "high"),
    "exponential": ("mean", "max"),
    "lognormal": ("median", "sigma", "min", "max"),
}
"""The fields of a workload file that the numbers of a distribution stand for."""
_ARRIVAL_FORMS = "poisson, gamma:CV, on_off:ON:OFF, staircase:SECONDS:RATE:..., at_once, or a trace as .csv"
_DRAWN = ("rate", "lengths", "max_tokens", "tenant", "prefixes", "prefix_tokens")
"""The options that describe drawn requests. A trace has none of it."""


def read_lengths(text: str) -> tuple[Lengths, Lengths]:
    """Parse distributions of prompt and output lengths: `azure_chat`, `azure_code` or `PROMPT,OUTPUT`."""
    named = {"azure_chat": AZURE_CHAT, "azure_code": AZURE_CODE}
    if text in named:
        return named[text]
    parts = text.split(",")
    if len(parts) != 2:
        raise ValueError(f"lengths {text!r}: must be azure_chat, azure_code, or PROMPT,OUTPUT")
    return _one_length(parts[0]), _one_length(parts[1])


def _one_length(text: str) -> Lengths:
    kind, *numbers = text.split(":")
    try:
        values = [int(number) if number.isdecimal() else float(number) for number in numbers]
        given = dict(zip(_LENGTH_FIELDS[kind], values, strict=True))
    except (KeyError, ValueError):
        forms = ", ".join(":".join([name, *map(str.upper, names)]) for name, names in _LENGTH_FIELDS.items())
        raise ValueError(f"no lengths: {text!r}; must be one of {forms}") from None
    try:
        return _LENGTH.validate_python({"distribution": kind, **given}).lengths(0)
    except ValidationError as error:
        (first, *_) = error.errors()
        place = [f"{name}: " for name in first["loc"][1:]]  # Empty where two numbers do not go together.
        raise ValueError(f"lengths {text!r}: {''.join(place)}{first['msg']}") from None


def read_arrivals(text: str, rate: float) -> Arrivals:
    """Parse an arrival process: `poisson`, `gamma:CV`, `on_off:ON:OFF`, `staircase:SECONDS:RATE:RATE:...` or
    `at_once`."""
    kind, *numbers = text.split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        raise _no_arrivals(text) from None
    if not all(0 < value < float("inf") for value in values):
        raise ValueError(f"arrivals {text!r}: each number must be finite and over 0")
    if kind != "gamma" and not all(LEAST_NUMBER <= value <= MOST_NUMBER for value in values):
        raise ValueError(f"arrivals {text!r}: each number must be from {LEAST_NUMBER:g} to {MOST_NUMBER:g}")
    match kind, values:
        case "poisson", []:
            return Gamma(rate)
        case "gamma", [cv]:
            if not LEAST_CV <= cv <= MOST_CV:
                raise ValueError(f"arrivals {text!r}: CV must be from {LEAST_CV:g} to {MOST_CV:g}")
            return Gamma(rate, cv)
        case "on_off", [on, off]:
            return OnOff(rate, on, off)
        case "staircase", [seconds, *rates] if rates:
            return Staircase(tuple(rates), seconds)
        case "at_once", []:
            return AllAtOnce()
    raise _no_arrivals(text)


def _no_arrivals(text: str) -> ValueError:
    return ValueError(f"no arrivals: {text!r}; must be {_ARRIVAL_FORMS}")


def read_tenant(text: str) -> tuple[str, float]:
    """Parse a tenant and its weight, `NAME=SHARE`. Raises argparse.ArgumentTypeError if the text has another form."""
    name, equals, share = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SHARE")
    return name, positive(share)


def traffic(options: argparse.Namespace) -> list[Arrival]:
    """The requests that the command line describes."""
    if options.arrivals.endswith(".csv"):
        if unused := [name for name in _DRAWN if getattr(options, name) != _parser().get_default(name)]:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise ValueError(f"{options.arrivals} says when requests come and how long they are; {names} cannot")
        found = replay(Path(options.arrivals), options.requests, options.speed)
        if not found:
            raise ValueError(f"{options.arrivals} has no requests")
        return found
    if options.speed != _parser().get_default("speed"):
        raise ValueError(f"--speed is for traces, and --arrivals is {options.arrivals!r}; --rate sets how many come")
    prompts, outputs = read_lengths(options.lengths)
    arrivals = read_arrivals(options.arrivals, options.rate)
    if isinstance(arrivals, Staircase | AllAtOnce) and options.rate != _parser().get_default("rate"):
        raise ValueError(f"arrivals {options.arrivals!r} say when requests come; --rate cannot")
    for name, times in Counter(name for name, _ in options.tenant).items():
        if times > 1:
            raise ValueError(f"--tenant {name} is given {times} times; each tenant has one weight")
    stream = Stream(
        arrivals=arrivals,
        prompts=prompts,
        outputs=outputs,
        max_tokens=options.max_tokens,
        tenants=dict(options.tenant) or {"": 1.0},
        prefixes=options.prefixes,
        prefix_tokens=options.prefix_tokens,
    )
    return stream.make(options.requests, options.seed)


def run(options: argparse.Namespace) -> None:
    """Simulate, print the table and draw the plot."""
    arrivals = traffic(options)
    cost = StepCost.of_trace(options.cost) if options.cost else A100_LLAMA_8B
    acceptance = None if options.acceptance is None else AcceptanceProfile.read(options.acceptance)
    slo = Slo(options.slo_ttft, options.slo_itl)
    if options.sweep:
        if options.compare or options.plot:
            raise ValueError("--sweep chooses the settings itself and has no plot; leave out --compare and --plot")
        if chosen := [text for text in options.set if read_setting(text)[0] in GRID]:
            raise ValueError(f"--sweep chooses {', '.join(GRID)}; leave out --set {' --set '.join(chosen)}")
        found = sweep(arrivals, configured(options, len(arrivals)), cost, slo, acceptance=acceptance, progress=True)
        recommend(found, slo, options.price_per_hour)
        return
    if options.compare:
        name, values = read_setting(options.compare)
    else:
        name, values = "scheduling_policy", [configured(options, len(arrivals)).scheduling_policy]
    # All values are checked first: the second one must not fail after minutes of simulating the first.
    configs = {f"{name}={value}": configured(options, len(arrivals), **{name: value}) for value in values}
    results = {
        label: simulate(arrivals, config, cost, acceptance=acceptance, progress=True)
        for label, config in configs.items()
    }
    print(table(results, columns(slo, options.price_per_hour)))
    if options.price_per_hour:
        for label, result in results.items():
            print(f"\n{label}:\n\n{tenant_table(result.tenants, options.price_per_hour)}")
    if options.plot:
        from load_tests.simulate.plots import overview

        overview(results, options.plot, f"{len(arrivals)} requests in the simulator, by {name}")


def recommend(found: Sequence[Candidate], slo: Slo, price_per_hour: float | None) -> None:
    """Print the five best candidates of the sweep, and the best one as settings."""
    print(table({candidate.label: candidate.result for candidate in found[:5]}, columns(slo, price_per_hour)))
    objective = f"TTFT within {slo.ttft} s and ITL within {slo.itl} s"
    if found[0].result.attainment(slo):
        print(f"\nRecommended for {objective}: {found[0].label}")
    else:
        print(f"\nNo settings that were tried answer any request with {objective}.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--requests", type=count, default=10_000, help="number of requests (%(default)s)")
    add("--seed", type=seed, default=1, help="seed of the workload (%(default)s)")
    add(
        "--arrivals",
        default="poisson",
        help=f"{_ARRIVAL_FORMS} (%(default)s)",
    )
    add("--rate", type=positive, default=4.0, help="requests per second; of on_off, outside the pauses (%(default)s)")
    add("--speed", type=positive, default=1.0, help="factor by which a trace is replayed faster (%(default)s)")
    add("--lengths", default="azure_chat", help="lengths of prompts and outputs (%(default)s)")
    add(
        "--max-tokens", type=count_or_none, default=0, help="output limit of each request; by default its output length"
    )
    add(
        "--tenant",
        type=read_tenant,
        action="append",
        default=[],
        metavar="NAME=SHARE",
        help="a tenant and its weight; repeatable",
    )
    add("--prefixes", type=count, default=1, help="number of shared prefixes (%(default)s)")
    add("--prefix-tokens", type=count_or_none, default=0, help="tokens in each shared prefix (%(default)s)")
    add("--cost", type=Path, metavar="TRACE", help="fit the step times to a trace of the engine")
    add(
        "--acceptance",
        metavar="PROBABILITY|TRACE",
        help="draft tokens that are right with this probability, or as often as in a trace of the engine",
    )
    add(
        "--drafted",
        type=count,
        default=15,
        help="maximum number of drafted tokens of a request in a step (%(default)s)",
    )
    add("--kv-cache-tokens", type=whole(1, MOST_CACHE_TOKENS), default=A100_CACHE_TOKENS, help="(%(default)s)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, as in config.pbtxt; repeatable")
    add("--compare", metavar="NAME=VALUE,VALUE", help="simulate once with each value of a setting")
    add("--sweep", action="store_true", help="find the best max_num_seqs, token budget and policy")
    add("--slo-ttft", type=positive, default=1.0, help="seconds (%(default)s)")
    add("--slo-itl", type=positive, default=0.05, help="seconds between tokens, mean of a request (%(default)s)")
    add("--price-per-hour", type=positive, help="price of the machine per hour, in any currency")
    add("--plot", type=results_file, metavar="FILE", help="plot the distributions to this PNG file")
    return parser


def main() -> int:
    """Simulate and return the exit status."""
    try:
        run(_parser().parse_args())
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
