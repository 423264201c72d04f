"""kvgate proves that reused KV cache gives the same answers as computed KV cache."""

__version__ = "0.1.0"
