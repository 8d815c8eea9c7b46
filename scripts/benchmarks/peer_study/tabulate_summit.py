"""Write the two tables of reaction yields from the networks that ship with Summit.

Summit 0.8.4 (MIT licence) contains neural networks fitted to measured yields: a Suzuki coupling (Reizman et al. 2016, case 1)
and a C-N coupling of aniline (Baumgartner et al. 2019). The package pins old versions of its dependencies, so it cannot be part
of the `peers` extra. Its networks are evaluated here once, and their predictions on a grid are committed.

    pip install --no-deps summit==0.8.4
    python -m peer_study.tabulate_summit                     # in scripts/benchmarks
"""

from __future__ import annotations

import importlib.util
import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

DATA = Path(__file__).parent / "data"
LEVELS = 12
SOURCES = {"suzuki": "reizman_suzuki_case_1", "cross_coupling": "baumgartner_aniline_cn_crosscoupling"}


def summit_folder() -> Path:
    spec = importlib.util.find_spec("summit")
    if spec is None or spec.origin is None:
        raise SystemExit("Summit is not installed: pip install --no-deps summit==0.8.4")
    return Path(spec.origin).parent / "benchmarks" / "models"


def grid(domain: list[dict]) -> pd.DataFrame:
    """All combinations of the categories and of 12 levels of each number."""
    inputs = [v for v in domain if not v["is_objective"]]
    levels = [v["levels"] if "levels" in v else np.linspace(*v["bounds"], LEVELS).round(3).tolist() for v in inputs]
    return pd.DataFrame(list(product(*levels)), columns=[v["name"] for v in inputs])


def predict(folder: Path, name: str) -> pd.DataFrame:
    """The mean yield of the five networks at each row of the grid."""
    description = json.loads((folder / f"{name}.json").read_text())
    domain, experiment = description["domain"], description["experiment_params"]
    table = grid(domain)
    categories = [v for v in domain if "levels" in v]
    numbers = [v["name"] for v in domain if not v["is_objective"] and "levels" not in v]
    # Summit's encoder puts the categories after the numbers, in the order of the description.
    one_hot = [(table[v["name"]] == level).to_numpy(float) for v in categories for level in v["levels"]]
    column = experiment["output_variable_names"].index("yld")
    predictions = []
    for number, scaling in enumerate(experiment["predictors"]):
        weights = torch.load(folder / f"{name}_predictor_{number}.pt", weights_only=True)
        given, told = scaling["input_preprocessor"]["num"], scaling["output_preprocessor"]
        scaled = (table[numbers].to_numpy() - given["mean_"]) / given["scale_"]
        inputs = torch.tensor(np.column_stack([scaled, *one_hot]), dtype=torch.float32)
        hidden = torch.relu(inputs @ weights["input_layer.weight"].T + weights["input_layer.bias"])
        output = (hidden @ weights["output_layer.weight"].T + weights["output_layer.bias"])[:, column].double().numpy()
        predictions.append(output * told["scale_"][column] + told["mean_"][column])
    return table.assign(**{"yield": np.mean(predictions, axis=0).round(5)})


if __name__ == "__main__":
    for name, source in SOURCES.items():
        table = predict(summit_folder() / source, source)
        table.to_parquet(DATA / f"{name}.parquet", index=False)
        print(f"{name}: {len(table)} rows, yield {table['yield'].min():.2f} to {table['yield'].max():.2f}")
