"""Everything from the data: scales, rewards, kernel, noise. No guarantee, and no argument that must be given."""

from __future__ import annotations

import gpytorch

from torchbandits.batching import FixedSize
from torchbandits.checks import check_memory_budget, explains_keywords, non_negative
from torchbandits.policies.composed import Composed
from torchbandits.policies.from_data import FromData
from torchbandits.starts import Spread, Start
from torchbandits.widths import Constant, Width

_FIRST = 6  # picks before the model is asked


@explains_keywords
def auto(
    *,
    batch_size: int = 1,
    width: Width | float | None = None,
    initial: Start | None = None,
    memory_budget: int = 2 << 30,
) -> Composed:
    r"""For someone who knows no kernel, no noise and no scale: everything is estimated from arms and rewards.

    Features are measured by their ranges over the arms, rewards by normal scores of their ranks. Kernel (Matérn-5/2, a
    lengthscale for each feature) and noise are fitted under priors whenever the pulls have grown by half. The arm pulled is

    .. math:: x_{t+1} = \arg\max_x \mu_t(x) + w\,\sigma_t(x)

    in these units, with picks of a batch and picks that are out treated as pending. What the posterior, `best` and the bounds
    say is in reward units.

    Args:
        batch_size: Picks of one `ask`.
        width: w, or a `Width`; 2.5 by default.
        initial: First picks; by default six arms that stand for all others, see `starts.Spread`.
        memory_budget: Bytes that the exact posterior may take; with a dictionary, that cached kernel columns may take.

    Warns (`DiagnosticWarning`): Once, when one arm has taken more than half of the last 40 pulls; names the reason.

    Guarantee: none, the kernel is estimated; `igp_ucb` has one for a kernel and a norm that are known. Cost: O(A u) a pick, u
    distinct arms pulled, and O(u³) an iteration for each of O(log t) fits.
    Source: Hvarfner et al. 2024 (priors); Salinas et al. 2020 (normal scores); Srinivas et al. 2010 (the rule); Kaufman and
    Rousseeuw 1990 (first picks).
    """
    check_memory_budget(memory_budget)
    own = width if isinstance(width, Width) else Constant(2.5 if width is None else non_negative("width", width))
    return Composed(
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5)).double(),  # its form: the values are estimated
        noise_std=1.0,
        confidence=own,
        regularization=1.0,
        batch_rule=FixedSize(size=batch_size, max_pulls=1),
        initial=Spread(_FIRST) if initial is None else initial,
        memory_budget=memory_budget,
        from_data=FromData(exact_bytes=memory_budget),
    )
