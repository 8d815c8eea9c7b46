#!/usr/bin/env bash
# Installs (once) and runs the tests. Arguments go to pytest, for example `-m benchmark` or `-k law_4`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/python -m pytest "$@"
