"""`llm` with a request parameter `sabotage` that breaks the model's process in one of several ways."""

import ctypes
import importlib.util
import json
import threading
from pathlib import Path
from typing import Any

# A link to the model's own model.py, beside links to its packages.
_SPEC = importlib.util.spec_from_file_location("real_model", Path(__file__).parent / "real_model.py")
assert _SPEC is not None
assert _SPEC.loader is not None
real_model = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(real_model)


class EndsItsThread(list[Any]):
    """Events that no thread survives that looks at them."""

    def __iter__(self) -> Any:
        raise SystemExit


class TritonPythonModel(real_model.TritonPythonModel):  # type: ignore[name-defined,misc]
    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            match json.loads(request.parameters() or "{}").get("sabotage"):
                case "engine stands still":
                    self._server._engine.core._runner.run = lambda plan: threading.Event().wait()
                case "responder ends":
                    self._server._events.put(EndsItsThread([None]))
                case "lock is kept":
                    threading.Thread(target=ctypes.PyDLL(None).sleep, args=(600,), daemon=True).start()
        super().execute(requests)
