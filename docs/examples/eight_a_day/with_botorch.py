"""The next eight rows of candidates.csv, by BoTorch: reads results.csv and writes plate.csv."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_discrete
from gpytorch.mlls import ExactMarginalLogLikelihood

table = pd.read_csv("candidates.csv").set_index("id")
numbers = table.assign(concentration=np.log10(table["concentration"]))
features = pd.get_dummies(numbers, columns=["solvent", "catalyst"], dtype=float)
X = torch.tensor(((features - features.min()) / (features.max() - features.min())).to_numpy())
if Path("results.csv").exists():
    results = pd.read_csv("results.csv")
    told = torch.tensor(table.index.get_indexer(results["id"]))
    Y = torch.tensor(results["yield"].to_numpy()).unsqueeze(-1)
    model = SingleTaskGP(X[told], Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    acquisition = qLogNoisyExpectedImprovement(model, X[told])
    left = torch.ones(len(X), dtype=torch.bool).index_fill(0, told, False)
    picked, _ = optimize_acqf_discrete(acquisition, q=8, choices=X[left], max_batch_size=512, unique=True)
    rows = [int((point == X).all(dim=-1).nonzero()[0]) for point in picked]
else:
    rows = torch.randperm(len(X))[:8].tolist()
table.iloc[rows].to_csv("plate.csv")
