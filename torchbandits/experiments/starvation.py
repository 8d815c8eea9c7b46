"""Variance starvation: four posteriors in a region without data, as data accumulate elsewhere.

f ~ GP(0, RBF) on [0, 1], all noisy evaluations in [0, ½]: the exact posterior, DTC on a dictionary sampled by BKB, SoR (the
same dictionary, the residual dropped: no policy of the package uses it) and random Fourier features. Source: Calandriello et
al. 2019, figure 1.
"""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.experiments.measures import t_interval
from torchbandits.experiments.reproduction import StarvationConfig
from torchbandits.policies import Policy, bkb, gp_ucb, rff_ucb
from torchbandits.types import Marginals

Predict = Callable[[Tensor], Marginals]
Facts = dict[tuple[str, str, str], list[float]]

POINTS = 401
DEVIATIONS = 3.0  # half-width of the bands
EXACT, DTC, SOR, RFF = "exact GP", "DTC (BKB)", "SoR", "RFF"


def study(config: StarvationConfig, repetitions: int) -> tuple[pd.DataFrame, Facts]:
    """The lines of a summary's table, with one experiment per number of evaluations and length-scale, and the values of all
    repetitions by experiment, policy and measure.

    Measures: `posterior`, mean and three standard deviations over x in the first repetition, beside `f` and `evaluations`;
    `variance_kept`, the smallest share of the prior variance kept beyond ½ + 3 length-scales, and `outside`, the fraction of
    points there at which f is outside the band, both over all repetitions.
    """
    parts: list[pd.DataFrame] = []
    facts: Facts = {}
    for lengthscale in (config.lengthscale, *config.others):
        one = config.model_copy(update={"lengthscale": lengthscale})
        suffix = "" if lengthscale == config.lengthscale else f", ℓ = {lengthscale:g}"
        for repetition in range(repetitions):
            parts += _repetition(one, repetition, suffix, facts)
    for (experiment, policy, measure), values in facts.items():
        low, mean, high = t_interval(np.array(values))
        line = {"x": 0.0, "mean": mean, "low": low, "high": high, "repetitions": repetitions}
        parts.append(pd.DataFrame([{"experiment": experiment, "policy": policy, "measure": measure} | line]))
    return pd.concat(parts, ignore_index=True), facts


def _repetition(config: StarvationConfig, repetition: int, suffix: str, facts: Facts) -> list[pd.DataFrame]:
    """Add the values of one repetition to `facts`; returns the curves of the first one, at the first length-scale."""
    parts, shown = [], repetition == 0 and not suffix
    grid, f, x, y = _draw(config, config.seed + repetition)
    far = grid.squeeze(-1) >= 0.5 + 3 * config.lengthscale
    for count in config.evaluations:
        experiment = f"{count} evaluations{suffix}"
        for name, predict in posteriors(config, x[:count], y[:count], config.seed + repetition).items():
            marginals = predict(grid)
            mean = marginals.mean.detach()
            half = DEVIATIONS * marginals.variance.detach().clamp_min(0).sqrt()
            kept = float((half[far] / DEVIATIONS).square().min())
            facts.setdefault((experiment, name, "variance_kept"), []).append(kept)
            outside = float(((f - mean).abs() > half)[far].double().mean())
            facts.setdefault((experiment, name, "outside"), []).append(outside)
            if shown:
                parts.append(_lines(experiment, name, grid, mean - half, mean, mean + half))
        if shown:
            parts.append(_lines(experiment, "f", grid, f, f, f))
            parts.append(_lines(experiment, "evaluations", x[:count], y[:count], y[:count], y[:count]))
    return parts


def posteriors(config: StarvationConfig, x: Tensor, y: Tensor, seed: int) -> dict[str, Predict]:
    """The four posteriors, given `n x 1` evaluated points and `n` rewards."""
    noise = config.noise_std
    sampled = _told(bkb(_rbf(config), noise_std=noise, oversampling=config.oversampling), x, y, seed)
    return {
        EXACT: _told(gp_ucb(_rbf(config), noise_std=noise), x, y, seed).posterior,
        DTC: sampled.posterior,
        SOR: subset_of_regressors(config, x[sampled.dictionary], x, y),
        RFF: _told(rff_ucb(_rbf(config), noise_std=noise, num_features=config.features), x, y, seed).posterior,
    }


def subset_of_regressors(config: StarvationConfig, dictionary: Tensor, x: Tensor, y: Tensor) -> Predict:
    """Mean k_S(x)ᵀ(K_Su K_uS + λK_S)⁻¹K_Su y and variance λ k_S(x)ᵀ(K_Su K_uS + λK_S)⁻¹k_S(x)."""
    lam = config.noise_std**2
    K_ss, K_su = _gram(config, dictionary, dictionary), _gram(config, dictionary, x)
    factor = torch.linalg.cholesky(K_su @ K_su.mT + lam * K_ss + 1e-10 * torch.eye(len(dictionary), dtype=x.dtype))

    def predict(points: Tensor) -> Marginals:
        K_sp = _gram(config, dictionary, points)
        solved = torch.cholesky_solve(K_sp, factor)
        return Marginals(solved.mT @ (K_su @ y), lam * (K_sp * solved).sum(dim=0))

    return predict


def _draw(config: StarvationConfig, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A grid, f on it, all evaluated points and their rewards."""
    generator = torch.Generator().manual_seed(seed)
    grid = torch.linspace(0, 1, POINTS, dtype=torch.float64).unsqueeze(-1)
    count = max(config.evaluations)
    x = 0.5 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    both = torch.cat([x, grid])
    values, vectors = torch.linalg.eigh(_gram(config, both, both))
    drawn = torch.randn(len(both), generator=generator, dtype=torch.float64)
    draw = vectors @ (values.clamp_min(0).sqrt() * drawn)
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    return grid, draw[count:], x, draw[:count] + config.noise_std * noise


def _told(policy: Policy, x: Tensor, y: Tensor, seed: int) -> Bandit:
    """A bandit after `tell` of every evaluation, one at a time."""
    bandit = Bandit(policy, x, generator=torch.Generator().manual_seed(seed))
    for i in range(len(y)):
        bandit.tell(torch.tensor([i]), y[i : i + 1])
    return bandit


def _rbf(config: StarvationConfig) -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.RBFKernel().double()
    # A tensor, because GPyTorch rounds a Python number to float32.
    kernel.lengthscale = torch.tensor(config.lengthscale, dtype=torch.float64)
    return kernel.requires_grad_(False)


def _gram(config: StarvationConfig, left: Tensor, right: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((left - right.mT) / config.lengthscale) ** 2)


def _lines(experiment: str, policy: str, x: Tensor, low: Tensor, mean: Tensor, high: Tensor) -> pd.DataFrame:
    values = {"x": x.squeeze(-1), "mean": mean, "low": low, "high": high}
    columns = {name: value.detach().numpy() for name, value in values.items()}
    fixed = {"experiment": experiment, "policy": policy, "measure": "posterior", "repetitions": 1}
    return pd.DataFrame(columns | fixed)
