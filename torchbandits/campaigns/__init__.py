"""Campaigns: a table of candidates, from which the next rows to evaluate are chosen and whose results are told by id.

A `Campaign` encodes columns as features and rows as arms of a `Bandit`. It needs the extra `torchbandits[experiments]`, whose
packages are imported when a campaign is made.
"""

from torchbandits.campaigns.campaign import Campaign
from torchbandits.campaigns.outcome_campaign import OutcomeCampaign
from torchbandits.campaigns.results import Told

__all__ = ["Campaign", "OutcomeCampaign", "Told"]
