"""Run directories on disk."""
