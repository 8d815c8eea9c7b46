"""Dense evidence of all single rewards under a Gaussian process, with t x t matrices in NumPy, without sums over points."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray


def dense_log_evidence(K_tt: Array, rewards: Array, noise_variance: float, prior_mean: float = 0.0) -> float:
    """log N(y; μ₀ 1, K + σ² I) from the kernel matrix of all pulls, by eigenvalues."""
    values, vectors = np.linalg.eigh(K_tt)
    spread = np.maximum(values, 0) + noise_variance
    projected = vectors.T @ (rewards - prior_mean)
    return float(-0.5 * ((projected**2 / spread).sum() + np.log(spread).sum() + len(rewards) * math.log(2 * math.pi)))


def dense_collapsed_evidence(K_tt: Array, inducing: Array, rewards: Array, noise_variance: float) -> float:
    """Titsias' bound: the evidence with K replaced by its Nyström approximation Q on the pulls `inducing`, minus
    tr(K − Q)/(2σ²)."""
    Q = K_tt[:, inducing] @ np.linalg.pinv(K_tt[np.ix_(inducing, inducing)], rcond=1e-14) @ K_tt[inducing, :]
    return dense_log_evidence((Q + Q.T) / 2, rewards, noise_variance) - float(np.trace(K_tt - Q)) / (2 * noise_variance)


def written_out(points: Array, counts: Array, rng: np.random.Generator, f: Array, noise_std: float) -> tuple[Array, Array]:
    """Draw single pulls with their rewards: points `t x d` and rewards `t`."""
    x = np.repeat(points, counts, axis=0)
    return x, np.repeat(f, counts) + noise_std * rng.normal(size=len(x))


def summed(rewards: Array, counts: Array) -> tuple[Array, Array]:
    """Sums and sums of squares of the rewards of each point; the pulls of a point are consecutive."""
    parts = np.split(rewards, np.cumsum(counts)[:-1])
    return np.array([p.sum() for p in parts]), np.array([(p**2).sum() for p in parts])


def graph_collapsed_evidence(
    K_mu: Tensor, diagonal: Tensor, spread: Tensor, averages: Tensor, inducing: Tensor, jitter: float = 0.0
) -> Tensor:
    """Titsias' bound for averages with these noise variances, as a graph of operations that autograd differentiates."""
    K_mm, eye = K_mu[:, inducing], torch.eye(len(inducing), dtype=torch.float64)
    V = torch.linalg.solve_triangular(torch.linalg.cholesky(K_mm + jitter * K_mm.diagonal().amax() * eye), K_mu, upper=False)
    C, scaled = V / spread.sqrt(), averages / spread.sqrt()
    factor = torch.linalg.cholesky(eye + C @ C.mT)
    half = torch.linalg.solve_triangular(factor, (C @ scaled).unsqueeze(-1), upper=False)
    normal = scaled.square().sum() - half.square().sum() + 2 * factor.diagonal().log().sum() + spread.log().sum()
    missed = ((diagonal - V.square().sum(dim=0)) / spread).sum()
    return -0.5 * (normal + missed + len(spread) * math.log(2 * math.pi))
