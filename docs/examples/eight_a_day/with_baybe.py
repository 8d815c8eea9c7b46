"""The next eight rows of candidates.csv, by BayBE: reads results.csv and writes plate.csv."""

from pathlib import Path

import pandas as pd
from baybe import Campaign
from baybe.objectives import SingleTargetObjective
from baybe.parameters import CategoricalParameter, NumericalDiscreteParameter
from baybe.searchspace import SearchSpace
from baybe.targets import NumericalTarget

table = pd.read_csv("candidates.csv")
features = table.drop(columns="id")
parameters = [
    NumericalDiscreteParameter(name, sorted(features[name].unique()))
    if pd.api.types.is_numeric_dtype(features[name])
    else CategoricalParameter(name, sorted(features[name].unique()))
    for name in features
]
space = SearchSpace.from_dataframe(features, parameters)
campaign = Campaign(space, SingleTargetObjective(NumericalTarget("yield")))
if Path("results.csv").exists():
    results = pd.read_csv("results.csv").merge(table, on="id")
    campaign.add_measurements(results.drop(columns="id"))
plate = campaign.recommend(8)
plate.merge(table, on=list(features)).to_csv("plate.csv", index=False)
