"""Values and decisions. Standard library and numpy only: no I/O, clock, randomness or logging."""
