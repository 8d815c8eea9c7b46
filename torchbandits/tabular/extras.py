"""Packages of the extra `experiments` that tables need, imported at first use."""

from __future__ import annotations

from torchbandits.extras import Later

compute = Later("pyarrow.compute", "tables")
csv = Later("pyarrow.csv", "tables")
ipc = Later("pyarrow.ipc", "tables")
openpyxl = Later("openpyxl", "Excel workbooks")
pandas = Later("pandas", "tables")
parquet = Later("pyarrow.parquet", "tables")
pyarrow = Later("pyarrow", "tables")
