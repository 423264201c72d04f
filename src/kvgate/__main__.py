"""``python -m kvgate`` and the ``kvgate`` script."""

import sys
import traceback

BUG = 70


def main() -> None:
    """Run the command line. Nothing that goes wrong here may look like a verdict."""
    try:
        # Imported inside the guard: a broken installation must not end with the exit code of a FAIL.
        from kvgate.cli.app import app

        app()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            # Rich turns a closed pipe (`| head`) into exit 1.
            sys.exit(BUG)
        raise
    except Exception:  # noqa: BLE001 - the last place where bugs are told from verdicts
        traceback.print_exc()
        sys.exit(BUG)


if __name__ == "__main__":
    main()
