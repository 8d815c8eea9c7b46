"""The models and policies of this package in BoTorch: `BanditModel` is a BoTorch model over its posteriors."""

from torchbandits.botorch.model import BanditModel

__all__ = ["BanditModel"]
