"""A `model.py` around the shipped one. It obeys commands from a named pipe, to cause faults that no signal can cause.

It only works in a version folder in which it is linked as `model.py`, beside `commands.py` and the shipped file, which
is `shipped_model.py` there.
"""

import ctypes
import threading
from pathlib import Path
from typing import Any

from commands import ADVERTISED_PORT, END, HANG, PIPE  # type: ignore[import-not-found]
from shipped_model import TritonPythonModel as ShippedModel  # type: ignore[import-not-found]


class TritonPythonModel(ShippedModel):  # type: ignore[misc]
    """The shipped model, with faults on command: `hang`, or `end THREAD`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Like the shipped one; commands are obeyed from now on."""
        super().initialize(args)
        if (advertised := Path(__file__).with_name(ADVERTISED_PORT)).exists():
            _advertise(self._server._engine, int(advertised.read_text()))
        threading.Thread(target=self._obey, daemon=True).start()

    def _obey(self) -> None:
        while True:
            # Opening it waits for a writer. The writer closes it after each command.
            command, _, thread = Path(__file__).with_name(PIPE).read_text().strip().partition(" ")
            if command == HANG:
                self._server._engine.core._runner.run = _never_return
            elif command == END:
                _end_thread(thread)


def _advertise(engine: Any, port: int) -> None:
    """Let an engine name another port as that of its exports: a proxy's."""
    transport = engine._connector._transport
    address = transport.address
    transport.address = lambda listener: (address(listener)[0], port)


def _never_return(plan: Any) -> None:
    threading.Event().wait()


def _end_thread(name: str) -> None:
    """Raise SystemExit in a thread, at its next Python instruction."""
    thread = next(thread for thread in threading.enumerate() if thread.name == name)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
