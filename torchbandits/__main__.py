"""Entry point of the command line: `torchbandits` or `python -m torchbandits`."""

from __future__ import annotations

import sys

# What the command line needs beyond the package itself; anything else that is missing is a fault and shows as one.
EXTRA = ("matplotlib", "pandas", "pyarrow", "pydantic", "rich", "scipy", "typer", "yaml")

_missing = ""
try:
    from torchbandits import cli
except ModuleNotFoundError as error:
    _missing = (error.name or "").partition(".")[0]
    if _missing not in EXTRA:
        raise


def main() -> None:
    """Run the command line, or say in one line how to install it."""
    if _missing:
        sys.stderr.write(f'torchbandits: the command line needs {_missing}: pip install "torchbandits[experiments]"\n')
        sys.exit(2)
    cli.app()


if __name__ == "__main__":
    main()
