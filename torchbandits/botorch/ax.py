"""Models and policies of this package in Ax's generation strategies and storage. Needs the extra `torchbandits[ax]`.

Ax is imported when one of these functions is called, never with the package.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpytorch.kernels import Kernel

from torchbandits.botorch.acquisition import PolicyAcquisition
from torchbandits.botorch.inputs import check_named_policy
from torchbandits.botorch.model import BanditModel
from torchbandits.botorch.parts import default_kernel
from torchbandits.checks import check_flag, check_whole, explains_keywords, is_whole
from torchbandits.errors import UnsupportedError, nearest, require
from torchbandits.policies import Policy

if TYPE_CHECKING:
    from ax.generation_strategy.generation_strategy import GenerationStrategy
    from ax.generation_strategy.generator_spec import GeneratorSpec


def register_with_ax() -> None:
    """Register `BanditModel`, `PolicyAcquisition` and `ArmAcquisition` with Ax's JSON and SQL storage; idempotent.

    Call it once per process before an experiment that uses them is saved or loaded; `ax_generator_spec` and
    `ax_generation_strategy` call it.

    Raises:
        UnsupportedError: If Ax is not installed.
    """
    registry = _ax("ax.storage.botorch_modular_registry")
    registry.register_model(BanditModel)
    registry.register_acquisition_function(PolicyAcquisition)
    registry.register_acquisition(_ax("torchbandits.botorch.ax_arms").ArmAcquisition)


@explains_keywords
def ax_generator_spec(
    policy: Policy | str | None = None,
    *,
    policy_options: Mapping[str, Any] | None = None,
    beta: float | None = None,
    model_options: Mapping[str, Any] | None = None,
    model_config_options: Mapping[str, Any] | None = None,
    every_arm: bool = True,
    max_arms: int = 1_000_000,
) -> GeneratorSpec:
    """Ax's modular BoTorch generator with `BanditModel` and `PolicyAcquisition`, for a node of a generation strategy.

    Pass `beta=4.0` with a named policy that has a width: its bounds are then two posterior deviations wide, which is usual in
    practice. Without `beta` a named policy has its own default width, as everywhere in this package; for most policies it is
    that of their theorem, under which early trials only explore. Without a name the policy is GP-UCB with β = 4.

    Ax fits the kernel's hyper-parameters and the noise to the trials at every step, so that no theorem holds in any case.

    Args:
        policy: Name of a policy that scores points (`"gp_bucb"`; `torchbandits policies` lists all), which is made with the
            kernel, noise and λ of the fitted model; GP-UCB by default. Or a policy, which Ax can't store.
        policy_options: Keyword options of a named policy.
        beta: β of BoTorch's μ + √β σ, which replaces the width of a named policy; 4 where no policy is named. For
            `thompson_sampling` pass 1, which then draws from the posterior.
        model_options: Keyword options of `BanditModel`, such as `dictionary="leverage"` or `kernel=`; a kernel can't be
            stored, `model_config_options={"covar_module_class": …}` can.
        model_config_options: Further arguments of Ax's `ModelConfig`.
        every_arm: Where every parameter is discrete, score every combination, observed and pending ones included
            (`ArmAcquisition`). False for Ax's own optimisers, which never evaluate a combination twice and search locally
            above 10⁴ of them.
        max_arms: Combinations above this are left to Ax's own optimisers.

    Raises:
        UnsupportedError: If Ax is not installed; for policies that do not score points, and for `auto`, which fits a model of
            its own.
        ArgumentError: If the policy, or an option of it or of the model, is unknown, options are given beside a policy, or the
            policy's kernel has another form than the model's, by default an RBF kernel.
    """
    options = {"policy_options": policy_options, "model_options": model_options, "model_config_options": model_config_options}
    for name, given in options.items():
        good = given is None or isinstance(given, Mapping)
        require(good, f"{name} must be a dictionary of options, got {type(given).__name__}.")
    known = sorted(set(inspect.signature(BanditModel).parameters) - {"train_X", "train_Y", "train_Yvar"})
    wrong = next((name for name in model_options or {} if name not in known), None)
    message = f"model_options: BanditModel has no option {wrong!r}; known: {', '.join(known)}.{nearest(str(wrong), known)}"
    require(wrong is None, message)
    check_flag("every_arm", every_arm)
    check_whole("max_arms", max_arms)
    # An error must come now, and not after the first trials.
    check_named_policy(policy, policy_options, beta, _kernel(model_options or {}, model_config_options or {}))
    register_with_ax()
    acquisition = {"policy": policy, "policy_options": policy_options and dict(policy_options), "beta": beta}
    surrogate = _ax("ax.generators.torch.botorch_modular.surrogate")
    config = surrogate.ModelConfig(
        botorch_model_class=BanditModel, model_options=dict(model_options or {}), **(model_config_options or {})
    )
    generator_kwargs: dict[str, Any] = {
        "surrogate_spec": surrogate.SurrogateSpec(model_configs=[config]),
        "botorch_acqf_class": PolicyAcquisition,
        "botorch_acqf_options": {name: value for name, value in acquisition.items() if value is not None},
        "acquisition_class": _ax("torchbandits.botorch.ax_arms").ArmAcquisition,
        "acquisition_options": {"max_arms": max_arms if every_arm else 0},
    }
    return _ax("ax.generation_strategy.generator_spec").GeneratorSpec(
        _ax("ax.adapter.registry").Generators.BOTORCH_MODULAR, generator_kwargs=generator_kwargs
    )


def ax_generation_strategy(
    policy: Policy | str | None = None, *, num_initial: int = 5, seed: int | None = None, **options: Any
) -> GenerationStrategy:
    """A generation strategy for Ax's `Client`: Sobol points, then `policy`.

    Pass `beta=4.0` with a named policy, `ax_generation_strategy("gp_bucb", beta=4.0)`: without it the policy has its own
    default width, for most policies that of their theorem, under which early trials only explore. See `ax_generator_spec`.

    Args:
        policy: As in `ax_generator_spec`.
        num_initial: Sobol trials; the policy starts when at least one of them has data.
        seed: Seed of the Sobol points.
        **options: The other arguments of `ax_generator_spec`.

    Raises:
        UnsupportedError: If Ax is not installed.
        ArgumentError: If `num_initial` is below 1, which leaves Ax no data to fit.
    """
    good = is_whole(num_initial)
    require(good, f"num_initial must be a whole number of at least 1: Ax fits its model to data, got {num_initial}.")
    check_whole("seed", seed, 0, otherwise="for any")
    spec = ax_generator_spec(policy, **options)
    strategies, nodes = _ax("ax.generation_strategy.generation_strategy"), _ax("ax.generation_strategy.generation_node")
    criteria = _ax("ax.generation_strategy.transition_criterion")
    sobol = _ax("ax.generation_strategy.generator_spec").GeneratorSpec(
        _ax("ax.adapter.registry").Generators.SOBOL, generator_kwargs={"seed": seed}
    )
    status = _ax("ax.core.trial_status").TrialStatus
    shared = {"transition_to": "torchbandits", "use_all_trials_in_exp": True}
    lost = [status.FAILED, status.ABANDONED]
    enough = [
        criteria.MinTrials(num_initial, not_in_statuses=lost, **shared),
        criteria.MinTrials(1, count_only_trials_with_data=True, **shared),
    ]
    # The policy's node does not deduplicate, since a bandit learns noisy rewards by pulling an arm repeatedly.
    return strategies.GenerationStrategy(
        name="Sobol+torchbandits",
        nodes=[
            nodes.GenerationNode("Sobol", [sobol], transition_criteria=enough, should_deduplicate=True),
            nodes.GenerationNode("torchbandits", [spec]),
        ],
    )


def _kernel(model_options: Mapping[str, Any], model_config_options: Mapping[str, Any]) -> Kernel | None:
    """A kernel of the form of the model's; None if Ax makes it."""
    given = [model_options[name] for name in ("kernel", "covar_module") if model_options.get(name) is not None]
    if not given and model_config_options.get("covar_module_class") is not None:
        return None
    kernel = given[0] if given else default_kernel(1)
    return kernel if isinstance(kernel, Kernel) else None  # BanditModel refuses what is no kernel


def _ax(name: str) -> ModuleType:
    """Import a module that needs Ax."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ax":
            raise
        raise UnsupportedError('this needs Ax: pip install "torchbandits[ax]".') from error
