"""Oracles of the diagnostics: dense refits and direct sums in float64 NumPy, without code of the package."""

from __future__ import annotations

import math

import numpy as np


def left_out(
    K: np.ndarray, n: np.ndarray, average: np.ndarray, lam: float, dictionary: np.ndarray | None = None, mean: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of f at every point, predicted without the pulls of that point, by the exact posterior or by FITC on a
    fixed dictionary (indices of points)."""
    Q = K if dictionary is None else nystrom(K, dictionary) @ nystrom(K, dictionary).T
    whole = Q + np.diag(np.diag(K - Q)) + lam * np.diag(1 / n)
    mu, variance = np.empty(len(n)), np.empty(len(n))
    for i in range(len(n)):
        others = np.delete(np.arange(len(n)), i)
        M, k = whole[np.ix_(others, others)], Q[others, i]
        mu[i] = mean + k @ np.linalg.solve(M, average[others] - mean)
        variance[i] = K[i, i] - k @ np.linalg.solve(M, k)
    return mu, variance


def nystrom(K: np.ndarray, dictionary: np.ndarray) -> np.ndarray:
    """Features of all points, one row each: K_uS K_S^{-1/2} by eigenvectors."""
    values, vectors = np.linalg.eigh(K[np.ix_(dictionary, dictionary)])
    good = values > 1e-12 * values.max()
    return K[:, dictionary] @ vectors[:, good] / np.sqrt(values[good])


def linear(Z: np.ndarray, n: np.ndarray, average: np.ndarray, lam: float, z: np.ndarray) -> tuple[float, float]:
    """Mean and variance of zᵀw under w ~ N(0, I) given averages of n rewards of noise variance λ."""
    V = Z.T @ (n[:, None] * Z) + lam * np.eye(Z.shape[1])
    return z @ np.linalg.solve(V, Z.T @ (n * average)), lam * z @ np.linalg.solve(V, z)


def left_out_effective_size(M: np.ndarray) -> float:
    """n²/Σρ² of the left-out residuals of averages with covariance M. The residuals are a linear map of the averages, whose
    covariance gives ρ."""
    u = len(M)
    residual_of = np.eye(u)
    for i in range(u):
        others = np.delete(np.arange(u), i)
        residual_of[i, others] = -np.linalg.solve(M[np.ix_(others, others)], M[others, i])
    return effective_size(residual_of @ M @ residual_of.T)


def effective_size(covariance: np.ndarray) -> float:
    std = np.sqrt(np.diag(covariance))
    rho = covariance / np.outer(std, std)
    return len(std) ** 2 / (rho**2).sum()


def posterior(K: np.ndarray, n: np.ndarray, average: np.ndarray, lam: float, K_hu: np.ndarray, K_hh: np.ndarray):
    """Exact mean and covariance at other points."""
    M = K + lam * np.diag(1 / n)
    return K_hu @ np.linalg.solve(M, average), K_hh - K_hu @ np.linalg.solve(M, K_hu.T)


def effective_dimension(K: np.ndarray, n: np.ndarray, lam: float) -> float:
    return float(np.trace(K @ np.linalg.inv(K + lam * np.diag(1 / n))))


def binomial_band(size: int, p: float, alarm: float) -> tuple[float, float]:
    """Quantiles of a binomial by summing its probabilities."""
    total, lower, upper = 0.0, None, 1.0
    for k in range(size + 1):
        total += math.comb(size, k) * p**k * (1 - p) ** (size - k)
        if lower is None and total >= alarm / 2:
            lower = k / size
        if total >= 1 - alarm / 2:
            upper = k / size
            break
    assert lower is not None
    return lower, upper


def indicator_correlation(c: float, rho: float) -> float:
    """The correlation of the events |z| ≤ c and |z'| ≤ c for standard normals of correlation ρ, by quadrature."""
    x = np.linspace(-c, c, 4001)
    phi = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    cdf = np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))
    s = math.sqrt(1 - rho**2)
    inner = phi * (cdf((c - rho * x) / s) - cdf((-c - rho * x) / s))
    both = float(((inner[1:] + inner[:-1]) / 2).sum() * (x[1] - x[0]))
    p = math.erf(c / math.sqrt(2))
    return (both - p * p) / (p * (1 - p))
