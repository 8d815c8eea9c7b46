#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: the tests that need one and the benchmark, in under ten minutes, into one folder of results.
# It installs nothing and needs no network: PyTorch, GPyTorch, BoTorch, pandas, pyarrow, Matplotlib and pytest must be there.
#
#     bash scripts/gpu.sh                # results/gpu
#     bash scripts/gpu.sh --seconds 240  # in four minutes
#     bash scripts/gpu.sh --parts tests steps   # some parts, beside what an earlier call wrote into the folder
#     bash scripts/gpu.sh --rehearse     # the same on the CPU, with small sizes, in about a minute
#
# PYTHON names the interpreter: that of .venv by default, where there is one, else python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=python3
if [ -x .venv/bin/python ]; then
    python=.venv/bin/python
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-$python}" scripts/gpu.py "$@"
