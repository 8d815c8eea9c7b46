#!/usr/bin/env bash
# Installs (once) and runs the quickstart in about half a minute: `auto`, BBKB and random picks on 20,000 simulated designs. It prints a
# table and a sentence, and the path of the picture. Arguments are passed to `torchbandits run`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/torchbandits run configs/quickstart.yaml "$@"
