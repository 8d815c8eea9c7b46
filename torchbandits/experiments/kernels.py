"""Kernels in configuration files: those of GPyTorch by their names, with fixed hyper-parameters."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated, Any

import gpytorch.kernels
import torch
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from pydantic import AfterValidator, Field, PositiveFloat, ValidationError, model_validator
from torch import Tensor

from torchbandits.errors import ConfigError, TorchBanditsError, nearest, require
from torchbandits.experiments.names import imported
from torchbandits.experiments.sections import Section, all_faults, with_name
from torchbandits.sources import ArmSource

SHORT = {"rbf": "RBFKernel", "matern": "MaternKernel"}
KERNELS: dict[str, type[gpytorch.kernels.Kernel]] = {
    name: kind
    for name in sorted(gpytorch.kernels.__all__)
    if inspect.isclass(kind := getattr(gpytorch.kernels, name)) and kind is not gpytorch.kernels.Kernel
}
"""GPyTorch's kernels by the name of their class."""


def find_kernel(name: str) -> type[gpytorch.kernels.Kernel] | None:
    """The kernel class of a name, such as `rbf` or `PeriodicKernel`; None if a user's function makes the kernel.

    Raises:
        ValueError: If there is none.
    """
    if ":" in name:
        return None
    known = (*SHORT, *KERNELS)
    if name not in known:
        some = "rbf, matern, a kernel of gpytorch.kernels such as PeriodicKernel or RQKernel, or MODULE:FUNCTION"
        raise ValueError(f"unknown kernel {name!r}: expected {some}.{nearest(name, known)}")
    return KERNELS[SHORT.get(name, name)]


def _check_smoothness(nu: float) -> float:
    if nu not in (0.5, 1.5, 2.5):
        raise ValueError("nu must be 0.5, 1.5 or 2.5")
    return nu


Smoothness = Annotated[float, AfterValidator(_check_smoothness)]


def _check_name(name: str) -> str:
    find_kernel(name)
    return name


KernelName = Annotated[str, AfterValidator(_check_name)]
Lengthscale = PositiveFloat | Annotated[list[PositiveFloat], Field(min_length=1)]


class KernelConfig(Section):
    """A GPyTorch kernel: `rbf`, exp(−‖x − x'‖² / 2ℓ²), `matern` of smoothness `nu`, a class of `gpytorch.kernels` by its name,
    such as `PeriodicKernel`, or a user's function, `module:function`, that returns a kernel.

    `lengthscale` is in units of the (scaled) features, one number or one per feature, 1 by default; `outputscale`, reward units
    squared, is 1 by default. `options` are further arguments and hyper-parameters of the kernel by GPyTorch's names
    (`period_length`, `power`, `active_dims`), or arguments of the function. A kernel within a kernel is a mapping that contains
    a name, such as `base_kernel: {name: rbf}`, and `kernels` is a list of such mappings.
    """

    name: KernelName = "rbf"
    lengthscale: Lengthscale | None = None
    nu: Smoothness | None = None
    outputscale: PositiveFloat | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _default_lengthscale(cls, values: Any) -> Any:
        """A kernel that has a length-scale has one of 1 unless another is given."""
        values = with_name(values)
        if not isinstance(values, dict) or not isinstance(name := values.get("name", "rbf"), str):
            return values
        try:
            kind = find_kernel(name)
        except ValueError:
            return values  # reported by the check of the name
        default = 1.0 if kind is not None and kind.has_lengthscale else None
        return values if values.get("lengthscale") is not None else values | {"lengthscale": default}

    @model_validator(mode="after")
    def _check_parts(self) -> KernelConfig:
        kind = find_kernel(self.name)
        if (kind is MaternKernel) != (self.nu is not None):
            raise ValueError(
                "a matern kernel needs nu: 0.5, 1.5 or 2.5"
                if self.nu is None
                else f"nu is for matern, and {self.name} has none"
            )
        if self.lengthscale is not None and (kind is None or not kind.has_lengthscale):
            raise ValueError(f"{self.name} has no lengthscale parameter: leave it out, or set it among the options")
        for name, value in self.options.items():
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, dict):
                    try:
                        KernelConfig.model_validate(part)
                    except ValidationError as error:
                        raise ValueError(f"options.{name}: {all_faults(KernelConfig, error)}") from error
        return self


class KernelOverride(Section):
    """Settings in which a policy's kernel differs from the experiment's. Another name leaves the options behind."""

    name: KernelName | None = None
    lengthscale: Lengthscale | None = None
    nu: Smoothness | None = None
    outputscale: PositiveFloat | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, values: Any) -> Any:
        return with_name(values)


def merged(base: KernelConfig, override: KernelOverride, where: str) -> KernelConfig:
    """The experiment's kernel with a policy's own settings. Another kernel takes over the length-scale, if it has one, and the
    output scale.

    Raises:
        ConfigError: If the settings do not fit the kernel.
    """
    # An empty value, `lengthscale:`, is that of the experiment, as in the resolved file, which leaves such values out.
    overrides = override.model_dump(exclude_unset=True, exclude_none=True)
    values = base.model_dump() | overrides
    try:
        if values["name"] == base.name:
            values["options"] = base.options | override.options
        else:
            kind = find_kernel(values["name"])
            dropped = {"nu", "options"} if kind is not None and kind.has_lengthscale else {"nu", "options", "lengthscale"}
            values = {name: value for name, value in values.items() if name not in dropped or name in overrides}
        return KernelConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}.kernel: {all_faults(KernelConfig, error)}") from error


