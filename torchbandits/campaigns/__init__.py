"""From a table to the next experiment: columns become features, ids become arms, and what was measured is told by id.

`Campaign` is encoding and a `Bandit`. It needs the extra `torchbandits[experiments]`, which is imported when one is made.
"""

from torchbandits.campaigns.campaign import Campaign
from torchbandits.campaigns.told import Told

__all__ = ["Campaign", "Told"]
