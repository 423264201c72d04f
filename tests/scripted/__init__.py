"""A small scripted server that answers like vLLM, for fast tests and benchmarks. Imports nothing of kvgate."""
