"""The interface of an aim, and its input: the posteriors of all outcomes on the arms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchbandits.aims.known import beside, normal_score_among
from torchbandits.arms import ArmTable
from torchbandits.scores import Score

# Logarithm of the probability that a known value keeps a limit that it breaks; finite, because such logarithms are subtracted.
_NEVER = -1e200


@dataclass(frozen=True)
class Limit:
    """A bound on an outcome: sign · y ≥ sign · value, so that a sign of 1 is a lower bound and −1 an upper one.

    Attributes:
        outcome: Index of the outcome.
        sign: 1.0 or −1.0.
        value: Value of the limit, reward units.
    """

    outcome: int
    sign: float
    value: float


@dataclass(frozen=True)
class Outlook:
    """The posteriors of all k outcomes on the arms when one pick is chosen, reward units, `batch_shape x k` leading.

    Attributes:
        mean: `batch_shape x k x A`, given the rewards told.
        std: `batch_shape x k x A`, given the rewards told and the pending picks.
        known: `batch_shape x k x A`, standard deviation given the rewards told alone, for bounds that have to hold.
        width: `batch_shape x k`, multiplies standard deviations.
        reach: `batch_shape x k`, the largest prior standard deviation of an arm, the unit of each outcome; the range of a
            known outcome.
        drawn: `batch_shape x k x A`, a draw of each posterior in place of its upper bounds; None for bounds.
        entries: `... x A` booleans, False at arms that are copies of earlier ones; None where there are no copies.
        offered: `batch_shape x A` booleans, arms that may be picked; None for all.
        told: `batch_shape`, number of pulls told.
        table: The posteriors themselves, for covariances between arms.
        weight: `k x 1`, the weight of a pull in the posterior of each outcome.
        generators: One per batch row of picks, for aims that draw; None for rows without further picks.
        seen: `batch_shape x A` booleans, arms with at least one told outcome.
        pending: `batch_shape x A` booleans, arms of picks that were not told yet, those of the same batch included.
        settled: `batch_shape x A` booleans, arms with at least one told outcome, and arms of pending picks. In the outlook on a
            subset of the arms (`of`) it refers to the arms of this subset.
        costs: `batch_shape x A`, cost of a pull of each arm; None where arms have none.
        num_known: Number of outcomes that are known for all arms. They are the last ones, and their standard deviations are 0.
        only_best: Whether only the best arm is wanted: scores of others may then be upper bounds that are smaller than its own.
    """

    mean: Tensor
    std: Tensor
    known: Tensor
    width: Tensor
    reach: Tensor
    drawn: Tensor | None
    entries: Tensor | None
    offered: Tensor | None
    told: Tensor
    table: ArmTable
    weight: Tensor
    generators: Sequence[torch.Generator | None]
    seen: Tensor
    pending: Tensor
    settled: Tensor
    costs: Tensor | None = None
    num_known: int = 0
    only_best: bool = False

    def is_known(self, outcome: int) -> bool:
        """Whether an outcome is known for all arms."""
        return outcome >= self.mean.shape[-2] - self.num_known

    def hopes(self, outcome: int, sign: float, optimism: float = 1.0) -> Tensor:
        """The largest plausible value of sign · y, `batch_shape x A`: sign · μ + w σ, with `optimism` times the width, or the
        value of the draw."""
        if self.drawn is not None:
            return sign * self.drawn[..., outcome, :]
        return sign * self.mean[..., outcome, :] + optimism * self.width[..., outcome, None] * self.std[..., outcome, :]

    def floor(self, outcome: int, sign: float) -> Tensor:
        """The smallest plausible value of sign · y by the rewards told alone, sign · μ − w σ, `batch_shape x A`."""
        return sign * self.mean[..., outcome, :] - self.width[..., outcome, None] * self.known[..., outcome, :]

    def ceiling(self, outcome: int, sign: float) -> Tensor:
        """The largest plausible value of sign · y by the rewards told alone, sign · μ + w σ, `batch_shape x A`."""
        return sign * self.mean[..., outcome, :] + self.width[..., outcome, None] * self.known[..., outcome, :]

    def violation(self, limits: Sequence[Limit], optimism: float = 1.0) -> Tensor:
        """The sum of the amounts by which the largest plausible values violate the limits, `batch_shape x A`, each in prior
        standard deviations; 0 where all limits may hold. `optimism` as for `hopes`."""
        total = torch.zeros_like(self.mean[..., 0, :])
        for limit in limits:
            lacking = limit.sign * self.level(limit).unsqueeze(-1) - self.hopes(limit.outcome, limit.sign, optimism)
            total = total + lacking.clamp_min(0) / self.reach[..., limit.outcome, None]
        return total

    def level(self, limit: Limit) -> Tensor:
        """The value of a limit in the units of `mean`, `batch_shape`."""
        return in_model_units(self.table, limit.outcome, limit.value)

    def with_std(self, std: Tensor) -> Outlook:
        """The outlook with other standard deviations of the outcomes that are not known."""
        return replace(self, std=beside(std, self.std[..., std.shape[-2] :, :]))

    def of(self, index: Tensor, offered: Tensor | None, seen: Tensor, pending: Tensor) -> Outlook:
        """The outlook on the arms at `index` only. Those in `offered` may be picked, and those in `seen` and `pending` count as
        told and as pending, `batch_shape x len(index)` booleans."""
        return replace(
            self,
            mean=self.mean[..., index],
            std=self.std[..., index],
            known=self.known[..., index],
            drawn=None if self.drawn is None else self.drawn[..., index],
            entries=None if self.entries is None else self.entries[..., index],
            costs=None if self.costs is None else self.costs[..., index],
            offered=offered,
            seen=seen,
            pending=pending,
            settled=self.settled[..., index],
        )

    def log_chance(self, limits: Sequence[Limit]) -> Tensor:
        """`log_probability` of limits, given the rewards told and the pending picks, `batch_shape x A`."""
        return log_probability(self.mean, self.std, limits, self.table)

    def log_chance_told(self, limits: Sequence[Limit]) -> Tensor:
        """`log_probability` of limits, given the rewards told alone, `batch_shape x A`."""
        return log_probability(self.mean, self.known, limits, self.table)

    def log_chance_bound(self, limits: Sequence[Limit]) -> Tensor:
        """The largest value of `log_chance` for these or smaller standard deviations, `batch_shape x A`: 0 for a limit that the
        mean keeps."""
        total = torch.zeros_like(self.mean[..., 0, :])
        for limit in limits:
            keeps = limit.sign * (self.mean[..., limit.outcome, :] - self.level(limit).unsqueeze(-1)) >= 0
            total = total + self.log_chance([limit]).masked_fill(keeps, 0.0)
        return total

    def per_cost(self, gain: Tensor, exponent: float | None) -> Tensor:
        """Gains of arms divided by cost^exponent, `batch_shape x A`; negative gains are multiplied by it. The gains themselves
        if the exponent is None."""
        if exponent is None or self.costs is None:
            return gain
        price = self.costs**exponent
        return torch.where(gain >= 0, gain / price, gain * price)

    def unsettled(self, gain: Tensor) -> Tensor:
        """Logarithms of improvements of the arms on offer, `batch_shape x A`, −∞ at settled arms too as long as another one is
        on offer: to pull them again adds no arm to those that were pulled."""
        gain = self.open(gain)
        left = gain.masked_fill(self.settled, -torch.inf)
        return torch.where((left > -torch.inf).any(dim=-1, keepdim=True), left, gain)

    def open(self, scores: Tensor) -> Tensor:
        """Scores of arms, `batch_shape x A`, −∞ at arms that are not on offer."""
        return scores if self.offered is None else scores.masked_fill(~self.offered, -torch.inf)


class Aim(ABC):
    """Objective over several outcomes: one score per arm, which is maximised."""

    exponent: float | None = None
    """Exponent of the cost of an arm by which its gain is divided; None where costs do not count."""

    @property
    def draws(self) -> bool:
        """Whether a score draws random numbers: `k` of them per pick and batch row."""
        return False

    @abstractmethod
    def scores(self, outlook: Outlook, score: Score | None) -> Tensor:
        """Scores of the arms for the next pick, `batch_shape x A`, −∞ at arms that are not to be picked.

        Args:
            outlook: The posteriors on the arms.
            score: The models' score of one outcome; None where `outlook` holds draws.
        """

    def bounds(self, outlook: Outlook, score: Score | None, value: Tensor) -> Tensor | None:
        """Upper bounds of the scores of the arms in this pick and in further ones of the same selection, in which standard
        deviations are smaller and more arms are pending, `batch_shape x A`. None where later scores may be larger.

        Args:
            outlook: The posteriors on the arms.
            score: As for `scores`.
            value: The result of `scores`.
        """
        return None

    def anchors(self, outlook: Outlook) -> Tensor:
        """Indices of arms, besides those that were told or are pending, on which scores depend: an outlook on a subset of the
        arms with all of these gives its arms the same scores. For aims with `bounds` and one batch row of picks."""
        return outlook.told.new_empty(0, dtype=torch.int64)

    def check(self, num_arms: int) -> None:  # noqa: B027 - most aims name no arms
        """Refuse arms that lack an arm or a feature that the aim names."""

    def contenders(self, outlook: Outlook) -> Tensor | None:
        """The told arms that are recommended so far, `batch_shape x A` booleans, of which some are pulled again to estimate the
        noise; None for an aim that leaves repeated pulls to its scores. In `outlook.seen` only the first of equal arms is
        True."""
        return None

    def kept(self, mean: Tensor, std: Tensor, table: ArmTable) -> Tensor | None:
        """The arms that may be on a front, `batch_shape x A` booleans, from the arguments of `recommended`; None for all."""
        return None

    def recommended(self, mean: Tensor, std: Tensor, width: Tensor, table: ArmTable) -> Tensor | None:
        """The value by which arms are recommended, `batch_shape x A`, from mean and standard deviation of each outcome,
        `batch_shape x k x A`, the widths `batch_shape x k` and the posteriors; None where no single arm is best."""
        return None


def in_model_units(table: ArmTable, outcome: int, value: float) -> Tensor:
    """A value of an outcome, reward units, in the units of its posterior means, or of its known values, `batch_shape`.

    Before the first reward of an outcome whose units are estimated, nothing is known of them: every value counts as the prior
    mean then.
    """
    units, shape = table.posterior.units, table.rows.batch_shape
    given = torch.full((*shape, 1), value, dtype=torch.float64, device=table.leverage.device)
    if outcome >= shape[-1]:
        rows, place = table.rows, outcome - shape[-1]
        if rows.known_scores is None:
            return given[..., 0, 0]
        key = (place, value, rows.known_scores.device)
        if key not in rows.levels:
            assert rows.known is not None
            rows.levels[key] = normal_score_among(rows.known[..., place, :], value)
        return rows.levels[key].expand(shape[:-1])
    if units is not None:
        known = (table.posterior.statistics.weights.sum(dim=-1, keepdim=True) > 0).expand_as(given)
        given = torch.where(known, units.to_model(given), 0.0)
    return given[..., outcome, 0]


def log_probability(mean: Tensor, std: Tensor, limits: Sequence[Limit], table: ArmTable) -> Tensor:
    """The logarithm of the probability that all limits hold, outcomes being independent, `batch_shape x A`."""
    total = torch.zeros_like(mean[..., 0, :])
    if not limits:
        return total
    from botorch.utils.probability.utils import log_ndtr  # noqa: PLC0415 - BoTorch takes a second to load

    for limit in limits:
        level = in_model_units(table, limit.outcome, limit.value).unsqueeze(-1)
        if limit.outcome >= table.rows.batch_shape[-1]:
            lacking = (limit.sign * (level - mean[..., limit.outcome, :])).clamp(0, 1e100)
            # Where all arms break the limit, those that break it least come first.
            total = torch.where(lacking > 0, total + _NEVER * (1 + lacking / (1 + lacking)), total)
            continue
        spread = std[..., limit.outcome, :].clamp_min(torch.finfo(std.dtype).tiny)
        z = limit.sign * (mean[..., limit.outcome, :] - level) / spread
        total = total + log_ndtr(z.clamp(-1e100, 1e100))
    return total


def certain(log_chance: Tensor, certainty: float) -> Tensor:
    """Whether probabilities, given by their logarithms, reach a level."""
    level = torch.as_tensor(certainty, dtype=log_chance.dtype).log()
    return log_chance >= level.to(log_chance.device)


def if_feasible(
    outlook: Outlook, value: Tensor, limits: Sequence[Limit], optimism: float, exponent: float | None = None
) -> Tensor:
    """Values of the arms that may keep the limits, −∞ elsewhere; where no arm on offer may, minus the violations, times the
    cost where costs count. `batch_shape x A`."""
    violation = outlook.open(outlook.per_cost(-outlook.violation(limits, optimism), exponent))
    feasible = violation == 0
    value = outlook.open(value).masked_fill(~feasible, -torch.inf)
    return torch.where(feasible.any(dim=-1, keepdim=True), value, violation)
