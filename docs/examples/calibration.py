"""Calibration of GP-UCB with the right lengthscale and with one that is ten times too long.

    python docs/examples/calibration.py [--figure docs/calibration.png] [--seed 0]

A function drawn from GP(0, RBF of length-scale 0.1) on 300 arms in [0, 1], noise 0.2; GP-UCB makes 150 pulls after 30 drawn
uniformly, and 200 rewards of arms drawn uniformly are held out. Prints the report of both.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import gpytorch
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import torchbandits as tb
from torchbandits.diagnostics import Calibration
from torchbandits.diagnostics.calibration import draw_coverage, draw_residuals

ARMS, PULLS, HELD_OUT, NOISE_STD, LENGTHSCALE = 300, 150, 200, 0.2, 0.1


def rbf(lengthscale: float) -> gpytorch.kernels.Kernel:
    """An RBF kernel with fixed lengthscale."""
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel.requires_grad_(False)


def calibrated(lengthscale: float, seed: int) -> Calibration:
    """One run under a kernel of this lengthscale, and its held-out rewards. Prints the report."""
    generator = torch.Generator().manual_seed(seed)
    arms = torch.linspace(0, 1, ARMS, dtype=torch.float64).unsqueeze(-1)
    values, vectors = torch.linalg.eigh(rbf(LENGTHSCALE)(arms).to_dense())
    f = vectors @ (values.clamp_min(0).sqrt() * torch.randn(ARMS, generator=generator, dtype=torch.float64))

    def rewards(index: torch.Tensor) -> torch.Tensor:
        return f[index] + NOISE_STD * torch.randn(index.shape, generator=generator, dtype=torch.float64)

    policy = tb.gp_ucb(rbf(lengthscale), noise_std=NOISE_STD, initial=tb.starts.uniform(30))
    bandit = tb.Bandit(policy, arms, generator=torch.Generator().manual_seed(seed))
    while int(bandit.pulls) < PULLS:
        selection = bandit.ask()
        bandit.tell(selection, rewards(selection.index))
    held_out = torch.randint(ARMS, (HELD_OUT,), generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tb.errors.DiagnosticWarning)  # the report has them
        report = tb.diagnostics.diagnose(bandit, held_out=(held_out, rewards(held_out)))
    print(f"lengthscale {lengthscale:g} (the function's is {LENGTHSCALE:g}): {report}\n")
    part = report.parts["Held-out rewards"]
    assert isinstance(part, Calibration)
    return part


def main() -> None:
    """Print both reports and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, default=Path("docs/calibration.png"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    figure = Figure(figsize=(9.2, 8.2), layout="constrained")
    figure.get_layout_engine().set(hspace=0.06)
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2)
    for (left, right), factor, word in zip(panels, (1, 10), ("right", "10 times too long"), strict=True):
        record = calibrated(factor * LENGTHSCALE, arguments.seed)
        draw_coverage(left, record, ())
        draw_residuals(right, record, ())
        left.set_title(f"lengthscale {word}: {HELD_OUT} held-out rewards", fontsize="medium")
    legends = [axes.get_legend_handles_labels() for axes in panels[0]]
    handles, labels = ([item for legend in legends for item in legend[k]] for k in (0, 1))
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize="small")
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.figure, dpi=85, pil_kwargs={"optimize": True})
    print(f"written: {arguments.figure}")


if __name__ == "__main__":
    main()
