"""Logging of a run to TensorBoard or any other logger: `LogScalars`, a callback of `run`, or called in a loop.

    from torch.utils.tensorboard import SummaryWriter  # pip install tensorboard

    writer = SummaryWriter("runs/first")
    tb.run(policy, environment, 1_000, callbacks=[tb.callbacks.LogScalars(writer.add_scalar)])

Any function of a name, a number and a step can be used: `lambda name, value, step: wandb.log({name: value}, step=step)`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import check_function, check_text, check_whole
from torchbandits.errors import require
from torchbandits.types import Report, Selection

__all__ = ["LogScalars"]

_REPORTED = ("batch_size", "distinct_arms", "dictionary_size", "width", "information_gain", "certificate")


class LogScalars:
    """Log the state after each tell, one number per call of `log`.

    The step is the number of pulls told. The numbers are batch size, distinct arms, dictionary size, width, information gain
    (nats), certificate, the mean of the latest rewards, and posterior mean and standard deviation of the recommended arm
    (reward units). Numbers that a policy does not compute are left out. With several batch rows, the numbers of each row are
    logged under `PREFIX/ROW/NAME`.

    Args:
        log: The logging function, called as `log(name, value, step)`, such as `SummaryWriter.add_scalar`.
        prefix: Prefix of the names.
        every: Number of tells from one log to the next.

    Raises:
        ArgumentError: If `every` is not a whole number ≥ 1.

    Cost: O(u) per logged tell, for the recommended arm, and a copy of some numbers to the host.
    """

    def __init__(self, log: Callable[[str, float, int], object], *, prefix: str = "bandit", every: int = 1) -> None:
        check_function("log", log)
        check_text("prefix", prefix)
        check_whole("every", every)
        self._log, self._prefix, self._every = log, prefix, every
        self._tells = 0

    def __call__(self, bandit: Bandit, selection: Selection, rewards: Tensor, report: Report) -> None:
        """Log the state after a tell; the arguments are those that `run` passes to its callbacks."""
        kinds = {"bandit": (bandit, Bandit), "selection": (selection, Selection), "rewards": (rewards, Tensor)}
        for name, (value, kind) in (kinds | {"report": (report, Report)}).items():
            require(isinstance(value, kind), f"{name} must be a {kind.__name__}, got {type(value).__name__}.")
        self._tells += 1
        if self._tells % self._every:
            return
        values = {name: getattr(report, name) for name in _REPORTED} | {"mean_reward": _mean(rewards, selection.mask)}
        # If all evaluations so far failed and were forgotten, there is no arm to recommend.
        if bool((report.pulls > 0).any()):
            best = bandit.best()
            values |= {"best_mean": best.mean[..., 0], "best_std": best.variance[..., 0].sqrt()}
        steps = report.pulls.reshape(-1).tolist()
        for name, tensor in values.items():
            numbers = tensor.detach().to(torch.float64).reshape(-1).tolist()
            for row, (number, step) in enumerate(zip(numbers, steps, strict=True)):
                if number == number:  # NaN where the policy does not compute the number
                    place = "" if len(steps) == 1 else f"{row}/"
                    self._log(f"{self._prefix}/{place}{name}", number, int(step))


def _mean(rewards: Tensor, mask: Tensor) -> Tensor:
    """Mean of the unmasked rewards of each row; NaN for a row without any."""
    kept = torch.where(mask.to(rewards.device), rewards, 0.0)
    return kept.sum(dim=-1) / mask.to(rewards.device).sum(dim=-1)
