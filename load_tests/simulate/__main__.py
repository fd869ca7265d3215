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
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from inflight.config import EngineConfig
from load_tests.arrivals import AllAtOnce, Arrivals, Gamma, OnOff, Staircase
from load_tests.lengths import AZURE_CHAT, AZURE_CODE, Exponential, Lengths, LogNormal, Uniform, fixed
from load_tests.simulate.acceptance import AcceptanceProfile
from load_tests.simulate.report import columns, table, tenant_table
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import A100_CACHE_TOKENS, A100_LLAMA_8B, StepCost
from load_tests.simulate.sweep import sweep
from load_tests.slo import Slo
from load_tests.traffic import Arrival, Stream, replay


def read_lengths(text: str) -> tuple[Lengths, Lengths]:
    """Parse distributions of prompt and output lengths: `azure_chat`, `azure_code` or `PROMPT,OUTPUT`."""
    named = {"azure_chat": AZURE_CHAT, "azure_code": AZURE_CODE}
    if text in named:
        return named[text]
    prompts, outputs = (_one_length(part) for part in text.split(","))
    return prompts, outputs


def _one_length(text: str) -> Lengths:
    kind, *numbers = text.split(":")
    values = [float(number) for number in numbers]
    match kind, values:
        case "fixed", [tokens]:
            return fixed(int(tokens))
        case "uniform", [low, high]:
            return Uniform(int(low), int(high))
        case "exponential", [mean, longest]:
            return Exponential(mean, int(longest))
        case "lognormal", [median, sigma, shortest, longest]:
            return LogNormal(median, sigma, int(shortest), int(longest))
    raise ValueError(f"no lengths: {text!r}")


def read_arrivals(text: str, rate: float) -> Arrivals:
    """Parse an arrival process: `poisson`, `gamma:CV`, `on_off:ON:OFF`, `staircase:SECONDS:RATE:RATE:...` or
    `at_once`."""
    kind, *numbers = text.split(":")
    values = [float(number) for number in numbers]
    match kind, values:
        case "poisson", []:
            return Gamma(rate)
        case "gamma", [cv]:
            return Gamma(rate, cv)
        case "on_off", [on, off]:
            return OnOff(rate, on, off)
        case "staircase", [seconds, *rates] if rates:
            return Staircase(tuple(rates), seconds)
        case "at_once", []:
            return AllAtOnce()
    raise ValueError(f"no arrivals: {text!r}")


def read_setting(text: str) -> tuple[str, list[Any]]:
    """Parse a setting and its values, `name=value,value`. Values are JSON or plain words."""
    name, _, values = text.partition("=")
    return name, [_value(value) for value in values.split(",")]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def traffic(options: argparse.Namespace) -> list[Arrival]:
    """The requests that the command line describes."""
    if options.arrivals.endswith(".csv"):
        return replay(Path(options.arrivals), options.requests, options.speed)
    prompts, outputs = read_lengths(options.lengths)
    stream = Stream(
        arrivals=read_arrivals(options.arrivals, options.rate),
        prompts=prompts,
        outputs=outputs,
        max_tokens=options.max_tokens,
        tenants={name: values[0] for name, values in map(read_setting, options.tenant)} or {"": 1.0},
        prefixes=options.prefixes,
        prefix_tokens=options.prefix_tokens,
    )
    return stream.make(options.requests, options.seed)


