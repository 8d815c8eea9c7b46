r"""Stopping rules for runs, workers and custom loops: `bandit.should_stop(rule)`, `run(..., stop=rule)`.

    rule = tb.stopping.EpsilonOptimal(0.05)
    while not (decision := bandit.should_stop(rule, tb.stopping.Budget(pulls=500))):
        selection = bandit.ask()
        bandit.tell(selection, evaluate(selection.points))
    print(decision.reason)

`EpsilonOptimal`, `ProbableRegret`, `TopKKnown`, `LevelSetKnown` and `FrontKnown` have a guarantee that holds with a given
probability; the other rules have none. Every rule decides for each batch row from the rewards told, and ignores pending picks.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchbandits.aims import Certifying, Scalarized
from torchbandits.arms.joint import JointDraws
from torchbandits.checks import check_instance, check_whole, is_finite, is_whole, positive
from torchbandits.errors import ArgumentError, UnsupportedError, require
from torchbandits.fronts import pareto_set
from torchbandits.gradients import without_gradients
from torchbandits.policies import Composed
from torchbandits.policies.joint import Joint, PerOutcome
from torchbandits.policies.phased import Phased
from torchbandits.policies.picking import incumbent, marginals, only_entries
from torchbandits.policies.state import TableState, check_no_box
from torchbandits.scores import LogEI, Straddle
from torchbandits.theorems import proved_width
from torchbandits.widths import Width
from torchbandits.widths.base import check_delta

if TYPE_CHECKING:
    from torchbandits.loop import Loop

__all__ = [
    "Budget",
    "Decision",
    "EpsilonOptimal",
    "FrontKnown",
    "ImprovementPerCost",
    "LevelSetKnown",
    "ProbableRegret",
    "Rule",
    "SameArm",
    "TopKKnown",
]

# Number of draws of the first look (interim test); the number doubles from look to look.
_FIRST_DRAWS = 256
# Fraction of δ for all arms that are not drawn.
_NEGLECTED = 0.005
# Largest number of normal numbers drawn at once.
_DRAWN = 1 << 23
ROUNDING = 1e-9
"""Relative rounding error of a sum of costs, by which it may miss a budget."""


@dataclass(frozen=True)
class Decision:
    """The decision of one or several rules. Its truth value is whether every batch row may stop.

    Attributes:
        stop: `batch_shape` booleans.
        arm: `batch_shape`, the recommended arm, to which guarantees refer: the best one of the pulled points that are arms now;
            −1 before the first pull. Of an `OutcomeBandit` with one objective it is that of `best()` in the row of each
            outcome; with several objectives, and in `run`, the best one of each outcome.
        value: `batch_shape`, the number that the rule compares with its threshold; NaN where it is unknown. For several rules,
            the value of the first rule that stops the row, or else of the first rule.
        reasons: The reason why each batch row stops, in row-major order; empty texts for rows that do not stop.
    """

    stop: Tensor
    arm: Tensor
    value: Tensor
    reasons: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether every batch row may stop."""
        return bool(self.stop.all())

    @property
    def reason(self) -> str:
        """The distinct reasons, concatenated; empty if no row stops."""
        return "; ".join(dict.fromkeys(reason for reason in self.reasons if reason))


class Rule(ABC):
    """A rule that decides whether to stop. Subclasses implement `decide`."""

    @abstractmethod
    def decide(self, loop: Loop) -> Decision:
        """Decide for each batch row of a loop (`bandit.loop`), whose state must not be changed."""

    def see(self, told: Tensor, arm: Tensor) -> None:  # noqa: B027 - most rules remember nothing
        """Observe the number of pulls told and the recommended arm after a tell, `batch_shape` each; for rules with a memory. A
        run that resumes from a journal passes every recorded tell."""

    def fresh(self) -> Rule:
        """A copy without memory, for another run. By default a deep copy, which is one for rules that remember nothing."""
        return copy.deepcopy(self)


