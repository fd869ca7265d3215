"""Scheduling policies (`scheduling_policy`): which request is admitted next. One file per policy."""
