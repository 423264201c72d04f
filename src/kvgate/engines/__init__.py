"""Talking to engines: dialects (data), the wire, counters, discovery, hooks."""
