"""Bandits inside other packages: an Optuna sampler, a search like scikit-learn's, a BayBE recommender.

Each needs the extra of its package: `torchbandits[optuna]`, `torchbandits[experiments]` (scikit-learn), `torchbandits[baybe]`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchbandits.plugins.baybe_recommender import BanditRecommender
    from torchbandits.plugins.optuna_sampler import PoolSampler
    from torchbandits.plugins.sklearn_search import CandidateSearchCV

__all__ = ["BanditRecommender", "CandidateSearchCV", "PoolSampler"]

# Module of each public name. A module is imported when its name is first read: BayBE takes seconds to load.
_MODULES = {
    "BanditRecommender": "baybe_recommender",
    "CandidateSearchCV": "sklearn_search",
    "PoolSampler": "optuna_sampler",
}


def __getattr__(name: str) -> Any:
    """A public name, imported from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted({*globals(), *__all__})