@without_gradients
def decide(rules: Sequence[Rule], loop: Loop) -> Decision:
    """The decision of several rules: a batch row stops as soon as one of them stops it."""
    return either([rule.decide(loop) for rule in rules])


def either(decisions: Sequence[Decision]) -> Decision:
    """Combine decisions on the same batch rows: a row stops if one of the decisions stops it."""
    whole = decisions[0]
    for other in decisions[1:]:
        value = torch.where(other.stop & ~whole.stop, other.value, whole.value)
        reasons = tuple(a or b for a, b in zip(whole.reasons, other.reasons, strict=True))
        whole = Decision(whole.stop | other.stop, whole.arm, value, reasons)
    return whole


def check_rules(rules: Any, name: str = "rule") -> tuple[Rule, ...]:
    """One rule or several, as a tuple."""
    given = tuple(rules) if isinstance(rules, Sequence) else (rules,)
    require(len(given) > 0, "give at least one rule, such as stopping.Budget(pulls=100).")
    for rule in given:
        check_instance(name, rule, Rule, "one of torchbandits.stopping, such as stopping.Budget(pulls=100)")
    return given


def recommended(loop: Loop) -> Tensor:
    """The pulled arm with the highest posterior mean, `batch_shape`; −1 before the first pull. Observed points of a box that
    were never picked are passed over."""
    arm = loop.best_arm()
    if not bool(((arm < 0) & (loop.pulls > 0)).any()):
        return arm
    ranked = loop.best(loop.state.statistics.size).index
    listed = ranked >= 0
    first = ranked.gather(-1, listed.byte().argmax(dim=-1, keepdim=True)).squeeze(-1)
    return torch.where(listed.any(dim=-1), first, -1)


def pulls_of(loop: Loop) -> Tensor:
    """Number of pulls told, `batch_shape`, as rules count them."""
    return shared(loop.pulls) if loop.policy.outcomes else loop.pulls


def shared(told: Tensor) -> Tensor:
    """Of several outcomes, some of which may not be measured at every pull, the pulls of the outcome that was measured most
    often, `batch_shape`."""
    return told.amax(dim=-1, keepdim=True).expand_as(told)


def decision_of(loop: Loop, stop: Tensor, value: Tensor, text: str) -> Decision:
    """The decision of a rule whose reasons differ between batch rows only in the arm and the value.

    Args:
        loop: The loop whose recommended arms the reasons name.
        stop: `batch_shape` booleans.
        value: `batch_shape`.
        text: The reason, in which `{arm}` and `{value}` stand for those of the row.
    """
    arm = recommended(loop)
    rows = zip(stop.reshape(-1).tolist(), arm.reshape(-1).tolist(), value.reshape(-1).tolist(), strict=True)
    reasons = tuple(text.format(arm=a, value=f"{v:.4g}") if s else "" for s, a, v in rows)
    return Decision(stop, arm, value, reasons)


def table_state(loop: Loop, rule: str) -> tuple[Composed, TableState]:
    """Policy and state of a loop with one Gaussian process over given arms, in reward units. For a policy in phases they are
    the engine and the posterior of all pulls.

    Raises:
        UnsupportedError: For any other loop.
    """
    policy, state = loop.policy, loop.state
    check_no_box(state, rule)
    if isinstance(policy, Phased) and policy.one_function:
        policy = policy.engine
    if (
        not isinstance(policy, Composed)
        or not isinstance(state, TableState)
        or state.rows.sharded
        or state.posterior.units is not None
    ):
        raise UnsupportedError(
            f"{rule} needs a policy with one Gaussian process of a fixed function, over a list of arms and with a given "
            "kernel: use gp_ucb, batch_bkb or bpe, or stop by stopping.SameArm and stopping.Budget."
        )
    return policy, state


# ---------------------------------------------------------------------- rules with a guarantee


