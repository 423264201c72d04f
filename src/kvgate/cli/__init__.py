"""The command line: the only place where the rooms are put together."""
