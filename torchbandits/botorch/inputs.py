"""How BoTorch's registry, and with it Ax, builds a `PolicyAcquisition`."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from botorch.acquisition.input_constructors import ACQF_INPUT_CONSTRUCTOR_REGISTRY, acqf_input_constructor
from botorch.acquisition.objective import PosteriorTransform
from torch import Tensor

from torchbandits.botorch.acquisition import PolicyAcquisition
from torchbandits.botorch.model import BanditModel
from torchbandits.errors import UnsupportedError, nearest, require
from torchbandits.policies import Policy, registry
from torchbandits.widths import Constant

_BETA = 4.0  # two standard deviations


def construct_inputs(
    model: BanditModel,
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
    r"""Keyword arguments of `PolicyAcquisition`, from what BoTorch and Ax know; in Ax, options go in `botorch_acqf_options`.

    Args:
        model: The fitted model.
        policy: A policy; or the name of one, such as `"gp_bucb"`, which is then made with the kernel, noise and λ of the model
            (a name can be stored as JSON, a policy can't); `"gp_ucb"` by default.
        policy_options: Further arguments of a policy that is named, such as `{"norm_bound": 2.0}`.
        beta: β of :math:`\mu + \sqrt{\beta}\,\sigma`, as in BoTorch's `UpperConfidenceBound`, a constant width √β for a policy
            that is named; 4 where neither policy, options nor β are given.
        X_pending: Points under evaluation.
        posterior_transform: As for `PolicyAcquisition`.
        num_arms: As for `PolicyAcquisition`.
        generator: As for `PolicyAcquisition`.
        constraints: None: a policy knows no outcome constraints.
        constraints_tuple: None, likewise.

    Raises:
        UnsupportedError: With outcome constraints.
        ArgumentError: For an unknown policy, or options that belong to a policy that is named beside one that is given.
    """
    require(
        constraints is None and constraints_tuple is None,
        "a policy knows no outcome constraints: leave them out, or use BoTorch's qLogNoisyExpectedImprovement with the same "
        "BanditModel.",
        UnsupportedError,
    )
    if isinstance(policy, Policy):
        require(
            policy_options is None and beta is None,
            "policy_options and beta belong to a policy that is named: the policy given has its own.",
        )
    else:
        if policy is None and policy_options is None and beta is None:
            beta = _BETA
        policy = _named_policy(model, "gp_ucb" if policy is None else policy, dict(policy_options or {}), beta)
    return {
        "model": model,
        "policy": policy,
        "X_pending": X_pending,
        "posterior_transform": posterior_transform,
        "num_arms": num_arms,
        "generator": generator,
    }


def _named_policy(model: BanditModel, name: str, options: dict[str, Any], beta: float | None) -> Policy:
    """The policy of that name with the model's kernel, noise and λ."""
    require(name in registry, f"unknown policy {name!r}; known: {', '.join(sorted(registry))}.{nearest(name, registry)}")
    factory = registry[name]
    takes = inspect.signature(factory).parameters
    own: dict[str, Any] = {"noise_std": float(model.noise_std), "regularization": float(model.regularization)}
    if beta is not None:
        require(math.isfinite(beta) and beta >= 0, f"beta must be finite and ≥ 0, got {beta}.")
        require("width" not in options, "give either beta or policy_options['width'], and not both.")
        require("width" in takes, f"{name} has no width: leave beta out.")
        own["width"] = Constant(math.sqrt(beta))
    kernel = (model.covar_module,) if "kernel" in takes else ()
    return factory(*kernel, **({k: v for k, v in own.items() if k in takes} | options))


ACQF_INPUT_CONSTRUCTOR_REGISTRY.pop(PolicyAcquisition, None)  # a module may be loaded again
acqf_input_constructor(PolicyAcquisition)(construct_inputs)
