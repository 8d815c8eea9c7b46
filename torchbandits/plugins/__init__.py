"""Bandits in other packages: an Optuna sampler, a scikit-learn search, and a BayBE recommender.

Each plug-in needs the extra of its package: `torchbandits[optuna]`, `torchbandits[experiments]` (scikit-learn),
`torchbandits[baybe]`.
"""

from typing import TYPE_CHECKING

from torchbandits.extras import lazily

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
__getattr__, __dir__ = lazily(globals(), _MODULES)
