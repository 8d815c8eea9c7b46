#!/usr/bin/env bash
# Creates .venv and installs the package with its development extras. Repeats this only if pyproject.toml or constraints.txt
# change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2])' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    echo "torchbandits needs Python 3.11 or later; none was found on PATH." >&2
    exit 1
}

stamp=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum | tr ' ' '-')
if [ ! -x .venv/bin/python ] || [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
    python=$(find_python)
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    echo "Installing into .venv with $("$python" --version) (once; some minutes on a fresh machine) …"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
    echo "$stamp" > .venv/stamp
fi
