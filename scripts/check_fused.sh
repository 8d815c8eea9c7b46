#!/usr/bin/env bash
# The fused sweep without a GPU: an environment with Triton besides ours, in which Triton's interpreter runs the kernel on the CPU.
# It needs the network only for the package triton. PYTHON names the interpreter of our environment; by default that of .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-deps triton==3.9.0
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
OMP_NUM_THREADS=1 TRITON_INTERPRET=1 PYTHONPATH="$PWD:$PWD/tests:$packages" "$folder/env/bin/python" tests/fused_program.py
