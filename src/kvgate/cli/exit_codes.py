"""Exit codes, and the guard that keeps a crash from ever looking like FAIL."""

import functools
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec

import typer

from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict
from kvgate.errors import KvgateError, RemoteError

P = ParamSpec("P")


class ExitCode(IntEnum):
    """What a shell or a CI job sees."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    REMOTE = 4
    BUG = 70
    INTERRUPTED = 130


def exit_code(ruling: RunVerdict, interrupted: bool = False) -> ExitCode:
    """The exit code of a run. A deployment that went away is remote trouble, unless a FAIL was already shown."""
    if interrupted:
        return ExitCode.INTERRUPTED
    if ruling.verdict is Verdict.FAIL:
        return ExitCode.FAIL
    if ruling.endpoint_lost:
        return ExitCode.REMOTE
    return ExitCode.PASS if ruling.verdict is Verdict.PASS else ExitCode.INCONCLUSIVE


def guarded(command: Callable[P, ExitCode]) -> Callable[P, None]:
    """A command that ends the process with its exit code; expected errors are one line, bugs a traceback and 70."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except KvgateError as error:
            for line in str(error).splitlines():
                _say(line)
            code = ExitCode.REMOTE if isinstance(error, RemoteError) else ExitCode.USAGE
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        except (typer.Exit, SystemExit):
            raise
        except BrokenPipeError:
            # The reader of our output went away (`| head`): nothing is left to be said, and it is no verdict.
            sys.stderr.close()
            code = ExitCode.BUG
        except BaseException:  # noqa: BLE001 - the one place where bugs are told from verdicts
            traceback.print_exc()
            _say("this is a bug in kvgate, not a verdict; please report it with the lines above")
            code = ExitCode.BUG
        raise typer.Exit(int(code))

    return run


def _say(line: str) -> None:
    sys.stderr.write(f"kvgate: {line}\n")
