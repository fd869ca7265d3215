"""Carries the keys and values of prompts from the engine that computed them to the one that goes on with them.

Nothing of it runs unless `kv_transfer_config` has a role.
"""
