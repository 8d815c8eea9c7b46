"""Campaigns: choose the next rows of a table of candidates to evaluate, and learn from their results by id.

A `Campaign` encodes columns as features and rows as arms of a `Bandit`. It needs the extra `torchbandits[experiments]`, whose
packages are imported when a campaign is made.
"""

from torchbandits.campaigns.campaign import Campaign
from torchbandits.campaigns.combining import combinations
from torchbandits.campaigns.corrections import Corrected
from torchbandits.campaigns.notes import Told
from torchbandits.campaigns.outcome_campaign import OutcomeCampaign
from torchbandits.campaigns.rehearsal import Rehearsal, rehearse

__all__ = ["Campaign", "Corrected", "OutcomeCampaign", "Rehearsal", "Told", "combinations", "rehearse"]
