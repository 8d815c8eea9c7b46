"""Ax's acquisition wrapper for bandits: every arm is scored, and an arm may be pulled again. Needs Ax."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from ax.adapter.transforms.one_hot import OH_PARAM_INFIX
from ax.core.search_space import SearchSpaceDigest
from ax.exceptions.core import SearchSpaceExhausted
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.utils import mk_discrete_choices
from botorch.generation.sampling import SamplingStrategy
from botorch.optim.parameter_constraints import evaluate_feasibility
from torch import Tensor

from torchbandits.botorch.acquisition import PolicyAcquisition
from torchbandits.botorch.arms import optimize_arms


class ArmAcquisition(Acquisition):
    """Maximise over all combinations of discrete parameters, ordered or not, observed and pending ones included.

    Ax's own `Acquisition` drops every combination that was evaluated or is pending, so that a noisy arm is never pulled twice,
    and searches locally above 10⁴ combinations. This class scores all of them with `optimize_arms`; each pick is pending for
    the next ones. Arms that were never observed, and whose trial is running or was abandoned, are left out while there are
    others. Other search spaces, and more than `max_arms` combinations (an entry of Ax's `acquisition_options`, 10⁶ by default),
    are left to Ax.

    Cost: one score per arm for each of the n picks; for `PolicyAcquisition` one per arm in all.
    """

    def optimize(
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        inequality_constraints: list[tuple[Tensor, Tensor, float]] | None = None,
        equality_constraints: list[tuple[Tensor, Tensor, float]] | None = None,
        fixed_features: dict[int, float] | None = None,
        rounding_func: Callable[[Tensor], Tensor] | None = None,
        optimizer_options: dict[str, Any] | None = None,
        candidate_set: Tensor | None = None,
        sampling_strategy: SamplingStrategy | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Ax's `Acquisition.optimize`: candidates `n x d`, their values `n`, their weights `n` (all 1).

        Raises:
            SearchSpaceExhausted: If no combination satisfies the constraints.
        """
        choices = mk_discrete_choices(ssd=search_space_digest, fixed_features=fixed_features)
        parts = _parts(search_space_digest.feature_names, choices)
        # Other candidates than those of the search space were requested.
        asked = candidate_set is not None or sampling_strategy is not None
        if asked or parts is None or math.prod(len(rows) for _, rows in parts) > self.options.get("max_arms", 1_000_000):
            options: dict[str, Any] = {
                "inequality_constraints": inequality_constraints,
                "equality_constraints": equality_constraints,
                "fixed_features": fixed_features,
                "rounding_func": rounding_func,
                "optimizer_options": optimizer_options,
            }
            if n > 1 and choices and not asked and isinstance(self.acqf, PolicyAcquisition):
                return self._one_by_one(n, search_space_digest, options)
            options |= {"candidate_set": candidate_set, "sampling_strategy": sampling_strategy}
            return super().optimize(n, search_space_digest, **options)
        places = torch.cartesian_prod(*(torch.arange(len(rows)) for _, rows in parts)).reshape(-1, len(parts))
        arms = torch.cat([rows[place] for (_, rows), place in zip(parts, places.unbind(dim=-1), strict=True)], dim=-1)
        order = torch.tensor([column for columns, _ in parts for column in columns]).argsort()
        arms = arms[:, order].to(dtype=self.dtype, device=self.device)
        arms = arms[evaluate_feasibility(arms.unsqueeze(-2), inequality_constraints, equality_constraints)]
        if not len(arms):
            raise SearchSpaceExhausted("no combination of the parameters' values satisfies the constraints.")
        candidates, values, _ = optimize_arms(self.acqf, self._without_lost(arms), n, unique=False)
        return candidates, values, torch.ones(n, dtype=self.dtype)

    def _one_by_one(
        self, n: int, search_space_digest: SearchSpaceDigest, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates of Ax's own optimisers, each pending for the next ones. For several at once, those for discrete parameters
        ask for the joint value of all of them, which a policy does not have."""
        pending, candidates, values = self.X_pending, list[Tensor](), list[Tensor]()
        before = [] if pending is None else [pending]
        try:
            for _ in range(n):
                point, value, _ = super().optimize(1, search_space_digest, **options)
                candidates.append(point)
                values.append(value.reshape(1))
                self.X_pending = torch.cat([*before, *candidates])
                self.acqf.set_X_pending(self.X_pending)
        finally:
            self.X_pending = pending
            self.acqf.set_X_pending(pending)
        return torch.cat(candidates), torch.cat(values), torch.ones(n, dtype=self.dtype)

    def _without_lost(self, arms: Tensor) -> Tensor:
        """The arms without those that are pending and were never observed; all if no others are left.

        Ax counts abandoned trials as pending for ever, and each arm as pending once, so that the upper bound of a noisy arm
        whose trials are abandoned would stay as high as it is.
        """
        if self.X_pending is None:
            return arms
        observed = [] if self.X_observed is None else self.X_observed.tolist()
        lost = torch.zeros(len(arms), dtype=torch.bool, device=arms.device)
        for point in self.X_pending:
            if point.tolist() not in observed:
                lost |= (arms == point.to(arms)).all(dim=-1)
        return arms if bool(lost.all()) else arms[~lost]


def _parts(names: Sequence[str], choices: Mapping[int, Sequence[int | float]]) -> list[tuple[list[int], Tensor]] | None:
    """The columns of each discrete parameter and its values there, `v x columns`, in the order of their first columns; None if
    a parameter is not discrete. A choice without order has one column per value (Ax's `OneHot`)."""
    parts = {names[i]: ([i], torch.tensor(values, dtype=torch.float64).unsqueeze(-1)) for i, values in choices.items()}
    unordered: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        parameter, infix, _ = name.rpartition(OH_PARAM_INFIX)
        if i not in choices and not infix:
            return None
        if i not in choices:
            unordered.setdefault(parameter, []).append(i)
    for parameter, columns in unordered.items():
        parts[parameter] = columns, torch.eye(len(columns), dtype=torch.float64)
    return sorted(parts.values(), key=lambda part: part[0][0])
