"""A stranger to the rest of the package: an embedded deployment whose answers are computed from the KV bytes it reads.

Imports nothing of kvgate and shares no parser with it, so that the gate is never tested against its own ideas.
"""
