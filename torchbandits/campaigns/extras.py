"""Modules that campaigns import at first use, because they need the extra `experiments`."""

from __future__ import annotations

from torchbandits.extras import Later

files = Later("torchbandits.files", "campaigns")
page = Later("torchbandits.campaigns.page", "campaigns")
outcome_page = Later("torchbandits.campaigns.outcome_page", "campaigns")
