#!/usr/bin/env bash
# Builds sdist and wheel, installs the wheel into an empty environment, and checks there, away from the checkout, that every module
# imports, that the command line finds its configurations, and that the quickstart runs. It takes about five minutes, most of
# them in pip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
python=${PYTHON:-.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m build --outdir "$work/dist" . > "$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
wheel=$(ls "$work"/dist/*.whl)
sdist=$(ls "$work"/dist/*.tar.gz)

# The sdist contains the files needed for building and reading, and no files that should not be published.
tar -tzf "$sdist" > "$work/listed"
for file in pyproject.toml README.md LICENSE CHANGELOG.md CITATION.cff configs/quickstart.yaml configs/theory.yaml; do
    grep -q "/$file\$" "$work/listed" || { echo "the sdist lacks $file" >&2; exit 1; }
done
if grep -E '^[^/]*/(\.venv|build|results|\.git)/' "$work/listed"; then
    echo "the sdist holds files that are not the project's" >&2
    exit 1
fi

"$("$python" -c 'import sys; print(sys.executable if sys.prefix == sys.base_prefix else sys._base_executable)')" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" "$wheel[experiments,ax]"

cd "$work"  # nothing of the checkout is importable here
unset PYTHONPATH
"$work/venv/bin/python" - <<'PYTHON'
import importlib
import importlib.metadata
import pkgutil

import torchbandits as tb

assert "site-packages" in tb.__file__, tb.__file__
assert importlib.metadata.version("torchbandits") == tb.__version__
modules = [info.name for info in pkgutil.walk_packages(tb.__path__, "torchbandits.") if not info.name.endswith("__main__")]
for module in modules:
    importlib.import_module(module)
print(f"torchbandits {tb.__version__}: {len(modules)} modules imported from the wheel")
PYTHON
"$work/venv/bin/torchbandits" reproduce --list > "$work/figures"
grep -q bbkb-fig1 "$work/figures"
"$work/venv/bin/torchbandits" run quickstart --output "$work/quickstart" ${QUICKSTART_OPTIONS:-} > "$work/quickstart.log" 2>&1 \
    || { cat "$work/quickstart.log" >&2; exit 1; }
"$work/venv/bin/torchbandits" report "$work/quickstart" --output "$work/quickstart/report.html"
# The benchmarks are only in the repository, and the deprecated command says so.
"$work/venv/bin/torchbandits" bench cpu.yaml 2> "$work/bench.log" && exit 1
grep -q "scripts/benchmarks/bench.py" "$work/bench.log"
test -s "$work/quickstart/report.html" && test -s "$work/quickstart/table.md" && test -s "$work/quickstart/headline.png"
echo "the wheel runs the quickstart: $(basename "$wheel")"
