"""Figure 1 of the BKB paper: what four posteriors say where there are no data, as the data pile up elsewhere.

    python scripts/variance_starvation.py [--figure docs/variance_starvation.png] [--seed 0]

f ~ GP(0, RBF of length-scale 0.02) on [0, 1]; 6, 63 and 215 noisy evaluations, all in [0, ½]; mean ± 3 standard deviations of
the exact posterior, of DTC on a dictionary sampled by BKB, of SoR (the same dictionary, the residual dropped: no policy of the
package uses it) and of 64 random Fourier features, as many as that dictionary has at the end.

Prints, for [½ + 3 length-scales, 1] where the data say next to nothing, the least share of the prior variance that each keeps,
and the share of points where f is outside its band.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import gpytorch
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import torchbandits as tb
from torchbandits.policies import Policy

LENGTHSCALE, NOISE_STD, PULLS, FEATURES = 0.02, 0.1, (6, 63, 215), 64
LAM = NOISE_STD**2
COLORS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7")  # Okabe and Ito's
Predict = Callable[[Tensor], tb.Marginals]


def rbf() -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = LENGTHSCALE
    return kernel.requires_grad_(False)


def gram(left: Tensor, right: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((left - right.mT) / LENGTHSCALE) ** 2)


def told(policy: Policy, x: Tensor, y: Tensor, seed: int) -> tb.Bandit:
    """A bandit that was told every evaluation, one at a time."""
    bandit = tb.Bandit(policy, x, generator=torch.Generator().manual_seed(seed))
    for i in range(len(y)):
        bandit.tell(torch.tensor([i]), y[i : i + 1])
    return bandit


def subset_of_regressors(dictionary: Tensor, x: Tensor, y: Tensor) -> Predict:
    """Mean k_S(x)ᵀ(K_Su K_uS + λK_S)⁻¹K_Su y and variance λ k_S(x)ᵀ(K_Su K_uS + λK_S)⁻¹k_S(x)."""
    K_ss, K_su = gram(dictionary, dictionary), gram(dictionary, x)
    factor = torch.linalg.cholesky(K_su @ K_su.mT + LAM * K_ss + 1e-10 * torch.eye(len(dictionary), dtype=x.dtype))

    def predict(points: Tensor) -> tb.Marginals:
        K_sp = gram(dictionary, points)
        solved = torch.cholesky_solve(K_sp, factor)
        return tb.Marginals(solved.mT @ (K_su @ y), LAM * (K_sp * solved).sum(dim=0))

    return predict


def posteriors(x: Tensor, y: Tensor, seed: int) -> tuple[dict[str, Predict], Tensor]:
    """The four, and the dictionary of the second and third."""
    sampled = told(tb.bkb(rbf(), noise_std=NOISE_STD, oversampling=2.0), x, y, seed)
    dictionary = x[sampled.dictionary]
    bandits = {
        "exact GP": told(tb.gp_ucb(rbf(), noise_std=NOISE_STD), x, y, seed),
        "DTC (BKB)": sampled,
        "RFF": told(tb.rff_ucb(rbf(), noise_std=NOISE_STD, num_features=FEATURES), x, y, seed),
    }
    found: dict[str, Predict] = {name: bandit.posterior for name, bandit in bandits.items()}
    found["SoR"] = subset_of_regressors(dictionary, x, y)
    return found, dictionary


def draw_panel(
    name: str, axes: Axes, grid: Tensor, f: Tensor, predict: Predict, data: tuple[Tensor, Tensor], color: str
) -> str:
    """One posterior; returns the least of its variance far from the data, and how often f is outside the band there."""
    marginals = predict(grid)
    mean, variance = marginals.mean.detach(), marginals.variance.detach()
    x, half = grid.squeeze(-1), 3 * variance.clamp_min(0).sqrt()
    axes.axvspan(0, 0.5, color="0.95", linewidth=0)
    axes.fill_between(x, mean - half, mean + half, color=color, alpha=0.25, linewidth=0, label="mean ± 3σ")
    axes.plot(x, mean, color=color, linewidth=1.3, label="mean")
    axes.plot(x, f, color="black", linewidth=0.9, linestyle="--", label="f")
    axes.plot(data[0].squeeze(-1), data[1], ".", color="0.35", markersize=2.5, label="evaluations")
    far = x >= 0.5 + 3 * LENGTHSCALE
    missed = ((f - mean).abs() > half)[far].double().mean()
    return f"{name}: {float(variance[far].min()):.3f}, {float(missed):.0%} outside"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, default=Path("docs/variance_starvation.png"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(arguments.seed)
    grid = torch.linspace(0, 1, 401, dtype=torch.float64).unsqueeze(-1)
    x = 0.5 * torch.rand(PULLS[-1], 1, generator=generator, dtype=torch.float64)
    both = torch.cat([x, grid])
    values, vectors = torch.linalg.eigh(gram(both, both))
    drawn = torch.randn(len(both), generator=generator, dtype=torch.float64)
    draw = vectors @ (values.clamp_min(0).sqrt() * drawn)
    f = draw[len(x) :]
    y = draw[: len(x)] + NOISE_STD * torch.randn(len(x), generator=generator, dtype=torch.float64)

    columns = ("exact GP", "DTC (BKB)", "SoR", "RFF")
    figure = Figure(figsize=(10, 6.2), layout="constrained")
    panels = figure.subplots(len(PULLS), len(columns), sharex=True, sharey=True)
    for row, pulls in enumerate(PULLS):
        found, dictionary = posteriors(x[:pulls], y[:pulls], arguments.seed)
        facts = []
        for column, name in enumerate(columns):
            axes = panels[row, column]
            facts.append(draw_panel(name, axes, grid, f, found[name], (x[:pulls], y[:pulls]), COLORS[column]))
            if name in ("DTC (BKB)", "SoR"):
                ticks = dictionary.squeeze(-1)
                axes.plot(ticks, torch.full_like(ticks, -4.7), "|", color="black", markersize=6, label="dictionary")
            if row == 0:
                axes.set_title(f"{name}, {FEATURES} features" if name == "RFF" else name, fontsize="medium")
            if column == 0:
                axes.set_ylabel(f"{pulls} evaluations\nreward (prior std = 1)")
            if row == len(PULLS) - 1:
                axes.set_xlabel("x")
            axes.set_xlim(0, 1)
            axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
            axes.set_ylim(-5, 5)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        print(f"{pulls} evaluations, dictionary {len(dictionary)}: least variance beyond ½ + 3ℓ of {'; '.join(facts)}")
    handles, labels = panels[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.figure, dpi=85, pil_kwargs={"optimize": True})
    print(f"written: {arguments.figure}")


if __name__ == "__main__":
    main()
