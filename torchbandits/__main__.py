"""Entry point of the command line: `torchbandits` or `python -m torchbandits`."""

from __future__ import annotations

import sys

from torchbandits.extras import missing

_missing = ""
try:
    from torchbandits import cli
except ModuleNotFoundError as error:
    if not (_missing := missing(error)):
        raise


def main() -> None:
    """Run the command line, or print in one line how to install its packages."""
    if _missing:
        sys.stderr.write(f"torchbandits: {_missing}\n")
        sys.exit(2)
    cli.app()


if __name__ == "__main__":
    main()