@dataclass(frozen=True)
class EpsilonOptimal(Rule):
    r"""Stop when confidence bounds show that no arm is better than the recommended one by more than ε.

    .. math:: \max_x \big(\mu_t(x) + w_t \sigma_t(x)\big) - \big(\mu_t(\hat x) - w_t \sigma_t(\hat x)\big) \le \varepsilon

    If the width is valid for all arms and steps simultaneously with probability 1 − δ, the arm is ε-optimal at the time of
    stopping with that probability, for any choice of pulls and any times at which the rule is evaluated. `UnsupportedError` is
    raised for widths without such a theorem, for another λ than the posterior's or a smaller `noise_std` than the policy's, for
    `Srinivas` unless λ is noise_std², for features that approximate a kernel, for an estimated prior mean, and for a kernel
    that was fitted to the same rewards. For a sampled dictionary the probability is 1 − 2δ, if its oversampling is that of the
    theorem, which is not checked; the default of 2 is smaller (see the guarantees).

    Args:
        epsilon: ε > 0, reward units.
        width: A width with a theorem for the policy's posterior: `Srinivas`, `IGP`, `KernelUCB`, `SelfNormalized` or
            `MartingaleMixture` for an exact posterior, `BKB` or `BBKB` for a sampled dictionary, with their δ and assumptions.
            By default the width of the policy.

    Cost: O(A). Source: the papers of the widths; Gotovos et al. 2013 for such a rule.
    """

    epsilon: float
    width: Width | None = None

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        check_instance("width", self.width, Width | None, "a torchbandits.widths.Width, or None for the policy's own")

    def decide(self, loop: Loop) -> Decision:
        """Compare the gap between the largest upper bound and the lower bound of the recommended arm with ε."""
        policy, state = table_state(loop, "EpsilonOptimal")
        delta, width = proved_width(policy, state, self.width)
        arm, (mean, std) = recommended(loop), marginals(state)
        upper = only_entries(state.rows, torch.addcmul(mean, std, width.unsqueeze(-1))).amax(dim=-1)
        mean, std = (x.gather(-1, arm.clamp_min(0).unsqueeze(-1)).squeeze(-1) for x in (mean, std))
        gap = torch.where(arm >= 0, upper - (mean - width * std), torch.inf)
        sure = f"with probability {1 - delta:.4g} no arm is better than arm {{arm}} by more than {{value}}"
        text = f"{sure}, and ε is {self.epsilon:g}"
        return decision_of(loop, gap <= self.epsilon, gap, text)


