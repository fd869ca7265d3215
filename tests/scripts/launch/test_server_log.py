"""The user sees only the relevant lines of a long log."""

from scripts.launch.server_log import LogFilter

STAMP = "1121 09:25:20.718755 6530"


def shown(log: str) -> list[str]:
    lines = log.strip().splitlines()
    keep = LogFilter()
    return [line for line in lines if keep.shows(line)]


def test_the_servers_own_information_and_tables_are_hidden() -> None:
    log = f"""
I{STAMP} server.cc:604]
+-------+---------+--------+
| Model | Version | Status |
+-------+---------+--------+

I{STAMP} model.py:7] "hello"
printed by a model
"""
    assert shown(log) == [f'I{STAMP} model.py:7] "hello"', "printed by a model"]


def test_warnings_errors_and_what_follows_them_are_shown() -> None:
    log = f"""
W{STAMP} metrics.cc:10] "look out"
E{STAMP} model_lifecycle.cc:642] "failed to load 'llm' version 1: ValueError: no
At:
+ a line that only looks like a table
"""
    assert shown(log) == log.strip().splitlines()


def test_the_lack_of_a_gpu_is_no_news() -> None:
    log = f"""
E{STAMP} server.cc:241] "CudaDriverHelper has not been initialized."
Error: Failed to initialize NVML
W{STAMP} metrics.cc:798] "DCGM unable to start: DCGM initialization error"
"""
    assert shown(log) == []
