"""From names and options in a configuration to kernels, environments and policies."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from torchbandits.environments import Environment
from torchbandits.environments import registry as environments
from torchbandits.errors import ConfigError, DataError, TorchBanditsError, nearest, require
from torchbandits.experiments.config import ExperimentConfig, KernelConfig, PolicyConfig
from torchbandits.policies import registry as policies
from torchbandits.starts import uniform
from torchbandits.widths import Constant

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


def build_policy(config: ExperimentConfig, place: int, environment: Environment) -> Any:
    """The policy at a place of the list, for an environment.

    Raises:
        ConfigError: If the name or an option is unknown or out of its range.
    """
    section = config.policies[place]
    where = f"policies[{place}]"
    factory = _named(section.name, policies, f"{where}.name")
    given = {name: _resolve(name, value, config, environment, where) for name, value in section.options.items()}
    options = check_options(factory, given, f"{where}.options", reserved=("kernel",))
    takes_kernel = "kernel" in inspect.signature(factory).parameters
    kernel = (build_kernel(policy_kernel(config.kernel, section, where), environment.arms),) if takes_kernel else ()
    return _call(factory, kernel, options, f"{where}.options")


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


def build_kernel(config: KernelConfig, arms: torch.Tensor) -> Kernel:
    """The kernel in the arms' dtype and on their device, its hyper-parameters fixed."""
    dim = arms.shape[-1]
    ard = config.lengthscale if isinstance(config.lengthscale, list) else None
    if ard is not None and len(ard) != dim:
        raise ConfigError(f"kernel.lengthscale: expected one number or {dim}, one per feature, got {len(ard)}.")
    num_dims = None if ard is None else dim
    kernel: Kernel
    if config.name == "rbf":
        kernel = RBFKernel(ard_num_dims=num_dims).to(arms)
    else:
        kernel = MaternKernel(nu=config.nu, ard_num_dims=num_dims).to(arms)
    kernel.lengthscale = torch.as_tensor(config.lengthscale).to(arms)
    if config.outputscale is not None:
        kernel = ScaleKernel(kernel).to(arms)
        kernel.outputscale = config.outputscale
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
    if value == "1/horizon":
        return 1 / config.horizon
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
