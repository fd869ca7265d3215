"""`make schemas`: whether a server's answers match hundreds of JSON schemas, at a high temperature.

It starts a server with the default model and asks it for several answers to each schema: schemas as applications send
them, schemas of each keyword, and generated ones. An answer that was not cut off must match its schema by the package
jsonschema. A schema that is not served must be refused with a reason. Otherwise the exit status is 1.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from load_tests.option_types import count, count_or_none, number
from load_tests.schemas.applications import APPLICATIONS, Schema
from load_tests.schemas.check import Outcome, ask_all
from load_tests.schemas.generated import generated
from load_tests.schemas.keywords import KEYWORDS
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.served_model import triton_server
from scripts.launch.signals import end_like_ctrl_c

_LONGEST_LINE = 160


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--generated", type=count_or_none, default=140, help="number of generated schemas (%(default)s)")
    add(
        "--samples",
        type=int,
        choices=range(1, 17),
        default=3,
        metavar="N",
        help="answers to each schema, 1 to 16 (%(default)s)",
    )
    add("--temperature", type=number(0.0), default=1.5, help="of the answers (%(default)s)")
    add("--max-tokens", type=count, default=192, help="the length at which an answer is cut off (%(default)s)")
    return parser


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Return a table in Markdown, with a row for each kind of schemas and one for all."""
    lines = ["| Schemas | Asked | Refused | Answers | Cut off | Match | Do not match |", "|---|" + "---:|" * 6]
    everything = [outcome for some in outcomes.values() for outcome in some]
    for kind, some in {**outcomes, "all": everything}.items():
        refused = sum(outcome.refusal is not None for outcome in some)
        cut = sum(len(outcome.cut) for outcome in some)
        good = sum(len(outcome.matching) for outcome in some)
        bad = sum(len(outcome.wrong) for outcome in some)
        lines.append(f"| {kind} | {len(some)} | {refused} | {cut + good + bad} | {cut} | {good} | {bad} |")
    return "\n".join(lines)


def refusals(outcomes: Sequence[Outcome]) -> str:
    """Return the reasons for which schemas were refused, with the number of schemas, the most frequent first."""
    reasons = Counter(outcome.refusal.partition("\n")[0] for outcome in outcomes if outcome.refusal is not None)
    return "\n".join(f"{count:4}  {reason[:_LONGEST_LINE]}" for reason, count in reasons.most_common())


def main() -> int:
    """Ask, print what came, and return the exit status."""
    options = _parser().parse_args()
    kinds: dict[str, dict[str, Schema]] = {
        "as applications send them": APPLICATIONS,
        "of each keyword": KEYWORDS,
        "generated": generated(options.generated),
    }
    schemas = [(kind, name, schema) for kind, some in kinds.items() for name, schema in some.items()]
    end_like_ctrl_c()
    try:
        with triton_server(default_model()) as server:
            found = asyncio.run(
                ask_all(
                    server.grpc_url,
                    [schema for _, _, schema in schemas],
                    samples=options.samples,
                    temperature=options.temperature,
                    max_tokens=options.max_tokens,
                )
            )
    except KeyboardInterrupt:
        return 130
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    outcomes: dict[str, list[Outcome]] = {kind: [] for kind in kinds}
    for (kind, name, _), outcome in zip(schemas, found, strict=True):
        outcomes[kind].append(outcome)
        for text in outcome.wrong:
            print(f"{kind}, {name}: {text!r} does not match", file=sys.stderr)
        if outcome.refusal == "":
            print(f"{kind}, {name}: refused without a reason", file=sys.stderr)
    print(f"{table(outcomes)}\n\nRefused:\n{refusals(found)}")
    if all(outcome.refusal is not None for outcome in found):
        print("error: every schema was refused", file=sys.stderr)
        return 1
    return int(any(outcome.wrong or outcome.refusal == "" for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
