"""The results page, from the summaries of the reproductions.

torchbandits reproduce bkb-fig1 --quick                  # and others
python scripts/results_page.py --collect results/figures # copy their summaries to docs/results, write docs/results.md
python scripts/results_page.py                           # write docs/results.md and its figures from docs/results alone
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchbandits.experiments.results_folder import collect, write_page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path, help="folder of the reproductions' results")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    if arguments.collect is not None:
        for path in collect(arguments.collect, arguments.docs):
            print(f"collected: {path}")
    print(f"written: {write_page(arguments.docs)}")


if __name__ == "__main__":
    main()
