"""The models and policies of this package in BoTorch and Ax.

`BanditModel` is a BoTorch model over its posteriors, `PolicyAcquisition` the acquisition function of its policies, and
`optimize_arms` finds the best of finitely many arms under any acquisition function. `ax_generation_strategy` is the entry point
for Ax. Importing this package registers the input constructor that Ax looks for, and the sample paths that
`PathwiseThompsonSampling` draws.
"""

from botorch.exceptions import UnsupportedError as BotorchUnsupportedError

from torchbandits.botorch import inputs, paths  # noqa: F401 - they register themselves
from torchbandits.botorch.acquisition import PolicyAcquisition
from torchbandits.botorch.arms import optimize_arms
from torchbandits.botorch.ax import ax_generation_strategy, ax_generator_spec, register_with_ax
from torchbandits.botorch.model import BanditModel
from torchbandits.errors import UnsupportedError

# BoTorch catches its own class of this error. It becomes a base here, and not in `torchbandits.errors`, which must not wait for
# BoTorch to load.
if not issubclass(UnsupportedError, BotorchUnsupportedError):
    UnsupportedError.__bases__ = (*UnsupportedError.__bases__, BotorchUnsupportedError)

__all__ = [
    "BanditModel",
    "PolicyAcquisition",
    "ax_generation_strategy",
    "ax_generator_spec",
    "optimize_arms",
    "register_with_ax",
]