@dataclass(frozen=True)
class ProbableRegret(Rule):
    r"""Stop when the model gives the recommended arm a regret of at most ε with probability 1 − δ.

    .. math:: P\big(\max_x f(x) - f(\hat x) > \varepsilon \mid \text{rewards}\big) \le (1 - r)\,\delta

    The probability is estimated by draws of f at the recommended arm and at up to `leaders` arms that most likely exceed it,
    from their exact joint covariance; for all other arms it is bounded by the sum of their individual probabilities. No A x A
    matrix is computed, and no arm is neglected. The number of draws is doubled until a Clopper-Pearson bound decides; if it has
    not decided at `max_draws`, the rule does not stop. The probability of any wrong decision to stop in a run is at most r δ,
    which is divided among the numbers of pulls t in proportion to 6/(π² t²), and among the looks (interim tests).

    If f is drawn from the prior and the noise is Gaussian with the variance that the posterior assumes, the arm is ε-optimal at
    the time of stopping with probability 1 − δ, for any choice of pulls and any times at which the rule is evaluated. A fitted
    kernel and the covariance of a sampled dictionary are not the prior of f, so nothing is proved for them. Arms that are left
    out because they are likely to fail do not count.

    Args:
        epsilon: ε > 0, reward units.
        delta: δ, failure probability.
        estimation: r, the fraction of δ for errors of the estimate.
        leaders: Largest number of arms that are drawn jointly with the recommended arm; fewer if the others are negligible.
        max_draws: Largest number of draws for one decision.
        seed: Seed of the draws: the same rewards lead to the same decision in every process.

    Cost: O(A m) for the covariances with the recommended arm, O(k³ + k² S) for S draws of k leaders.
    Source: Wilson 2024 (arXiv 2402.16811) for criterion and test; the choice of leaders and the bound for the other arms are
    specific to this package.
    """

    epsilon: float
    delta: float = 0.05
    estimation: float = 0.2
    leaders: int = 500
    max_draws: int = 1 << 14
    seed: int = 0

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        check_delta(self.delta)
        share = is_finite(self.estimation) and 0 < self.estimation < 1
        require(share, f"estimation must be a fraction of delta, in (0, 1), got {self.estimation}.")
        check_whole("leaders", self.leaders)
        check_whole("max_draws", self.max_draws, _FIRST_DRAWS)
        require(is_whole(self.seed, 0), f"seed must be a whole number ≥ 0, got {self.seed!r}.")

    def decide(self, loop: Loop) -> Decision:
        """Bound the probability of a larger regret from above."""
        _, state = table_state(loop, "ProbableRegret")
        arm = recommended(loop)
        likely, sizes, rest = self._rivals(state, arm, loop.likely(None))
        joint = JointDraws(state.table, torch.cat([arm.clamp_min(0).unsqueeze(-1), likely], dim=-1))
        exceeds, shape = [], arm.shape
        told, sizes_of = loop.pulls.reshape(-1).tolist(), sizes.reshape(-1).tolist()
        for row, known in enumerate((arm >= 0).reshape(-1).tolist()):
            bound = float(rest.reshape(-1)[row])
            exceeds.append(self._row(joint, row, 1 + sizes_of[row], bound, told[row]) if known else (False, math.nan))
        stop = torch.tensor([stop for stop, _ in exceeds], device=arm.device).reshape(shape)
        value = torch.tensor([value for _, value in exceeds], dtype=torch.float64, device=arm.device).reshape(shape)
        text = (
            f"under the model arm {{arm}} is within {self.epsilon:g} of the best arm with probability {1 - self.delta:g} "
            "(the estimated probability that it is not is {value})"
        )
        return decision_of(loop, stop, value, text)

    def _rivals(self, state: TableState, arm: Tensor, hopeful: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The arms that most likely exceed f(x̂) + ε, `batch_shape x k`, the number of them to draw, and the summed
        probabilities of all others, `batch_shape` each. Exact duplicates count once, and only `hopeful` arms count,
        `batch_shape x A` (None for all)."""
        table, lam = state.table, state.posterior.regularization
        slot = arm.clamp_min(0).unsqueeze(-1)
        cross = table.columns_between(slot)[1].squeeze(-2).double()
        leverage, mean = table.leverage.double(), table.mean().double()
        # Var(f(x) − f(x̂)) = σ²(x) + σ²(x̂) − 2 cov(x, x̂)
        spread = (lam * (leverage + leverage.gather(-1, slot) - 2 * cross)).clamp_min(0).sqrt()
        ahead = mean - mean.gather(-1, slot) - self.epsilon
        score = torch.where(spread > 0, ahead / spread.clamp_min(torch.finfo(spread.dtype).tiny), torch.sign(ahead) * torch.inf)
        score = score.scatter(-1, slot, -torch.inf)
        score = only_entries(state.rows, score)
        if hopeful is not None:
            score = score.masked_fill(~hopeful, -torch.inf)
        leading = score.topk(min(self.leaders, score.shape[-1]), dim=-1)
        # Where no other arm counts, the recommended arm is its own rival.
        likely = torch.where(leading.values > -torch.inf, leading.indices, slot)
        rest = torch.special.ndtr(score.scatter(-1, leading.indices, -torch.inf)).sum(dim=-1, keepdim=True)
        chance = torch.special.ndtr(leading.values)
        # With j arms drawn, the union bound covers the leaders from j on and all arms that are not leaders.
        left = rest + chance.flip(-1).cumsum(dim=-1).flip(-1) - chance
        size = (left > _NEGLECTED * self.delta).sum(dim=-1, keepdim=True).clamp_max(chance.shape[-1] - 1)
        return likely, size.squeeze(-1) + 1, left.gather(-1, size).squeeze(-1)

    def _row(self, joint: JointDraws, row: int, size: int, rest: float, told: float) -> tuple[bool, float]:
        """Whether one batch row stops, and the estimated probability of a larger regret."""
        from scipy.special import betaincinv  # type: ignore[import-untyped] # noqa: PLC0415

        allowed = (1 - self.estimation) * self.delta - rest
        if allowed <= 0:
            return False, min(rest, 1.0)
        level = self.estimation * self.delta * 6 / (math.pi * max(told, 1.0)) ** 2
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + int(told)) % (1 << 62))
        drawn = failed = 0
        look, most = 0, _FIRST_DRAWS
        while True:
            while drawn < most:
                count = min(most - drawn, max(1, _DRAWN // size))
                f = joint.draw(row, count, generator, size)
                failed += int((f[:, 1:].amax(dim=-1) - f[:, 0] > self.epsilon).sum())
                drawn += count
            look += 1
            alpha = level / (look * (look + 1))
            # The quantile of 1 − α, which is 1 in floating point after very many pulls.
            upper = 1.0 if failed == drawn else 1 - float(betaincinv(drawn - failed, failed + 1, alpha))
            lower = 0.0 if failed == 0 else float(betaincinv(failed, drawn - failed + 1, alpha))
            if upper <= allowed or lower > allowed or drawn >= self.max_draws:
                return upper <= allowed, min(failed / drawn + rest, 1.0)
            most = min(2 * drawn, self.max_draws)


@dataclass(frozen=True)
class TopKKnown(Rule):
    r"""Stop when confidence bounds separate the k arms with the highest posterior means from all others, up to ε.

    .. math:: \max_{x \notin J} \big(\mu_t(x) + w_t \sigma_t(x)\big) - \min_{x \in J} \big(\mu_t(x) - w_t \sigma_t(x)\big)
              \le \varepsilon

    If the width is valid for all arms and steps simultaneously with probability 1 − δ, then with that probability no arm
    outside J (`Bandit.top_k(k)`) is better than an arm inside by more than ε. The permitted widths are those of
    `EpsilonOptimal`.

    Args:
        k: Number of arms.
        epsilon: ε > 0, reward units.
        width: As for `EpsilonOptimal`.

    Cost: O(A). Source: Kalyanakrishnan et al. 2012, the stopping rule of LUCB.
    """

    k: int
    epsilon: float
    width: Width | None = None

    def __post_init__(self) -> None:
        check_whole("k", self.k)
        positive("epsilon", self.epsilon)
        check_instance("width", self.width, Width | None, "a torchbandits.widths.Width, or None for the policy's own")

    def decide(self, loop: Loop) -> Decision:
        """Compare the highest upper bound outside J with the lowest lower bound inside J."""
        policy, state = table_state(loop, "TopKKnown")
        delta, width = proved_width(policy, state, self.width)
        mean, std = marginals(state)
        entries, spread = only_entries(state.rows, mean), width.unsqueeze(-1) * std
        members = int((entries > -torch.inf).sum(dim=-1).min())
        require(self.k < members, f"k must be less than the number of distinct arms, {members}, got {self.k}.")
        index = entries.topk(self.k, dim=-1).indices
        outside = (entries + spread).scatter(-1, index, -torch.inf).amax(dim=-1)
        gap = outside - (mean - spread).gather(-1, index).amin(dim=-1)
        claim = f"with probability {1 - delta:.4g} no other arm is better than one of the top {self.k} by more than {{value}}"
        stop = (gap <= self.epsilon) & (recommended(loop) >= 0)
        return decision_of(loop, stop, gap, f"{claim}, and ε is {self.epsilon:g}")


@dataclass(frozen=True)
class LevelSetKnown(Rule):
    r"""Stop when confidence bounds decide for every arm whether it is above a level, up to ε.

    .. math:: \max_x w_t \sigma_t(x) - |\mu_t(x) - h| \le \varepsilon

    If the width is valid for all arms and steps simultaneously with probability 1 − δ, then with that probability every arm
    whose posterior mean is at least h has an expected reward of at least h − ε, and every other arm has an expected reward of
    at most h + ε. The permitted widths are those of `EpsilonOptimal`.

    Args:
        level: h, reward units.
        epsilon: ε > 0, reward units.
        width: As for `EpsilonOptimal`.

    Cost: O(A). Source: Gotovos et al. 2013, Thm 1.
    """

    level: float
    epsilon: float
    width: Width | None = None

    def __post_init__(self) -> None:
        require(is_finite(self.level), f"level must be finite, got {self.level}.")
        positive("epsilon", self.epsilon)
        check_instance("width", self.width, Width | None, "a torchbandits.widths.Width, or None for the policy's own")

    def decide(self, loop: Loop) -> Decision:
        """Compare the largest ambiguity of an arm with ε."""
        policy, state = table_state(loop, "LevelSetKnown")
        delta, width = proved_width(policy, state, self.width)
        mean, std = marginals(state)
        ambiguity = only_entries(state.rows, Straddle(self.level)(mean, std, width, width)).amax(dim=-1)
        claim = f"with probability {1 - delta:.4g} every arm is known to be above or below {self.level:g} up to {{value}}"
        stop = (ambiguity <= self.epsilon) & (recommended(loop) >= 0)
        return decision_of(loop, stop, ambiguity, f"{claim}, and ε is {self.epsilon:g}")


@dataclass(frozen=True)
class FrontKnown(Rule):
    """Stop when confidence bounds decide for every arm whether it is Pareto optimal, up to ε: when `OutcomeBandit.pareto_set`
    leaves no arm undecided.

    If the widths of all outcomes are valid for all arms and steps simultaneously with probabilities 1 − δ_j, the sets at the
    time of stopping are correct with probability 1 − Σ δ_j, see `ParetoSet`. The permitted widths are those of
    `EpsilonOptimal`.

    Args:
        epsilon: By outcome, the difference that does not matter, ≥ 0, reward units; by default that of an `outcomes.epal`
            policy.

    Cost: that of `OutcomeBandit.pareto_set`. Source: Zuluaga et al. 2016.
    """

    epsilon: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        given = self.epsilon
        good = given is None or (isinstance(given, Mapping) and all(is_finite(e) and e >= 0 for e in given.values()))
        require(good, f"epsilon must be numbers ≥ 0 by outcome, or None for those of an epal policy, got {given!r:.60}.")

    def decide(self, loop: Loop) -> Decision:
        """Count the undecided arms."""
        policy, state = loop.policy, loop.state
        if not (isinstance(policy, Joint) and isinstance(state, TableState) and state.posterior.units is None):
            raise UnsupportedError(
                "FrontKnown needs a policy of several outcomes whose kernels are given: use outcomes.epal, or stop by "
                "stopping.Budget."
            )
        aim, aims = policy.aim, policy.objectives
        whole = (
            isinstance(aim, Certifying | Scalarized) and set(aims) == set(policy.all_names) and not getattr(aim, "limits", ())
        )
        require(whole, "FrontKnown is for objectives without limits: use outcomes.epal or outcomes.pareto.", UnsupportedError)
        of_policy = dict(zip(policy.outcomes, aim.epsilon, strict=True)) if isinstance(aim, Certifying) else None
        epsilon = of_policy if self.epsilon is None else self.epsilon
        require(epsilon is not None and set(epsilon) == set(aims), f"epsilon must have a number for {', '.join(aims)}.")
        assert epsilon is not None
        assert isinstance(policy.engine.confidence, PerOutcome)
        # The posterior has the λ of the first outcome; those of the others keep their ratio to it.
        scale = state.posterior.regularization / policy.regularizations[0]
        models = zip(policy.engine.confidence.widths, policy.noise_stds, policy.regularizations, strict=True)
        delta = sum(
            proved_width(replace(policy.engine, confidence=width), state, None, (noise_std, scale * lam))[0]
            for width, noise_std, lam in models
        )
        signs = [-1.0 if aims[name] == "minimize" else 1.0 for name in policy.all_names]
        left = pareto_set(loop, signs, [float(epsilon[name]) for name in policy.all_names]).undecided.sum(dim=-1, keepdim=True)
        value = left.double().expand(loop.batch_shape)
        text = f"with probability {1 - delta:.4g} every arm is known to be Pareto optimal or not, up to epsilon"
        return decision_of(loop, (value == 0) & (loop.pulls > 0), value, text)


# ---------------------------------------------------------------------- rules without a guarantee


@dataclass(frozen=True)
class ImprovementPerCost(Rule):
    """Stop when no pull is worth its cost: the largest expected improvement per cost over the arms is below a price.

    The improvement is measured over the highest posterior mean of all arms. Arms that are left out because they are likely to
    fail do not count. Arms without costs (`Bandit(..., costs=)`) cost 1.

    Args:
        price: The smallest expected improvement per unit of cost that is worth a pull, > 0, reward units per unit of cost.

    Guarantee: none. Cost: O(A). Source: the natural stopping rule of expected improvement per cost.
    """

    price: float

    def __post_init__(self) -> None:
        positive("price", self.price)

    def decide(self, loop: Loop) -> Decision:
        """Compare the largest expected improvement per cost with the price."""
        policy, state = table_state(loop, "ImprovementPerCost")
        mean, std = marginals(state)
        gain = LogEI()(mean, std, policy.width(state), incumbent(state))
        costs = state.rows.costs
        gain = gain if costs is None else gain - costs.log()
        hopeful = loop.likely(None)
        gain = only_entries(state.rows, gain if hopeful is None else gain.masked_fill(~hopeful, -torch.inf))
        value = torch.where(recommended(loop) >= 0, gain.amax(dim=-1).exp(), torch.inf)
        per = "" if costs is None else " per unit of cost"
        return decision_of(
            loop,
            value < self.price,
            value,
            f"no arm's expected improvement{per} exceeds {{value}}, below the price {self.price:g}",
        )


class SameArm(Rule):
    """Stop when the recommended arm (`Bandit.best_arm`) has not changed over a number of pulls. It does not stop while none
    of the arms was pulled, as after all pulled arms were removed, nor while the best point of a box was never picked.

    The rule remembers when the arm last changed, so use one object per bandit. It observes the recommended arm whenever it is
    evaluated and, in `run`, after every tell, including the tells of a resumed journal. With several workers, the rule of each
    worker only remembers its own evaluations. Arms are compared by their indices: where `set_arms_` gives the arm another one,
    counting begins anew.

    Args:
        pulls: Number of pulls told without a change.

    Guarantee: none.
    """

    def __init__(self, pulls: int) -> None:
        check_whole("pulls", pulls)
        self.pulls = pulls
        self._arm: Tensor | None = None
        self._since: Tensor | None = None

    def __repr__(self) -> str:
        """The rule without its memory."""
        return f"SameArm(pulls={self.pulls})"

    def fresh(self) -> SameArm:
        """A rule for the same number of pulls that has not observed anything."""
        return SameArm(self.pulls)

    def see(self, told: Tensor, arm: Tensor) -> None:
        """Observe the recommended arm."""
        told, arm = told.to("cpu", copy=True), arm.to("cpu", copy=True)
        if self._arm is None or self._since is None or self._arm.shape != arm.shape:
            self._arm, self._since = arm, told
            return
        self._since = torch.where(arm == self._arm, self._since, told)
        self._arm = arm

    def decide(self, loop: Loop) -> Decision:
        """Compare the number of pulls since the last change with the given number."""
        arm, told = loop.best_arm(), pulls_of(loop)
        self.see(told, loop.named(arm))
        assert self._since is not None
        value = torch.where(arm >= 0, told - self._since.to(told), torch.nan)
        return decision_of(loop, value >= self.pulls, value, "arm {arm} has been the recommended one for {value} pulls")

    def state_dict(self) -> dict[str, Any]:
        """The memory: `arm` and `since`, `batch_shape` each, or None."""
        return copy.deepcopy({"arm": self._arm, "since": self._since})

    def load_state_dict(self, state_dict: dict[str, Any]) -> SameArm:
        """Take over the memory of another rule. Returns self."""
        good = isinstance(state_dict, dict) and set(state_dict) == {"arm", "since"}
        good = good and all(isinstance(value, Tensor | None) for value in state_dict.values())
        require(good, "state_dict must be what SameArm.state_dict() returned, a dictionary with 'arm' and 'since'.")
        self._arm, self._since = copy.deepcopy(state_dict["arm"]), copy.deepcopy(state_dict["since"])
        return self


@dataclass(frozen=True)
class Budget(Rule):
    """Stop when the number of pulls told, or the sum of their costs, reaches a limit.

    Args:
        pulls: Number of pulls of each batch row (of several outcomes, of the one that was measured most often); None for no
            limit.
        cost: Sum of the costs of the pulled arms (`Bandit(..., costs=)`), at the current costs; None for no limit. Removed
            arms, points that are not arms, and evaluations that failed cost nothing here; `run(budget=)` counts failures.
    """

    pulls: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        require(self.pulls is not None or self.cost is not None, "give pulls=, cost= or both: the limit of a budget.")
        check_whole("pulls", self.pulls, otherwise="for no limit")
        require(self.cost is None or (is_finite(self.cost) and self.cost > 0), f"cost must be finite and > 0, got {self.cost}.")

    def decide(self, loop: Loop) -> Decision:
        """Compare pulls and costs with the budget."""
        found = []
        if self.pulls is not None:
            text = f"{{value}} pulls were told, of a budget of {self.pulls}"
            told = pulls_of(loop)
            found.append(decision_of(loop, told >= self.pulls, told.clone(), text))
        if self.cost is not None:
            spent = _spent(loop)
            over = spent >= self.cost * (1 - ROUNDING)
            found.append(decision_of(loop, over, spent, f"{{value}} was spent, of a budget of {self.cost:g}"))
        return either(found)


def _spent(loop: Loop) -> Tensor:
    """Sum of the costs of all pulls of arms, `batch_shape`."""
    rows, statistics = loop.state.rows, loop.state.statistics
    if rows.costs is None:
        raise ArgumentError(
            "a budget of costs needs the costs of the arms: Bandit(policy, arms, costs=…), or of a campaign the column of the "
            "costs, with which it begins (cost=, --cost)."
        )
    policy = loop.policy
    changed = isinstance(policy, Composed) and (policy.memory.selective or policy.reweighting is not None)
    message = (
        "this policy leaves out, forgets or weights rewards, so that the pulls of each arm are not known: use "
        "run(..., budget=), or Budget(pulls=)."
    )
    require(not (changed or getattr(policy, "anew", None)), message, UnsupportedError)
    weighted = getattr(loop.state.records, "weighted", False)
    why = "after rewards with noise_var=, and for outcomes of different noise or λ,"
    message = f"{why} the pulls of each arm are not known: use run(..., budget=), or Budget(pulls=)."
    require(not weighted, message, UnsupportedError)
    if policy.outcomes:
        # A pull costs once, however many of its outcomes were measured. Copies of an arm share its pulls.
        pulls = rows.counts(statistics.weights).amax(dim=-2, keepdim=True).expand(*loop.batch_shape, rows.num_arms)
        return (rows.costs * only_entries(rows, pulls).clamp_min(0)).sum(dim=-1)
    arm = rows.arm_of_row
    each = rows.costs.expand(*rows.batch_shape, -1).gather(-1, arm.clamp_min(0))
    return torch.where(arm >= 0, each * statistics.weights, 0.0).sum(dim=-1)
