"""A run that has just ended, taken into the ledger beside it."""

import sys
from pathlib import Path

from kvgate import __version__
from kvgate.domain.ruling import RunVerdict
from kvgate.errors import KvgateError
from kvgate.store.finding import found
from kvgate.store.ledger import Ledger
from kvgate.store.run_directory import Manifest


def enter(path: Path, manifest: Manifest, ruling: RunVerdict) -> None:
    """Take a run in. That this cannot be done is worth a line and no more: the run itself is kept."""
    try:
        with Ledger.of(path.parent) as ledger:
            ledger.add(found(path, manifest, ruling, __version__))
    except (KvgateError, OSError) as error:
        sys.stderr.write(f"kvgate: warning: {error}; the run is kept, and `kvgate history` takes it in later\n")
