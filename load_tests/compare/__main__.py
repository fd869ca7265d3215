"""`make compare`: compare servers and settings under the same loads in one run.

For each number of users, all servers are started. Then they alternate for the given number of rounds, under one load
after the other. While one server runs, the others are paused (SIGSTOP), so that other work on the machine affects all
servers alike. In a round all servers get the same requests; every round has new requests. Users are closed loops.
Ratios are relative to the first server.

A load is a workload file, of which load_tests/workloads has several. `--loads all` stands for those of the benchmarks:
greedy,temperature,top_p,short,long,shared_prefix,chat_turns. Every server gets the same sampling parameters, with all
other filters off, and ignores the end-of-sequence token.

Without --system, our batching strategies are compared. --system compares settings of our server: it takes a name and
the parameters that differ from config.pbtxt:

    --system 'fair: scheduling_policy=fair' --system 'small steps: max_num_batched_tokens=128'

The option --peers compares our server with transformers (static and continuous batching behind a small server) and with
vLLM and llama.cpp, if `make peers` has installed them and they support the model; `--peers vLLM` takes one of them. The
report names the absent ones and says why. All servers have the same weights in bfloat16 and a slot for each user.
transformers and vLLM compute in float32 on processors on which torch has no fast bfloat16 matrix products. The option
--users 1,8,32,64 shows how the servers scale.

With --peers --drafting, our server, vLLM and llama.cpp take part twice: without and with speculative decoding by n-gram
look-up. The load `copying` has answers that copy from their prompts.
"""

import argparse
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from load_tests.compare.contenders import DRAFTING, PEERS, Contender, ours, peers, read_peers, read_system, strategies
from load_tests.compare.report import notes, table
from load_tests.compare.turns import Compared, compare
from load_tests.loads import read_loads, write_prompts_in_text
from load_tests.model_options import add_model_options, model_folder, model_name
from load_tests.option_types import count, positive, read_levels, results_folder
from load_tests.records import write_records
from scripts.launch.environment import environment
from scripts.launch.errors import LauncherError
from scripts.peers import vllm
from scripts.peers.dtype import best_dtype

_DRAFTING = {"speculative_config": '{"method": "ngram"}'}


def chosen(options: argparse.Namespace, model: Path) -> tuple[list[Contender], dict[str, str]]:
    """The servers that the options select, and why each of the others is absent.

    Raises LauncherError if two have the same name.
    """
    found = [ours(name, model, parameters) for name, parameters in options.system or []]
    absent: dict[str, str] = {}
    if options.peers is None:
        found = found or strategies(model)
    else:
        others, absent = peers(model, options.peers, drafting=options.drafting)
        found = found or [ours("Inflight", model, {}, slot_for_each_user=True)]
        if options.drafting:
            found.append(ours(f"Inflight{DRAFTING}", model, _DRAFTING, slot_for_each_user=True))
        found += others
    for name, times in Counter(contender.name for contender in found).items():
        if times > 1:
            raise LauncherError(f"{times} servers have the name {name!r}; each --system must have a name of its own")
    return found, absent


def _new_records(text: str) -> Path:
    """Parse a folder for records that has none yet. Raises argparse.ArgumentTypeError.

    A run with fewer rounds would leave some of an earlier run's records there, beside its own.
    """
    folder = results_folder(text)
    if any(folder.rglob("*.jsonl")):
        raise argparse.ArgumentTypeError(f"{text!r} has the records of an earlier run; it must be another folder")
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_model_options(parser)
    add("--system", type=read_system, action="append", metavar="'NAME: KEY=VALUE,...'", help="settings to compare")
    add(
        "--peers",
        type=read_peers,
        nargs="?",
        const=list(PEERS),
        metavar="NAME,...",
        help=f"compare with other servers too: all of {', '.join(PEERS)}, or those that are named",
    )
    add("--drafting", action="store_true", help="with --peers: also each server with speculative decoding by n-grams")
    add("--loads", type=read_loads, default="small", metavar="NAME,...", help="workloads, or all (%(default)s)")
    add("--users", type=read_levels, default=[16], metavar="N,...", help="closed loops, one level or several (16)")
    add("--rounds", type=count, default=3, help="number of rounds (%(default)s)")
    add("--seconds", type=positive, default=20.0, help="length of each server's run in a round (%(default)s)")
    add(
        "--records",
        type=_new_records,
        metavar="FOLDER",
        help="write a record of every request to this folder, which has none yet",
    )
    return parser


def report(options: argparse.Namespace) -> None:
    """Compare, write the records and print the table. Raises LauncherError or OSError."""
    model = model_folder(options)
    write_prompts_in_text(options.loads, model)
    contenders, absent = chosen(options, model)
    rounds: dict[str, Any] = {"rounds": options.rounds, "seconds": options.seconds}
    levels = {users: compare(contenders, options.loads, users=users, **rounds) for users in options.users}
    if options.records is not None:
        _write(levels, options.records)
    print(f"{model_name(options)}, {options.rounds} rounds of {options.seconds:g} s\n")
    users, last = options.users[-1], options.loads[-1].name
    print(f"{table(options.loads, levels)}\n\nAfter {last} with {users} users:\n{notes(levels[users][last])}")
    about = environment("bfloat16", "cpu")
    if options.peers is not None:
        about["transformers and vLLM"] = f"{best_dtype()}, vLLM with {vllm.allocator() or 'malloc of libc'}"
        print("\n".join(f"absent: {name}: {reason}" for name, reason in absent.items()) or "absent: none")
    print("; ".join(f"{name}: {value}" for name, value in about.items()))


def _write(levels: dict[int, dict[str, dict[str, Compared]]], folder: Path) -> None:
    for users, loads in levels.items():
        for load, results in loads.items():
            for name, compared in results.items():
                for number, run in enumerate(compared.runs):
                    write_records(run.records, folder / f"{name}-{load}-{users}-{number}.jsonl")


def main() -> int:
    """Run the comparison and return its exit status. If it is 1, a line on standard error says why."""
    parser = _parser()
    options = parser.parse_args()
    if options.drafting and options.peers is None:
        parser.error("--drafting is given without --peers")
    # Handle SIGTERM like Ctrl-C, so that `kill` stops the servers too, including the paused ones.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report(options)
    except KeyboardInterrupt:
        return 130
    except (LauncherError, OSError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
