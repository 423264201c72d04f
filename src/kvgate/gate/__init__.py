"""Use cases: carrying out a plan against a running deployment."""
