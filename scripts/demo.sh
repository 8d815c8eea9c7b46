#!/usr/bin/env bash
# Installs (once) and runs the quickstart; says where its table and pictures are. Arguments go to `torchbandits run`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/torchbandits run configs/quickstart.yaml "$@"
