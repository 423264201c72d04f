"""Configuration files: schema, loading with errors that say what to mend, and the prompt families' texts."""
