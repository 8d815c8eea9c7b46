"""The models and policies of this package in BoTorch.

`BanditModel` is a BoTorch model over its posteriors, `PolicyAcquisition` the acquisition function of its policies, and
`optimize_arms` finds the best of finitely many arms under any acquisition function. Importing this registers the input
constructor that Ax looks for, and the sample paths of `PathwiseThompsonSampling`.
"""

from torchbandits.botorch import inputs, paths  # noqa: F401 - they register themselves
from torchbandits.botorch.acquisition import PolicyAcquisition
from torchbandits.botorch.arms import optimize_arms
from torchbandits.botorch.model import BanditModel

__all__ = ["BanditModel", "PolicyAcquisition", "optimize_arms"]
