"""Slow, dense, float64 oracles that share no code with the package: numpy, scipy, plain loops, and the formulas of the papers.

Letters: `u` distinct pulled arms, `t` pulls, `a` arms, `m` dictionary points, `n` counts, `s` reward sums, `lam` the ridge λ.
Kernel matrices are named by their dimensions: K_ua is `u x a`. Leverage is posterior variance divided by λ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg

EPS = np.finfo(np.float64).eps
Array = np.ndarray
KernelFunction = Callable[[Array, Array], Array]

# ---------------------------------------------------------------------------------------------------------- kernels


def distances(x: Array, y: Array, lengthscale: float | Array = 1.0) -> Array:
    """Euclidean distances from differences, without the expansion into squared norms, so without cancellation."""
    out = np.empty((len(x), len(y)))
    for j in range(len(y)):
        out[:, j] = np.sqrt((((x - y[j]) / lengthscale) ** 2).sum(axis=1))
    return out


def rbf(lengthscale: float | Array = 1.0, outputscale: float = 1.0) -> KernelFunction:
    return lambda x, y: outputscale * np.exp(-0.5 * distances(x, y, lengthscale) ** 2)


def matern(nu: float, lengthscale: float | Array = 1.0, outputscale: float = 1.0) -> KernelFunction:
    def kernel(x: Array, y: Array) -> Array:
        r = math.sqrt(2 * nu) * distances(x, y, lengthscale)
        if nu == 0.5:
            polynomial = np.ones_like(r)
        elif nu == 1.5:
            polynomial = 1 + r
        elif nu == 2.5:
            polynomial = 1 + r + r**2 / 3
        else:
            raise ValueError(f"nu is 1/2, 3/2 or 5/2, got {nu}")
        return outputscale * polynomial * np.exp(-r)

    return kernel


def linear(variance: float = 1.0) -> KernelFunction:
    return lambda x, y: variance * (x[:, None, :] * y[None, :, :]).sum(-1)


def diagonal(kernel: KernelFunction, x: Array) -> Array:
    return np.array([kernel(x[i : i + 1], x[i : i + 1])[0, 0] for i in range(len(x))])


# ------------------------------------------------------------------------------------------------------- posteriors


@dataclass
class Posterior:
    mean: Array
    variance: Array
    covariance: Array | None = None


def exact_posterior(K_tt: Array, K_ta: Array, k_aa_diag: Array, y: Array, lam: float, K_aa: Array | None = None) -> Posterior:
    """k(x,x) − kᵀ(K_t + λI)⁻¹k and kᵀ(K_t + λI)⁻¹y, with one row per pull: a repeated pull is a repeated row."""
    if len(y) == 0:
        return Posterior(np.zeros(len(k_aa_diag)), k_aa_diag.copy(), None if K_aa is None else K_aa.copy())
    L = np.linalg.cholesky(K_tt + lam * np.eye(len(y)))
    half = scipy.linalg.solve_triangular(L, K_ta, lower=True)
    mean = half.T @ scipy.linalg.solve_triangular(L, y, lower=True)
    covariance = None if K_aa is None else K_aa - half.T @ half
    return Posterior(mean, k_aa_diag - (half**2).sum(0), covariance)


def exact_posterior_from_sums(
    K_uu: Array, K_ua: Array, k_aa_diag: Array, n: Array, s: Array, lam: float, K_aa: Array | None = None
) -> Posterior:
    """The exact posterior from counts and sums: the average of n_i rewards has noise λ/n_i. Counts may be any positive
    floats."""
    if len(n) == 0:
        return Posterior(np.zeros(len(k_aa_diag)), k_aa_diag.copy(), None if K_aa is None else K_aa.copy())
    root_n = np.sqrt(n)
    # (K + λ/n)⁻¹ = √n (√n K √n + λ)⁻¹ √n, which is symmetric and stable for counts of any size.
    L = np.linalg.cholesky(root_n[:, None] * K_uu * root_n + lam * np.eye(len(n)))
    half = scipy.linalg.solve_triangular(L, root_n[:, None] * K_ua, lower=True)
    mean = half.T @ scipy.linalg.solve_triangular(L, s / root_n, lower=True)
    covariance = None if K_aa is None else K_aa - half.T @ half
    return Posterior(mean, k_aa_diag - (half**2).sum(0), covariance)


def pseudo_root(K_mm: Array, rcond: float | None = None) -> Array:
    """R with RᵀR = K⁺, `rank x m`, from the eigenvalues above rcond (default m·eps) times the largest."""
    values, vectors = np.linalg.eigh(K_mm)
    keep = values > (len(K_mm) * EPS if rcond is None else rcond) * values.max()
    return (vectors[:, keep] / np.sqrt(values[keep])).T


@dataclass
class Nystrom:
    """DTC posterior with its features `Z_am` (`a x rank`) and V: `mean = zᵀw`, `leverage = r/λ + zᵀV⁻¹z`."""

    mean: Array
    variance: Array
    leverage: Array
    residual: Array
    Z_am: Array
    V: Array
    lam: float
    K_aa: Array | None = None

    def feature_covariance(self, rows: Array, columns: Array) -> Array:
        """c(x, x') = z(x)ᵀV⁻¹z(x')."""
        return self.Z_am[rows] @ np.linalg.solve(self.V, self.Z_am[columns].T)

    def covariance(self, rows: Array, columns: Array) -> Array:
        """k̃(x, x') = (k(x,x') − z(x)ᵀz(x'))/λ + z(x)ᵀV⁻¹z(x'): leverage units. Needs K_aa."""
        assert self.K_aa is not None
        cross = self.K_aa[np.ix_(rows, columns)] - self.Z_am[rows] @ self.Z_am[columns].T
        return cross / self.lam + self.feature_covariance(rows, columns)

    def given_pulls(self, columns: Array, counts: Array) -> Array:
        """Variance of every arm after the process k̃ is conditioned on `counts` noisy pulls of some arms, with one row per pull
        in a dense system. Needs K_aa."""
        rows = np.repeat(np.asarray(columns, dtype=int), np.asarray(counts, dtype=int))
        everything = np.arange(len(self.leverage))
        k_pa = self.covariance(rows, everything)
        K_pp = self.covariance(rows, rows)
        return self.lam * (self.leverage - (k_pa * np.linalg.solve(np.eye(len(rows)) + K_pp, k_pa)).sum(0))


def nystrom_posterior(
    K_mm: Array,
    K_mu: Array,
    K_ma: Array,
    k_aa_diag: Array,
    n: Array,
    s: Array,
    lam: float,
    *,
    pending: Array | None = None,
    K_aa: Array | None = None,
    rcond: float | None = None,
) -> Nystrom:
    """Posterior with features by the pseudo-inverse root; `pending` (`u`, counts) changes the leverage, not the mean."""
    if len(K_mm) == 0:
        zeros = np.zeros((len(k_aa_diag), 0))
        return Nystrom(
            np.zeros(len(k_aa_diag)),
            k_aa_diag.copy(),
            k_aa_diag / lam,
            k_aa_diag.copy(),
            zeros,
            np.zeros((0, 0)),
            lam,
            K_aa,
        )
    R = pseudo_root(K_mm, rcond)
    Z_um = (R @ K_mu).T
    Z_am = (R @ K_ma).T
    eye = np.eye(len(R))
    V_told = Z_um.T @ (n[:, None] * Z_um) + lam * eye
    w = np.linalg.solve(V_told, Z_um.T @ s)
    weights = n if pending is None else n + pending
    V = Z_um.T @ (weights[:, None] * Z_um) + lam * eye
    L = np.linalg.cholesky(V)
    half = scipy.linalg.solve_triangular(L, Z_am.T, lower=True)
    residual = k_aa_diag - (Z_am**2).sum(1)
    leverage = residual / lam + (half**2).sum(0)
    return Nystrom(Z_am @ w, lam * leverage, leverage, residual, Z_am, V, lam, K_aa)


def sor_variance(K_mm: Array, K_mu: Array, K_ma: Array, n: Array, lam: float) -> Array:
    """Variance of the subset of regressors, which drops the residual. Used only to show variance starvation."""
    R = pseudo_root(K_mm)
    Z_um, Z_am = (R @ K_mu).T, (R @ K_ma).T
    V = Z_um.T @ (n[:, None] * Z_um) + lam * np.eye(len(R))
    return lam * (Z_am * np.linalg.solve(V, Z_am.T).T).sum(1)


# ------------------------------------------------------------------------------------------- information, dimension


def log_det(K_uu: Array, n: Array, lam: float) -> float:
    """log det(I + K_t/λ), over every pull, from counts."""
    if len(n) == 0:
        return 0.0
    root_n = np.sqrt(n)
    return float(np.linalg.slogdet(np.eye(len(n)) + root_n[:, None] * K_uu * root_n / lam)[1])


def effective_dimension(K_uu: Array, n: Array, lam: float) -> float:
    """Σ_s lev_T(x_s) = tr K_T(K_T + λI)⁻¹, over every pull, from counts."""
    if len(n) == 0:
        return 0.0
    root_n = np.sqrt(n)
    K = root_n[:, None] * K_uu * root_n
    return float(np.trace(np.linalg.solve(K + lam * np.eye(len(n)), K)))


# ---------------------------------------------------------------------------- widths: each multiplies the posterior std


def width_srinivas(t: int, num_arms: int, delta: float) -> float:
    return math.sqrt(2 * math.log(num_arms * t**2 * math.pi**2 / (6 * delta)))


def width_srinivas_compact(t: int, d: int, delta: float, a: float, b: float, r: float) -> float:
    inner = t**2 * d * b * r * math.sqrt(math.log(4 * d * a / delta))
    return math.sqrt(2 * math.log(2 * math.pi**2 * t**2 / (3 * delta)) + 2 * d * math.log(inner))


def width_igp(log_det_value: float, norm_bound: float, noise_std: float, lam: float, delta: float) -> float:
    gamma = 0.5 * log_det_value
    return norm_bound + noise_std / math.sqrt(lam) * math.sqrt(2 * (gamma + 1 + math.log(1 / delta)))


def width_kernel_ucb(log_det_value: float, norm_bound: float, noise_std: float, lam: float, delta: float) -> float:
    stated = math.sqrt(lam) * norm_bound + noise_std * math.sqrt(2 * (log_det_value + math.log(1 / delta)))
    return stated / math.sqrt(lam)


def width_bkb_theory(
    pulls: int,
    sum_lev: float,
    kappa2: float,
    norm_bound: float,
    noise_std: float,
    lam: float,
    delta: float,
    epsilon: float,
) -> float:
    alpha = (1 + epsilon) / (1 - epsilon)
    noise = 2 * alpha * (1 + math.log(1 + kappa2 * pulls / lam)) * sum_lev + 2 * math.log(1 / delta)
    stated = noise_std * math.sqrt(noise) + (1 + 1 / math.sqrt(1 - epsilon)) * math.sqrt(lam) * norm_bound
    return stated / math.sqrt(lam)


def width_bkb_practical(pulls: int, sum_lev: float, norm_bound: float, noise_std: float, lam: float, delta: float) -> float:
    noise = math.log(max(pulls, 1)) * sum_lev + math.log(1 / delta)
    return (math.sqrt(lam) * norm_bound + noise_std * math.sqrt(noise)) / math.sqrt(lam)


def width_bbkb_theory(
    sum_log_1_3lev: float, ratio: float, norm_bound: float, noise_std: float, lam: float, delta: float
) -> float:
    noise = 2 * noise_std * math.sqrt(sum_log_1_3lev + math.log(1 / delta))
    return ratio * (noise + (1 + math.sqrt(2)) * math.sqrt(lam) * norm_bound) / math.sqrt(lam)


def width_bbkb_practical(
    sum_log_1_lev: float, ratio: float, norm_bound: float, noise_std: float, lam: float, delta: float
) -> float:
    noise = ratio * sum_log_1_lev + math.log(1 / delta)
    return (math.sqrt(lam) * norm_bound + noise_std * math.sqrt(noise)) / math.sqrt(lam)


# -------------------------------------------------------------------------------------------------- policies, naively


@dataclass
class Trace:
    """The record of an oracle run: per batch the picks, the width, and the dictionary used.

    `gap` is, for each pick, (best score − score of the pick)/|best|, which is zero unless the run follows given picks.
    `margin` is, for each pick, the relative distance of its score to the best score of any other arm.
    `statistic` is, for each pick, the value that the batch rule compares with `ratio_threshold` after that pick.
    """

    picks: list[list[int]] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    dictionaries: list[list[int]] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    margin: list[float] = field(default_factory=list)
    statistic: list[float] = field(default_factory=list)
    ratio_at_end: list[float] = field(default_factory=list)
    mean: Array | None = None
    variance: Array | None = None

    @property
    def flat(self) -> list[int]:
        return [arm for batch in self.picks for arm in batch]


def first_copies(arms: Array) -> Array:
    """The lowest index of an arm equal to each arm in every coordinate."""
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault((row + 0.0).tobytes(), i) for i, row in enumerate(arms)])


def argmax(scores: Array, allowed: Array) -> int:
    """The lowest allowed index whose score is within 16 eps of the best allowed score."""
    best = scores[allowed].max()
    return int(np.nonzero(allowed & (scores >= best - 16 * EPS * abs(best)))[0][0])


@dataclass
class Loop:
    """One complete, naive run: every pick sweeps all arms, and everything is rebuilt from the pulls each time.

    Args:
        reward: `(number of the pull, from 0; arm) -> reward`.
        width: `(loop) -> float`, read at the start of each batch.
        embedding: "exact" or "nystrom".
        rule: "single", "fixed", "global", "local", "global_then_local", "product" or "exact_ratio".
        uniforms: `u -> u numbers in [0, 1)`, one per distinct pulled arm in order of first pull, called once per tell.
        limits: `(number of the batch) -> cap on its picks`, in addition to the horizon.
        available: `(number of the batch) -> a booleans`.
        follow: picks of each batch, used instead of the argmax; `trace.gap` then contains their distances from the best score.
        kappa2: largest k(x, x); by default over the arms.
    """

    arms: Array
    kernel: KernelFunction
    reward: Callable[[int, int], float]
    horizon: int
    lam: float
    width: Callable[[Loop], float]
    embedding: str = "exact"
    rule: str = "single"
    ratio_threshold: float = 2.0
    oversampling: float = 2.0
    batch_size: int = 1
    max_batch_size: int | None = None
    max_pulls: int | None = None
    uniforms: Callable[[int], Array] | None = None
    limits: Callable[[int], int] | None = None
    available: Callable[[int], Array] | None = None
    follow: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        self.arms = np.asarray(self.arms, dtype=np.float64)
        self.copies = first_copies(self.arms)
        self.K_aa = self.kernel(self.arms, self.arms)
        # Exact duplicates share one entry, and therefore one column of numbers.
        self.K_aa = self.K_aa[self.copies][:, self.copies]
        self.k_diag = diagonal(self.kernel, self.arms)[self.copies]
        self.order: list[int] = []  # distinct pulled arms, in order of first pull
        self.n: dict[int, int] = {}
        self.s: dict[int, float] = {}
        self.dictionary: list[int] = []
        self.told = 0
        self.sum_log_1_lev = 0.0  # Σ log(1 + lev_fb(x_s)) over told pulls
        self.sum_log_1_3lev = 0.0
        self.trace = Trace()

    # -- state at the start of a batch

    @property
    def pulls(self) -> int:
        return max(self.told, 1)

    @property
    def kappa2(self) -> float:
        return float(self.k_diag.max())

    def counts_and_sums(self) -> tuple[Array, Array]:
        return np.array([float(self.n[i]) for i in self.order]), np.array([self.s[i] for i in self.order])

    def log_det(self) -> float:
        return log_det(self.K_aa[np.ix_(self.order, self.order)], self.counts_and_sums()[0], self.lam)

    def effective_dimension(self) -> float:
        lev = self.posterior([]).variance / self.lam
        return float(sum(self.n[i] * lev[i] for i in self.order))

    def posterior(self, batch: list[int]) -> Posterior:
        """Posterior with the mean given the told rewards, and the variance given these and the picks of the batch."""
        order = self.order + [i for i in dict.fromkeys(batch) if i not in self.n]
        n = np.array([float(self.n.get(i, 0)) for i in order])
        s = np.array([self.s.get(i, 0.0) for i in order])
        p = np.array([float(batch.count(i)) for i in order])
        if self.embedding == "exact":
            told = n > 0
            rows = np.array(order, dtype=int)
            mean = exact_posterior_from_sums(
                self.K_aa[np.ix_(rows[told], rows[told])],
                self.K_aa[rows[told]],
                self.k_diag,
                n[told],
                s[told],
                self.lam,
            ).mean
            hallucinated = exact_posterior_from_sums(
                self.K_aa[np.ix_(rows, rows)], self.K_aa[rows], self.k_diag, n + p, s, self.lam
            )
            return Posterior(mean, hallucinated.variance)
        nystrom = self.nystrom(order, n, s, p)
        return Posterior(nystrom.mean, nystrom.variance)

    def nystrom(self, order: list[int], n: Array, s: Array, p: Array) -> Nystrom:
        S = np.array(self.dictionary, dtype=int)
        rows = np.array(order, dtype=int)
        return nystrom_posterior(
            self.K_aa[np.ix_(S, S)],
            self.K_aa[np.ix_(S, rows)],
            self.K_aa[S],
            self.k_diag,
            n,
            s,
            self.lam,
            pending=p,
            K_aa=self.K_aa,
        )

    # -- batch rules: the number that is compared with the threshold after the picks `batch`

    def batch_statistic(self, rule: str, batch: list[int]) -> float:
        lev_fb = self.posterior([]).variance / self.lam
        if rule == "global":
            return 1 + sum(lev_fb[i] for i in batch)
        if rule == "product":
            value = 1.0
            for j, i in enumerate(batch):
                value *= 1 + self.posterior(batch[:j]).variance[i] / self.lam
            return value
        if rule == "exact_ratio":
            ratio = float((lev_fb / (self.posterior(batch).variance / self.lam)).max())
            if self.embedding == "exact":
                return ratio
            # A frozen dictionary never reduces the residual, so by its ratio alone a batch outside its span would never end.
            # The rule uses the larger of this ratio and the ratio for the process k̃ conditioned on the picks.
            n, s = self.counts_and_sums()
            state = self.nystrom(self.order, n, s, np.zeros_like(n))
            columns, every = np.array(batch), np.arange(len(self.arms))
            k_bb, k_ba = state.covariance(columns, columns), state.covariance(columns, every)
            left = lev_fb - (k_ba * np.linalg.solve(np.eye(len(batch)) + k_bb, k_ba)).sum(0)
            return max(ratio, float((lev_fb / left).max()))
        if rule == "local":
            columns = np.array(batch)
            everything = np.arange(len(self.arms))
            if self.embedding == "exact":
                n, s = self.counts_and_sums()
                rows = np.array(self.order, dtype=int)
                full = exact_posterior_from_sums(
                    self.K_aa[np.ix_(rows, rows)], self.K_aa[rows], self.k_diag, n, s, self.lam, self.K_aa
                )
                sums = ((full.covariance[:, columns] / self.lam) ** 2).sum(1)
            else:
                n, s = self.counts_and_sums()
                state = self.nystrom(self.order, n, s, np.zeros_like(n))
                frozen = (state.feature_covariance(everything, columns) ** 2).sum(1)
                sums = np.maximum(frozen, (state.covariance(everything, columns) ** 2).sum(1))
            return float((1 + sums / lev_fb).max())
        raise ValueError(rule)

    def ends(self, batch: list[int], leverage: float) -> bool:
        """Whether the latest pick is the last of the batch, given its hallucinated leverage before the pick."""
        value = math.nan
        if self.rule == "global_then_local":
            value = self.batch_statistic("global", batch)
            if value > self.ratio_threshold:
                value = self.batch_statistic("local", batch)
        elif self.rule not in ("single", "fixed"):
            value = self.batch_statistic(self.rule, batch)
        self.trace.statistic.append(value)
        cap = {"single": 1, "fixed": self.batch_size}.get(self.rule, math.inf)
        if self.max_batch_size is not None:
            cap = min(cap, self.max_batch_size)
        adaptive = self.rule not in ("single", "fixed")
        return len(batch) >= cap or (adaptive and (value > self.ratio_threshold or leverage <= 0))

    # -- one batch

    def allowed(self, batch_number: int, batch: list[int]) -> Array:
        allowed = self.copies == np.arange(len(self.arms))
        if self.available is not None:  # a duplicate on offer puts its entry on offer
            on_offer = np.zeros(len(self.arms), dtype=bool)
            on_offer[self.copies[self.available(batch_number)]] = True
            allowed = allowed & on_offer
        if self.max_pulls is not None:
            for i in set(batch):
                allowed[i] = allowed[i] and batch.count(i) < self.max_pulls
        return allowed

    def choose(self, batch_number: int) -> list[int]:
        cap = self.horizon - self.told
        if self.limits is not None:
            cap = min(cap, self.limits(batch_number))
        width = self.width(self)
        mean = self.posterior([]).mean
        self.trace.widths.append(width)
        self.trace.dictionaries.append(list(self.dictionary))
        batch: list[int] = []
        followed = None if self.follow is None else list(self.follow[batch_number])
        while len(batch) < cap:
            allowed = self.allowed(batch_number, batch)
            if not allowed.any():
                break
            variance = self.posterior(batch).variance
            scores = mean + width * np.sqrt(np.maximum(variance, 0))
            own = argmax(scores, allowed)
            pick = own if followed is None else followed[len(batch)]
            scale = max(abs(scores[own]), 1e-300)
            others = allowed & (np.arange(len(scores)) != own)
            self.trace.gap.append(float((scores[own] - scores[pick]) / scale) if allowed[pick] else math.inf)
            self.trace.margin.append(float((scores[own] - scores[others].max()) / scale) if others.any() else math.inf)
            batch.append(pick)
            ended = self.ends(batch, variance[pick] / self.lam)
            if followed is not None:
                ended = len(batch) == len(followed)
            if ended:
                break
        lev_fb = self.posterior([]).variance / self.lam
        self.trace.ratio_at_end.append(float((lev_fb / (self.posterior(batch).variance / self.lam)).max()))
        return batch

    def tell(self, batch: list[int]) -> None:
        lev_fb = self.posterior([]).variance / self.lam  # the old posterior: before these pulls, before any new draw
        for i in batch:
            if i not in self.n:
                self.order.append(i)
                self.n[i], self.s[i] = 0, 0.0
            self.n[i] += 1
            self.s[i] += self.reward(self.told, i)
            self.told += 1
            self.sum_log_1_lev += math.log(1 + lev_fb[i])
            self.sum_log_1_3lev += math.log(1 + 3 * lev_fb[i])
        if self.embedding == "nystrom":
            assert self.uniforms is not None
            draws = np.asarray(self.uniforms(len(self.order)), dtype=np.float64)
            p = np.array([min(1.0, self.n[i] * self.oversampling * lev_fb[i]) for i in self.order])
            self.dictionary = [i for i, inside in zip(self.order, draws < p, strict=True) if inside]
            if not self.dictionary:
                self.dictionary = [self.order[int(p.argmax())]]  # argmax returns the earliest of equal values

    def run(self) -> Trace:
        while self.told < self.horizon:
            batch = self.choose(len(self.trace.picks))
            self.trace.picks.append(batch)
            self.tell(batch)
            if self.follow is not None and len(self.trace.picks) == len(self.follow):
                break
        final = self.posterior([])
        self.trace.mean, self.trace.variance = final.mean, final.variance
        return self.trace


def gp_ucb(
    arms: Array, kernel: KernelFunction, reward: Callable[[int, int], float], horizon: int, *, noise_std: float,
    delta: float, lam: float | None = None, **options,
) -> Trace:  # fmt: skip
    lam = noise_std**2 if lam is None else lam
    num_arms = len(arms)
    return Loop(
        arms, kernel, reward, horizon, lam, lambda loop: width_srinivas(loop.told + 1, num_arms, delta), **options
    ).run()


def igp_ucb(
    arms: Array, kernel: KernelFunction, reward: Callable[[int, int], float], horizon: int, *, noise_std: float,
    norm_bound: float, delta: float, lam: float = 1.0, **options,
) -> Trace:  # fmt: skip
    return Loop(
        arms, kernel, reward, horizon, lam,
        lambda loop: width_igp(loop.log_det(), norm_bound, noise_std, lam, delta), **options,
    ).run()  # fmt: skip


def gp_bucb(
    arms: Array, kernel: KernelFunction, reward: Callable[[int, int], float], horizon: int, *, noise_std: float,
    norm_bound: float, delta: float, ratio_threshold: float, lam: float | None = None, rule: str = "product", **options,
) -> Trace:  # fmt: skip
    lam = noise_std**2 if lam is None else lam
    return Loop(
        arms, kernel, reward, horizon, lam,
        lambda loop: ratio_threshold * width_igp(loop.log_det(), norm_bound, noise_std, lam, delta),
        rule=rule, ratio_threshold=ratio_threshold, **options,
    ).run()  # fmt: skip


def bkb(
    arms: Array, kernel: KernelFunction, reward: Callable[[int, int], float], horizon: int, *, noise_std: float,
    norm_bound: float, delta: float, oversampling: float, lam: float | None = None, **options,
) -> Trace:  # fmt: skip
    lam = noise_std**2 if lam is None else lam
    return Loop(
        arms, kernel, reward, horizon, lam,
        lambda loop: width_bkb_practical(loop.pulls, loop.effective_dimension(), norm_bound, noise_std, lam, delta),
        embedding="nystrom", oversampling=oversampling, **options,
    ).run()  # fmt: skip


def batch_bkb(
    arms: Array, kernel: KernelFunction, reward: Callable[[int, int], float], horizon: int, *, noise_std: float,
    norm_bound: float, delta: float, oversampling: float, ratio_threshold: float, lam: float | None = None,
    rule: str = "global", **options,
) -> Trace:  # fmt: skip
    lam = noise_std**2 if lam is None else lam
    return Loop(
        arms, kernel, reward, horizon, lam,
        lambda loop: width_bbkb_practical(loop.sum_log_1_lev, ratio_threshold, norm_bound, noise_std, lam, delta),
        embedding="nystrom", oversampling=oversampling, ratio_threshold=ratio_threshold, rule=rule, **options,
    ).run()  # fmt: skip


def tanimoto(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Tanimoto similarities of fingerprints of bits or counts, `n x m`, by definition; 1 between two empty fingerprints."""
    out = np.ones((len(x), len(y)))
    for i, left in enumerate(np.asarray(x, dtype=np.float64)):
        for j, right in enumerate(np.asarray(y, dtype=np.float64)):
            largest = np.maximum(left, right).sum()
            if largest > 0:
                out[i, j] = np.minimum(left, right).sum() / largest
    return out
