"""Packages of the extra `experiments` that campaigns use, imported at first use."""

from __future__ import annotations

from torchbandits.extras import Later

compute = Later("pyarrow.compute", "campaigns")
csv = Later("pyarrow.csv", "campaigns")
ipc = Later("pyarrow.ipc", "campaigns")
pandas = Later("pandas", "campaigns")
parquet = Later("pyarrow.parquet", "campaigns")
pyarrow = Later("pyarrow", "campaigns")
sklearn_compose = Later("sklearn.compose", "campaigns")
sklearn_impute = Later("sklearn.impute", "campaigns")
sklearn_pipeline = Later("sklearn.pipeline", "campaigns")
sklearn_preprocessing = Later("sklearn.preprocessing", "campaigns")
files = Later("torchbandits.files", "campaigns")
page = Later("torchbandits.campaigns.page", "campaigns")
