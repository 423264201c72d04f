"""Readers of launch files: shell scripts and configuration files, read and never executed."""
