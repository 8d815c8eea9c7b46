"""Dense oracle of CUB: every kept pull is a row of a t x t matrix, and all scores and tests are recomputed at each step.

Shares no code with the package. Section 3 of the algorithms sheet, "CUB / COB".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import oracles
import scipy.special
from oracles import Array, KernelFunction


def entropy(variance: float, lam: float) -> float:
    """The entropy of a reward, nats: ½ log(2πe(λ + variance)), with the posterior variance and the noise variance λ."""
    return 0.5 * math.log(2 * math.pi * math.e * (lam + variance))


def least_leverage(threshold: float, lam: float) -> float:
    """The leverage τ at which the entropy equals the threshold."""
    return math.exp(2 * threshold) / (2 * math.pi * math.e * lam) - 1


def threshold_of(leverage: float, lam: float) -> float:
    """The entropy ε of a reward at this leverage."""
    return entropy(leverage * lam, lam)


def log_expected_improvement(mean: Array, std: Array, level: float) -> Array:
    """log of σ(φ(z) + zΦ(z)), z = (μ − level)/σ, accurate far below 0: there Φ/φ = √(π/2) erfcx(−z/√2)."""
    z = (mean - level) / std
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        plain = np.log(np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) + z * scipy.special.ndtr(z))
        ratio = math.sqrt(math.pi / 2) * scipy.special.erfcx(-z / math.sqrt(2))
        tail = -0.5 * z**2 - 0.5 * math.log(2 * math.pi) + np.log1p(z * ratio)
        far = -0.5 * z**2 - 0.5 * math.log(2 * math.pi) - 2 * np.log(np.abs(z))
    return np.log(std) + np.where(z > -1, plain, np.where(z > -1e4, tail, far))


def log_probability_of_improvement(mean: Array, std: Array, level: float) -> Array:
    """log Φ(z)."""
    return scipy.special.log_ndtr((mean - level) / std)


IMPROVEMENTS = {"ei": log_expected_improvement, "pi": log_probability_of_improvement}


@dataclass
class Compressed:
    """One run of CUB, compressed EI or compressed PI.

    Args:
        acquisition: "ucb" (with Srinivas' width), "ei" or "pi".
        threshold: ε, nats.
        margin: Level that an improvement must exceed, reward units.
    """

    arms: Array
    kernel: KernelFunction
    lam: float
    threshold: float
    acquisition: str = "ucb"
    margin: float = 0.0
    delta: float = 0.1
    kept: list[tuple[int, float]] = field(default_factory=list)
    told: int = 0

    def __post_init__(self) -> None:
        self.copies = oracles.first_copies(self.arms)
        self.k_diag = oracles.diagonal(self.kernel, self.arms)
        K_aa = self.kernel(self.arms, self.arms)
        self.K_aa = K_aa[self.copies][:, self.copies]

    def posterior(self) -> oracles.Posterior:
        pulled = [arm for arm, _ in self.kept]
        rewards = np.array([reward for _, reward in self.kept])
        return oracles.exact_posterior(self.K_aa[np.ix_(pulled, pulled)], self.K_aa[pulled], self.k_diag, rewards, self.lam)

    def scores(self) -> Array:
        state = self.posterior()
        std = np.sqrt(np.maximum(state.variance, 0))
        if self.acquisition == "ucb":
            return state.mean + oracles.width_srinivas(self.told + 1, len(self.arms), self.delta) * std
        level = float(state.mean.max()) + self.margin
        return IMPROVEMENTS[self.acquisition](state.mean, std, level)

    def pick(self) -> int:
        """The best arm, by the lowest index among its copies."""
        return oracles.argmax(self.scores(), self.copies == np.arange(len(self.arms)))

    def tell(self, arm: int, reward: float) -> bool:
        """Tell one pull, and return whether it is kept."""
        self.told += 1
        arm = int(self.copies[arm])
        informative = entropy(float(self.posterior().variance[arm]), self.lam) > self.threshold
        if informative:
            self.kept.append((arm, reward))
        return informative

    def observe(self, arm: int, count: int, total: float) -> int:
        """Tell `count` pulls of one arm one after the other, each with the average reward; return the number of kept pulls."""
        return sum(self.tell(arm, total / count) for _ in range(count))

    def counts(self) -> Array:
        """Number of kept pulls of each arm."""
        return np.bincount([arm for arm, _ in self.kept], minlength=len(self.arms)).astype(float)

    def sums(self) -> Array:
        """Sum of the kept rewards of each arm."""
        return np.bincount([arm for arm, _ in self.kept], weights=[reward for _, reward in self.kept], minlength=len(self.arms))
