"""Selects the lines of tritonserver's log that matter to a user."""

import re

_HEADER = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ (?P<source>\S+):\d+\]")

# Triton prints these warnings and errors on every machine without a GPU, although nothing is wrong.
_WITHOUT_GPU = (
    "Unable to allocate pinned system memory",
    "CudaDriverHelper has not been initialized",
    "Failed to initialize NVML",
    "DCGM unable to start",
)


class LogFilter:
    """Hides the server's own information and its tables. Keeps warnings, errors and the models' output."""

    def __init__(self) -> None:
        self._hides_table = False

    def shows(self, line: str) -> bool:
        """Return whether to show the next line of the log."""
        header = _HEADER.match(line)
        if header:
            from_model = header["source"].endswith(".py")
            self._hides_table = line.startswith("I") and not from_model
            return not self._hides_table and not _is_about_gpu(line)
        if self._hides_table and (line.startswith(("+", "|")) or not line.strip()):
            return False
        return not _is_about_gpu(line)


def _is_about_gpu(line: str) -> bool:
    return any(phrase in line for phrase in _WITHOUT_GPU)
