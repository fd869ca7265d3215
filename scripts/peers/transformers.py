"""transformers behind the server of `transformers_server.py`; it needs nothing that this project does not."""

import os
import sys
from pathlib import Path

from scripts.peers import transformers_server
from scripts.peers.peer import Peer


def server(batching: str, folder: Path, users: int) -> Peer:
    """Return a server that batches statically or continuously, as many requests at once as there are users."""
    command = [sys.executable, "-m", transformers_server.__name__]
    command += ["--model", str(folder), "--batching", batching, "--users", str(users)]
    return Peer(f"transformers, {batching}", command, dict(os.environ))
