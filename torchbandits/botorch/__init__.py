"""The models and policies of this package in BoTorch: `BanditModel` is a BoTorch model over its posteriors."""

from torchbandits.botorch.ax import ax_generation_strategy, ax_generator_spec, register_with_ax
from torchbandits.botorch.model import BanditModel

__all__ = ["BanditModel", "ax_generation_strategy", "ax_generator_spec", "register_with_ax"]
