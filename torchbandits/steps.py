"""The steps of a run, recorded in its history with their regret."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchbandits.environments.base import Environment
from torchbandits.history import History
from torchbandits.journal import held, pack
from torchbandits.policies import Policy
from torchbandits.policies.joint import Joint
from torchbandits.types import Report

_STEPS = 64  # steps that are recorded at once


class Steps:
    """Collects steps and records many at once in the history, so that a step costs little."""

    def __init__(self, environment: Environment, batch_shape: torch.Size, policy: Policy | None = None) -> None:
        self._environment, self._rows = environment, batch_shape.numel()
        outcomes = None
        if isinstance(policy, Joint):
            small = [name for name, sign in zip(policy.outcomes, policy.directions, strict=True) if sign < 0]
            outcomes = {"outcomes": list(policy.outcomes), "objectives": policy.objectives, "less_is_better": small}
        self._policy = policy
        self._history = History(self._rows, outcomes)
        self._none = torch.zeros(batch_shape, dtype=torch.int64)
        self._steps: list[tuple[Tensor, Tensor, Tensor, Report, float, Tensor]] = []

    def add(self, index: Tensor, rewards: Tensor, best: Tensor, report: Report, seconds: float, lost: Tensor | None) -> None:
        """Add one ask and tell; `lost` contains the arms of failed evaluations, −1 elsewhere."""
        failed = self._none if lost is None else (lost >= 0).sum(dim=-1).cpu()
        self._steps.append((index, rewards, best, report, seconds, failed))
        if len(self._steps) >= _STEPS:
            self._flush()

    def history(self, stopped: Sequence[str] = ()) -> History:
        """The history of all steps, with the reason why each row stopped, if stopping rules were given."""
        self._flush()
        if stopped:
            self._history.metadata["stopped"] = list(stopped)
        return self._history

    def _flush(self) -> None:
        if not self._steps:
            return
        index, rewards, recommended, reports, seconds, failed = zip(*self._steps, strict=True)
        self._steps, k, rows = [], len(index), self._rows
        most = max(i.shape[-1] for i in index)
        arms = torch.cat([pad(i, (0, most - i.shape[-1]), value=-1) for i in index], dim=-1)
        values = torch.cat([pad(y, (0, most - y.shape[-1])) for y in rewards], dim=-1)
        best = torch.stack(recommended, dim=-1)
        per_step, costs = (rows, k, most), self._environment.costs
        if costs is not None:
            paid = costs.expand(*arms.shape[:-1], -1).gather(-1, arms.clamp_min(0))
            costs = torch.where(arms >= 0, paid, torch.nan).reshape(per_step).transpose(0, 1)
        self._history.record(
            index=arms.reshape(per_step).transpose(0, 1),
            rewards=values.reshape(per_step).transpose(0, 1),
            regret=regret_of(self._environment, arms, self._policy).reshape(per_step).transpose(0, 1),
            report=Report(**{f.name: torch.stack([getattr(r, f.name).reshape(rows) for r in reports]) for f in fields(Report)}),
            recommended=best.reshape(rows, k).T,
            simple_regret=regret_of(self._environment, best, self._policy).reshape(rows, k).T,
            seconds=seconds,
            costs=costs,
            failed=torch.stack(failed).reshape(k, rows),
        )


def regret_of(environment: Environment, index: Tensor, policy: Policy | None) -> Tensor:
    """Regret of arms, shaped like `index`. For several outcomes, the regret of each is the distance from its best value, which
    is the smallest one for an outcome to minimise; NaN for an outcome that only has limits on both sides."""
    if not isinstance(policy, Joint):
        return environment.regret(index)
    sign = environment.means.new_tensor(policy.directions).unsqueeze(-1)
    found = (sign * environment.means).amax(dim=-1, keepdim=True) - sign * environment.expected(index)
    return torch.where(sign == 0, torch.nan, found)


def regret_fields(environment: Environment, policy: Policy) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that returns the regret fields of the record of a tell; none when the environment's optimum is unknown."""
    optimum = environment.optimum.unsqueeze(-1)
    unknown = bool(optimum.isnan().all())

    def beside(record: dict[str, Any]) -> dict[str, Any]:
        if record["kind"] != "tell" or unknown:
            return {}
        index = torch.cat([held(record["index"]), held(record["best"]).unsqueeze(-1)], dim=-1).to(optimum.device)
        regret = regret_of(environment, index, policy)
        return {"regret": pack(regret[..., :-1]), "best_regret": pack(regret[..., -1])}

    return beside
