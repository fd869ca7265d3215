"""Parse the command line, run the command, and turn errors into an exit status."""

import argparse
import os
import sys

from inflight_cli import agent_check, batch, chat, doctor, drain, generate, standard_streams, top
from inflight_cli.errors import CommandError
from inflight_cli.options import add_connection_options, connection_settings
from inflight_client import InflightError

COMMANDS = (generate, chat, batch, top, doctor, drain, agent_check)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands. The parsed options hold the command's function as `run`."""
    parser = argparse.ArgumentParser(prog="inflight", description="Use and watch an Inflight server.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2].replace("_", "-")
        of_command = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        add_connection_options(of_command)
        command.add_options(of_command)
        of_command.set_defaults(run=command.run)
    return parser


def run() -> int:
    """Run a command and return the exit status: 1 after an error, 2 for bad arguments."""
    standard_streams.prepare()
    parser = make_parser()
    options = parser.parse_args()
    try:
        options.connection = connection_settings(options)
    except (CommandError, ValueError) as error:
        parser.error(str(error))
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader of our output has gone. Without this, Python would report the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (CommandError, InflightError, OSError) as error:
        print("error:", *str(error).split(), file=sys.stderr)
        return 1