def run(options: argparse.Namespace) -> None:
    """Simulate, print the table and draw the plot."""
    arrivals = traffic(options)
    cost = StepCost.of_trace(options.cost) if options.cost else A100_LLAMA_8B
    config = EngineConfig(
        model="simulated",
        kv_cache_tokens=options.kv_cache_tokens,
        enable_prefix_caching=options.prefix_tokens > 0,
        max_queue_size=len(arrivals),
        target_ttft_ms=1e3 * options.slo_ttft,
        target_itl_ms=1e3 * options.slo_itl,
        price_per_hour=options.price_per_hour or 0.0,
    )
    given: dict[str, Any] = {name: values[0] for name, values in map(read_setting, options.set)}
    acceptance = None if options.acceptance is None else AcceptanceProfile.read(options.acceptance)
    if acceptance is not None:
        config = replace(config, speculative_config={"num_speculative_tokens": options.drafted})
    config = replace(config, **given)
    slo = Slo(options.slo_ttft, options.slo_itl)
    if options.sweep:
        recommend(arrivals, config, cost, slo)
        return
    name, values = read_setting(options.compare) if options.compare else ("scheduling_policy", ["fcfs"])
    results: dict[str, Result] = {}
    for value in values:
        compared: dict[str, Any] = {name: value}
        changed = replace(config, **compared)
        results[f"{name}={value}"] = simulate(arrivals, changed, cost, acceptance=acceptance, progress=True)
    print(table(results, columns(slo, options.price_per_hour)))
    if options.price_per_hour:
        for label, result in results.items():
            print(f"\n{label}:\n\n{tenant_table(result.tenants, options.price_per_hour)}")
    if options.plot:
        from load_tests.simulate.plots import overview

        overview(results, options.plot, f"{len(arrivals)} requests in the simulator, by {name}")


def recommend(arrivals: list[Arrival], config: EngineConfig, cost: StepCost, slo: Slo) -> None:
    """Print the five best candidates of the sweep, and the best one as settings."""
    found = sweep(arrivals, config, cost, slo, progress=True)
    print(table({candidate.label: candidate.result for candidate in found[:5]}, columns(slo)))
    print(f"\nRecommended for TTFT within {slo.ttft} s and ITL within {slo.itl} s: {found[0].label}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--requests", type=int, default=10_000, help="number of requests (%(default)s)")
    add("--seed", type=int, default=1, help="seed of the workload (%(default)s)")
    add(
        "--arrivals",
        default="poisson",
        help="poisson, gamma:CV, on_off:ON:OFF, staircase:SECONDS:RATE:..., at_once, or a trace as .csv (%(default)s)",
    )
    add("--rate", type=float, default=4.0, help="requests per second (%(default)s)")
    add("--speed", type=float, default=1.0, help="factor by which a trace is replayed faster (%(default)s)")
    add("--lengths", default="azure_chat", help="lengths of prompts and outputs (%(default)s)")
    add("--max-tokens", type=int, default=0, help="output limit of each request; by default its output length")
    add("--tenant", action="append", default=[], metavar="NAME=SHARE", help="a tenant and its weight; repeatable")
    add("--prefixes", type=int, default=1, help="number of shared prefixes (%(default)s)")
    add("--prefix-tokens", type=int, default=0, help="tokens in each shared prefix (%(default)s)")
    add("--cost", type=Path, metavar="TRACE", help="fit the step times to a trace of the engine")
    add(
        "--acceptance",
        metavar="PROBABILITY|TRACE",
        help="draft tokens that are right with this probability, or as often as in a trace of the engine",
    )
    add("--drafted", type=int, default=15, help="maximum number of drafted tokens of a request in a step (%(default)s)")
    add("--kv-cache-tokens", type=int, default=A100_CACHE_TOKENS, help="(%(default)s)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of EngineConfig; repeatable")
    add("--compare", metavar="NAME=VALUE,VALUE", help="simulate once with each value of a setting")
    add("--sweep", action="store_true", help="find the best max_num_seqs, token budget and policy")
    add("--slo-ttft", type=float, default=1.0, help="seconds (%(default)s)")
    add("--slo-itl", type=float, default=0.05, help="seconds between tokens, mean of a request (%(default)s)")
    add("--price-per-hour", type=float, help="price of the machine per hour, in any currency")
    add("--plot", type=Path, metavar="FILE", help="plot the distributions to this PNG file")
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
