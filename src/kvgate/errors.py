"""What kvgate raises when something outside it is wrong.

    KvgateError
     ├─ ConfigError    the configuration cannot be used            exit 2
     ├─ RecordError    a run directory cannot be read              exit 2
     └─ RemoteError    the deployment cannot be reached or used    exit 4

Every message is one sentence that says what, where, the value, and what to do next. Anything else that is
raised is a bug in kvgate and ends in a traceback and exit 70.
"""


class KvgateError(Exception):
    """An expected error: printed as one sentence, without a traceback."""


class ConfigError(KvgateError):
    """The configuration, or a value on the command line, cannot be used."""


class RecordError(KvgateError):
    """A run directory is missing, incomplete beyond repair, or of another version."""


class RemoteError(KvgateError):
    """The deployment refused, could not be reached, or answered something kvgate cannot use."""
