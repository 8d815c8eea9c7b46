"""From names and options in a configuration to kernels, environments and policies."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from torch import Tensor

from torchbandits.environments import Environment
from torchbandits.environments import registry as environments
from torchbandits.errors import ConfigError, DataError, TorchBanditsError, nearest, require
from torchbandits.experiments.config import ExperimentConfig, KernelConfig, PolicyConfig
from torchbandits.policies import registry as policies
from torchbandits.policies.composed import Composed
from torchbandits.starts import uniform
from torchbandits.widths import Constant, Scaled

ENVIRONMENT_SEED_OFFSET = 1_000_000_000
"""Added to the seed of a repetition for the draw of its environment, so that it shares no numbers with the run."""


def build_environment(config: ExperimentConfig, repetition: int) -> Environment:
    """The environment of a repetition; a random one is drawn anew for each.

    Raises:
        ConfigError: If the name or an option is unknown or out of its range.
        DataError: If its data can't be found.
    """
    section = config.environment
    factory = _named(section.name, environments, "environment.name")
    options = check_options(factory, section.options, "environment.options", reserved=("generator", "kernel", "dtype"))
    if is_random(config):
        seed = config.seed + repetition + ENVIRONMENT_SEED_OFFSET
        options["generator"] = torch.Generator().manual_seed(seed)
    return _call(factory, (), options, "environment.options")


def is_random(config: ExperimentConfig) -> bool:
    """Whether the environment is itself a random draw."""
    factory = _named(config.environment.name, environments, "environment.name")
    return "generator" in inspect.signature(factory).parameters


def build_policy(config: ExperimentConfig, places: Sequence[int], environment: Environment) -> Any:
    """The policy at a place of the list, for an environment; or one with a place for each batch row.

    Args:
        config: The experiment.
        places: One, or one a batch row, which differ in the kernel's length-scale at most.
        environment: Gives dtype, device and what an option `environment` stands for.

    Raises:
        ConfigError: If the name or an option is unknown or out of its range.
    """
    place, section = places[0], config.policies[places[0]]
    where = f"policies[{place}]"
    factory = _named(section.name, policies, f"{where}.name")
    scale = _width_scale(section.options.get("width"), where)
    given = {
        name: _resolve(name, value, config, environment, where)
        for name, value in section.options.items()
        if name != "width" or scale is None
    }
    options = check_options(factory, given, f"{where}.options", reserved=("kernel",))
    takes_kernel = "kernel" in inspect.signature(factory).parameters
    kernel: tuple[Kernel, ...] = ()
    if takes_kernel:
        kernels = [policy_kernel(config.kernel, config.policies[p], where) for p in places]
        assert isinstance(environment.arms, Tensor)  # those of the registry are
        kernel = (build_kernel(kernels[:1] if len(set(places)) == 1 else kernels, environment.arms),)
    policy = _call(factory, kernel, options, f"{where}.options")
    if scale is None:
        return policy
    require(isinstance(policy, Composed), f"{where}.options.width: {section.name} has no width to be scaled.", ConfigError)
    return replace(policy, confidence=Scaled(policy.confidence, scale))


def _width_scale(width: Any, where: str) -> float | None:
    """The number in `width: {scaled: number}`, which multiplies the policy's own width; None for another width."""
    if not isinstance(width, dict):
        return None
    good = set(width) == {"scaled"} and isinstance(width["scaled"], int | float) and 0 < width["scaled"] < math.inf
    require(good, f"{where}.options.width: expected a number or {{scaled: a number > 0}}, got {width!r}.", ConfigError)
    return float(width["scaled"])


def policy_kernel(base: KernelConfig, section: PolicyConfig, where: str) -> KernelConfig:
    """The experiment's kernel with what the policy has different."""
    overrides = section.kernel.model_dump(exclude_unset=True)
    values = base.model_dump() | overrides
    if values["name"] == "rbf" and "nu" not in overrides:
        values["nu"] = None
    try:
        return KernelConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}.kernel: {error.errors()[0]['msg']}.") from error


def build_kernel(configs: Sequence[KernelConfig], arms: torch.Tensor) -> Kernel:
    """The kernel in the arms' dtype and on their device, its hyper-parameters fixed; of several, which differ in the
    length-scale only, each is a batch row."""
    dim, config = arms.shape[-1], configs[0]
    ard = config.lengthscale if isinstance(config.lengthscale, list) else None
    if ard is not None and len(ard) != dim:
        raise ConfigError(f"kernel.lengthscale: expected one number or {dim}, one per feature, got {len(ard)}.")
    shapes: dict[str, Any] = {
        "ard_num_dims": None if ard is None else dim,
        "batch_shape": torch.Size([len(configs)] if len(configs) > 1 else []),
    }
    kernel: Kernel
    if config.name == "rbf":
        kernel = RBFKernel(**shapes).to(arms)
    else:
        kernel = MaternKernel(nu=config.nu, **shapes).to(arms)
    lengthscales = torch.stack([arms.new_tensor(c.lengthscale).reshape(1, -1) for c in configs])
    kernel.lengthscale = lengthscales.reshape(kernel.lengthscale.shape)
    if config.outputscale is not None:
        kernel = ScaleKernel(kernel, batch_shape=shapes["batch_shape"]).to(arms)
        kernel.outputscale = arms.new_tensor(config.outputscale)  # a number would be rounded to float32
    return kernel.requires_grad_(False)


def check_options(
    factory: Callable[..., Any], options: dict[str, Any], where: str, reserved: tuple[str, ...]
) -> dict[str, Any]:
    """The options as the types that the factory declares; `reserved` ones are not for a configuration to give.

    Raises:
        ConfigError: If an option is unknown, missing or of another type.
    """
    parameters = {n: p for n, p in inspect.signature(factory).parameters.items() if n not in reserved}
    for name, parameter in parameters.items():
        require(
            name in options or parameter.default is not parameter.empty,
            f"{where}: {factory.__name__} needs the option {name!r}.",
            ConfigError,
        )
    hints = typing.get_type_hints(factory)
    checked = {}
    for name, value in options.items():
        if name not in parameters:
            hint = nearest(name, parameters) or f" Known: {', '.join(parameters) or 'none'}."
            raise ConfigError(f"{where}.{name}: {factory.__name__} has no such option.{hint}")
        checked[name] = _convert(value, hints.get(name, Any), f"{where}.{name}")
    return checked


def _convert(value: Any, annotation: Any, where: str) -> Any:
    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:  # a type only its factory can judge
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{where}: {error.errors()[0]['msg']}, got {value!r}.") from error


def _resolve(name: str, value: Any, config: ExperimentConfig, environment: Environment, where: str) -> Any:
    if value in ("horizon", "1/horizon"):
        return config.horizon if value == "horizon" else 1 / config.horizon
    if value == "environment":
        known = getattr(environment, name, None)
        message = f"{where}.options.{name}: the environment {config.environment.name!r} does not know its {name}."
        require(known is not None, message, ConfigError)
        return known
    if name == "initial" and isinstance(value, int):  # so many uniform first picks
        return uniform(value)
    if name == "width" and isinstance(value, int | float):
        return Constant(float(value))
    return value


def _named(name: str, registry: dict[str, Callable[..., Any]], where: str) -> Callable[..., Any]:
    known = ", ".join(registry)
    require(name in registry, f"{where}: unknown name {name!r}; known: {known}.{nearest(name, registry)}", ConfigError)
    return registry[name]


def _call(factory: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], where: str) -> Any:
    try:
        return factory(*arguments, **options)
    except DataError:
        raise
    except TorchBanditsError as error:
        raise ConfigError(f"{where}: {error}") from error
