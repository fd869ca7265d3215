"""A hub for tests, on loopback: the part of the Hugging Face hub's API that downloads of models use."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


@dataclass
class Hub:
    """One model, with a folder for each commit."""

    model: str
    commits: dict[str, Path]
    main: str
    url: str = ""
    requests: list[str] = field(default_factory=list)
    """The method and path of each request so far."""

    def files(self, commit: str) -> list[str]:
        """Return the names of a commit's files."""
        folder = self.commits[commit]
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    def downloads(self) -> list[str]:
        """Return the names of the files that were downloaded so far."""
        return sorted(
            request.split("/", 5)[5]
            for request in self.requests
            if request.startswith("GET") and not request.startswith("GET /api")
        )


@contextmanager
def hub(model: str, commits: dict[str, Path], main: str) -> Iterator[Hub]:
    """Serve a model until the context ends. Then nobody listens on its port."""
    served = Hub(model, commits, main)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            served.requests.append(f"{self.command} {path}")
            head, _, rest = path.partition(model)
            # Without a revision, the model's description is that of its main branch.
            _, kind, revision, name = [*(rest or "/revision/main").split("/", 3), ""][:4]
            commit = served.main if revision == "main" else revision
            if commit not in commits:
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            elif head == "/" and name in served.files(commit):
                content = (commits[commit] / name).read_bytes()
                self._send(200, content, {"X-Repo-Commit": commit, "ETag": _digest(content)})
            elif kind == "tree":
                contents = {name: (commits[commit] / name).read_bytes() for name in served.files(commit)}
                self._json(
                    [
                        {"type": "file", "path": name, "size": len(content), "oid": _digest(content)}
                        for name, content in contents.items()
                    ]
                )
            elif kind == "revision":
                names = [{"rfilename": name} for name in served.files(commit)]
                self._json({"id": model, "modelId": model, "sha": commit, "siblings": names})
            else:
                self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})

        def _json(self, value: object) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever).start()
        try:
            yield served
        finally:
            server.shutdown()


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
