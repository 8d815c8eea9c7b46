#!/usr/bin/env bash
# Installs (once) and runs the tests, one process a core. Arguments go to pytest, for example `-k law_4`, or `-n 0 -m benchmark`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/python -m pytest -n auto "$@"