def build_kernel(configs: Sequence[KernelConfig], arms: Tensor | ArmSource) -> Kernel:
    """A kernel with fixed hyper-parameters, of the arms' dtype and device. Several configurations, which may differ only in the
    length-scale, become its batch rows.

    Raises:
        ConfigError: If GPyTorch's kernel has no such option, or refuses its value.
    """
    config, like = configs[0], torch.empty(0, dtype=arms.dtype, device=arms.device)
    kernel = _scaled(configs, arms.shape[-1], like, "kernel")
    try:
        kernel(like.new_ones(1, arms.shape[-1])).to_dense()
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:  # GPyTorch keeps some options unseen
        raise ConfigError(f"kernel: {config.name} can't be evaluated with these options: {error}.") from error
    return kernel.requires_grad_(False)


def _scaled(configs: Sequence[KernelConfig], dim: int, like: Tensor, where: str) -> Kernel:
    """The kernel, also one within another kernel."""
    kernel, outputscale = _named(configs, dim, like, where), configs[0].outputscale
    if outputscale is None:
        return kernel
    scaled = ScaleKernel(kernel, batch_shape=kernel.batch_shape).to(like)
    # A tensor, because GPyTorch rounds a Python number to float32.
    scaled.outputscale = like.new_tensor(outputscale)
    return scaled


def _named(configs: Sequence[KernelConfig], dim: int, like: Tensor, where: str) -> Kernel:
    """The kernel without its output scale."""
    config = configs[0]
    kind = find_kernel(config.name)
    if kind is None:
        return _yours(config, like, where)
    active = config.options.get("active_dims")
    dim = len(active) if isinstance(active, list) else dim
    ard = [one.lengthscale for one in configs if isinstance(one.lengthscale, list)]
    for several in ard:
        message = f"{where}.lengthscale: expected one number or {dim}, one per feature, got {len(several)}."
        require(len(several) == dim, message, ConfigError)
    shapes: dict[str, Any] = {"ard_num_dims": dim} if ard else {}
    if len(configs) > 1:
        shapes["batch_shape"] = torch.Size([len(configs)])
    taken = _arguments(kind)
    arguments = {name: _argument(name, value, dim, like, where) for name, value in config.options.items() if name in taken}
    parts = arguments.pop("kernels", [])
    try:
        kernel: Kernel = kind(*parts, **{name: config.nu for name in ["nu"] if config.nu}, **arguments, **shapes).to(like)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where}: gpytorch.kernels.{kind.__name__} can't be created with these options: {error}.") from error
    if config.lengthscale is not None:
        width = dim if ard else 1
        lengthscales = torch.stack([like.new_tensor(one.lengthscale).reshape(1, -1).expand(1, width) for one in configs])
        kernel.lengthscale = lengthscales.reshape(kernel.lengthscale.shape)
    for name, value in config.options.items():
        if name not in taken:
            _set(kernel, name, value, like, f"{where}.options", taken)
    return kernel


def _arguments(kind: type[Kernel]) -> set[str]:
    """Arguments of a kernel that a file may give. Priors and constraints are left out: nothing is fitted."""
    found: set[str] = set()
    for one in (kind, Kernel):
        found |= set(inspect.signature(one.__init__).parameters)
    left_out = {"self", "kwargs", "params", "batch_shape", "nu"}
    return {name for name in found - left_out if not name.endswith(("_prior", "_constraint"))}


def _argument(name: str, value: Any, dim: int, like: Tensor, where: str) -> Any:
    """A value of a file as GPyTorch takes it: mappings are kernels, and `active_dims` is a tuple."""
    if isinstance(value, dict) and "name" in value:
        return _scaled([KernelConfig.model_validate(value)], dim, like, f"{where}.options.{name}")
    if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        parts = [KernelConfig.model_validate(one) for one in value]
        return [_scaled([one], dim, like, f"{where}.options.{name}[{place}]") for place, one in enumerate(parts)]
    return tuple(value) if name == "active_dims" and isinstance(value, list) else value


def _set(kernel: Kernel, name: str, value: Any, like: Tensor, where: str, taken: set[str]) -> None:
    """Set a hyper-parameter.

    Raises:
        ConfigError: If the kernel has none of this name, or it does not take the value.
    """
    raw = [raw for raw, _ in kernel.named_parameters(recurse=False) if raw.startswith("raw_")]
    own = [one.removeprefix("raw_") for one in raw]
    known = sorted({*own, *taken} - {"lengthscale"})
    message = f"{where}.{name}: {type(kernel).__name__} has no such option; known: {', '.join(known)}.{nearest(name, known)}"
    require(name in own and name != "lengthscale", message, ConfigError)
    now = getattr(kernel, name)
    try:
        wanted = like.new_tensor(value).expand(now.shape)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where}.{name}: expected one number or {now.shape[-1:].numel()}, got {value!r}.") from error
    constraint = kernel.constraint_for_parameter_name(f"raw_{name}")
    good = bool(wanted.isfinite().all()) and (constraint is None or constraint.check(wanted))
    require(good, f"{where}.{name}: GPyTorch's constraint is {constraint}, got {value!r}.", ConfigError)
    setattr(kernel, name, wanted)


def _yours(config: KernelConfig, like: Tensor, where: str) -> Kernel:
    """The kernel that a function of the user's returns."""
    factory = imported(config.name, f"{where}.name")
    try:
        inspect.signature(factory).bind(**config.options)
    except TypeError as error:
        raise ConfigError(f"{where}.options: {config.name}: {error}.") from error
    try:
        kernel = factory(**config.options)
    except TorchBanditsError as error:
        raise ConfigError(f"{where}.options: {error}") from error
    message = f"{where}.name: {config.name} must return a gpytorch.kernels.Kernel, got {type(kernel).__name__}."
    require(isinstance(kernel, Kernel), message, ConfigError)
    made: Kernel = kernel.to(like)
    return made
