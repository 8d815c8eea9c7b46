"""Every Python block of the README runs, in order, in one fresh interpreter, as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
# Only the diagnostic warning about a deliberately wrong model is not an error.
BEFORE = """
import warnings
import torch
from torchbandits.errors import DiagnosticWarning

warnings.simplefilter("error")
warnings.simplefilter("ignore", DiagnosticWarning)
torch.manual_seed(0)
"""


def test_the_blocks_of_the_readme_run_in_order(tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    script = tmp_path / "readme.py"
    script.write_text(BEFORE + "\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=3600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Recommendation" in done.stdout
