"""Settings of the property tests: the same examples on every run, whatever the machine's pace."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "unit",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unit")
