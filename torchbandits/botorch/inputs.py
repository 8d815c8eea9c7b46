"""Construction of a `PolicyAcquisition` by BoTorch's registry, which Ax uses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from botorch.acquisition.input_constructors import ACQF_INPUT_CONSTRUCTOR_REGISTRY, acqf_input_constructor
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from torchbandits.botorch.acquisition import PolicyAcquisition
from torchbandits.botorch.agreement import check_scores, kernel_form, uses_width
from torchbandits.botorch.model import BanditModel
from torchbandits.checks import is_finite
from torchbandits.errors import UnsupportedError, nearest, require
from torchbandits.policies import Policy, registry
from torchbandits.widths import Constant

_BETA = 4.0  # two standard deviations


def construct_inputs(
    model: Model,
    policy: Policy | str | None = None,
    policy_options: dict[str, Any] | None = None,
    beta: float | None = None,
    X_pending: Tensor | None = None,
    posterior_transform: PosteriorTransform | None = None,
    num_arms: int | None = None,
    generator: torch.Generator | None = None,
    constraints: Any = None,
    constraints_tuple: Any = None,
) -> dict[str, Any]:
    r"""Keyword arguments of `PolicyAcquisition` from those of BoTorch and Ax; in Ax, options go in `botorch_acqf_options`.

    Args:
        model: The fitted model, a `BanditModel` where the policy goes by its name.
        policy: A policy; or the name of one, such as `"gp_bucb"`, which is made with the kernel, noise and λ of the model (a
            name can be stored as JSON, a policy cannot); `"gp_ucb"` by default.
        policy_options: Further arguments of a named policy, such as `{"norm_bound": 2.0}`.
        beta: β of :math:`\mu + \sqrt{\beta}\,\sigma`, as in BoTorch's `UpperConfidenceBound`: a constant width √β for a
            named policy; 4 where neither policy, options nor β are given.
        X_pending: Points under evaluation.
        posterior_transform: As for `PolicyAcquisition`.
        num_arms: As for `PolicyAcquisition`.
        generator: As for `PolicyAcquisition`.
        constraints: None: a policy knows no outcome constraints.
        constraints_tuple: None, likewise.

    Raises:
        UnsupportedError: With outcome constraints, for several outcomes, and for a named policy on another model.
        ArgumentError: For an unknown policy or option, or options beside a policy that is given.
    """
    require(
        constraints is None and constraints_tuple is None,
        "a policy does not support outcome constraints: leave them out, or use BoTorch's "
        "qLogNoisyExpectedImprovement with the same BanditModel.",
        UnsupportedError,
    )
    require(
        model.num_outputs == 1,
        f"a policy has one reward, and the model has {model.num_outputs} outcomes: leave one metric in the objective (others "
        "may be tracked), ask a torchbandits.OutcomeBandit, or use an acquisition function of BoTorch with the BanditModels.",
        UnsupportedError,
    )
    kernel: Kernel = RBFKernel()  # a policy that is given has its own
    own = {}
    if not isinstance(policy, Policy):
        if not isinstance(model, BanditModel):
            raise UnsupportedError(
                "a named policy is made with the kernel, noise and λ of a BanditModel, and the model is a "
                f"{type(model).__name__}: make a BanditModel of the data, or pass a policy and not its name."
            )
        kernel, own = model.covar_module, {"noise_std": float(model.noise_std), "regularization": float(model.regularization)}
    return {
        "model": model,
        "policy": _made(policy, policy_options, beta, kernel, own),
        "X_pending": X_pending,
        "posterior_transform": posterior_transform,
        "num_arms": num_arms,
        "generator": generator,
    }


def check_named_policy(
    policy: Policy | str | None, policy_options: Mapping[str, Any] | None, beta: float | None, kernel: Kernel | None
) -> None:
    """Check these arguments of `construct_inputs` before there is a model, whose kernel is given, or None if it is not known.

    Raises:
        ArgumentError: For an unknown policy, or options that are unknown, out of range, or given beside a policy; for a width
            that depends on the number of arms, which is unknown here; and for a policy with a kernel of another form.
        UnsupportedError: For a policy that does not score points, and for `auto`, whose model is its own.
    """
    composed = check_scores(_made(policy, policy_options, beta, RBFKernel() if kernel is None else kernel, {}))
    require(
        composed.from_data is None,
        "auto estimates kernel, noise and scales itself, and this model is fitted by Ax: leave the policy out, which is GP-UCB "
        "on the fitted model, or name one, such as 'gp_bucb' with beta=4.0; or ask a Bandit, whose policy auto may be.",
        UnsupportedError,
    )
    require(
        not uses_width(composed) or "num_arms" not in composed.confidence.reads,
        f"the width {type(composed.confidence).__name__} counts the arms of a finite set, and their number is not known here: "
        "pass beta=4.0, or another width, such as policy_options={'width': widths.Constant(2.0)}.",
    )
    mine, theirs = kernel_form(composed.kernel), () if kernel is None else kernel_form(kernel)
    require(
        not theirs or mine == theirs,
        f"the policy's kernel is {' of '.join(mine)}, and that of the model in Ax {' of '.join(theirs)}: give the model one of "
        "the same form, such as model_options={'kernel': gpytorch.kernels.MaternKernel(nu=2.5)}, or name another policy.",
    )


def _made(
    policy: Policy | str | None,
    policy_options: Mapping[str, Any] | None,
    beta: float | None,
    kernel: Kernel,
    own: dict[str, Any],
) -> Policy:
    """The given policy, or the named one with this kernel and those of the model's own numbers that it takes."""
    if isinstance(policy, Policy):
        require(
            policy_options is None and beta is None,
            "policy_options and beta are for a policy that is given by its name: set them in the policy that you pass.",
        )
        return policy
    if policy is None and policy_options is None and beta is None:
        beta = _BETA
    name, options = policy or "gp_ucb", dict(policy_options or {})
    named = isinstance(name, str) and name in registry
    names = f"known: {', '.join(sorted(registry))}.{nearest(str(name), registry)}"
    require(named, f"policy must be a policy or the name of one, unknown policy {name!r}; {names}")
    takes = inspect.signature(registry[name]).parameters
    for option in options:
        known = f"known: {', '.join(takes)}.{nearest(option, takes)}"
        require(option in takes and option != "kernel", f"{name} takes no option {option!r} here; {known}")
    if beta is not None:
        require(is_finite(beta) and beta >= 0, f"beta must be a finite number ≥ 0, got {beta!r:.60}.")
        require("width" not in options, "give either beta or policy_options['width'], and not both.")
        require("width" in takes, f"{name} has no width: leave beta out.")
        own = own | {"width": Constant(math.sqrt(beta))}
    own = {option: value for option, value in own.items() if option in takes} | options
    return registry[name](*((kernel,) if "kernel" in takes else ()), **own)


ACQF_INPUT_CONSTRUCTOR_REGISTRY.pop(PolicyAcquisition, None)  # the module may be reloaded
acqf_input_constructor(PolicyAcquisition)(construct_inputs)
