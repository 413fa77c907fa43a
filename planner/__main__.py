"""``plan`` and ``python -m planner``: an interrupt ends with its exit code even while the command line is loaded."""

import contextlib
import os
import sys
from typing import Final

INTERRUPTED: Final = 130


def main() -> None:
    """Load and run the command line."""
    code: str | int | None = 0
    try:
        from planner.cli import main as run  # noqa: PLC0415

        run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as end:
        code = end.code
    if code == INTERRUPTED:  # by itself the interpreter may end by the signal instead, which only shells call 130
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(INTERRUPTED)
    sys.exit(code)


if __name__ == "__main__":
    main()
