"""transformers behind the server in `transformers_server.py`. It needs only this project's own dependencies."""

import os
import sys
from pathlib import Path

from scripts.peers import transformers_server
from scripts.peers.peer import Peer


def server(batching: str, folder: Path, users: int) -> Peer:
    """Return a server with static or continuous batching and as many slots as there are users."""
    command = [sys.executable, "-m", transformers_server.__name__]
    command += ["--model", str(folder), "--batching", batching, "--users", str(users)]
    return Peer(f"transformers, {batching}", command, dict(os.environ))
