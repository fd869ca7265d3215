"""The benchmarks: `make bench` and its relatives. Nothing outside this folder imports it."""
