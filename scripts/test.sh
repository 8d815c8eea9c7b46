#!/usr/bin/env bash
# Installs (once) and runs the tests, one process per core: the default tests take up to eight minutes; with `--all` as the first
# argument, the exhaustive tests run too.
# Arguments are passed to pytest, for example `-k law_4`, or `-n 0 -m benchmark`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${1:-}" = --all ]; then
    shift
    set -- -m "not cuda and not slow and not benchmark" "$@"
fi
bash scripts/setup.sh
# Modules stay compiled even if the environment says otherwise: workers, and the many processes that tests start, would each
# compile the package and the tests again.
unset PYTHONDONTWRITEBYTECODE
exec .venv/bin/python -m pytest -n auto --dist worksteal "$@"
