"""A screening campaign on real molecules: the share of the best 1 % of a library that each method finds within a budget.

    python scripts/benchmarks/screening.py [--seeds 5] [--records FILE.csv] [--methods bbkb ts random forest …]

The library contains every peptide-like amide of 38 acids, 14 amino acids and 46 amines that can be bought, about 24,000
molecules. The objective is RDKit's QED (quantitative estimate of drug-likeness, Bickerton et al. 2012), computed for every
molecule: no package ships a table of measured molecules, and nothing is downloaded. Fingerprints are Morgan's, radius 2, 2,048
bits.

Every method starts with the same random 0.1 % of the library, and picks batches of that size up to 2 %, without repeats. Shares
are fractions of the true best 1 %. Seeds are paired: intervals are 95 % intervals of the differences to BBKB (Student's t).

* auto: `tb.auto()`, whose width is 1 on fingerprints; auto_wide: the same with 2.5, its width for other features;
* bbkb, gp_ucb, ts: `batch_bkb`, `gp_bucb` and `thompson_sampling` with the Tanimoto kernel, width 1, kernel and noise fitted
  after batches 1, 2, 4, 8 and 16;
* bbkb_counts: bbkb on counts of the environments, while all other methods use bits;
* random;
* forest: scikit-learn's random forest of 100 trees, mean plus one standard deviation over the trees;
* network: a perceptron of two hidden layers of 100 on fingerprints, greedy, as in MolPAL (Graff et al. 2021), by scikit-learn;
* network_ucb: the same network with dropout of 0.2 behind each hidden layer, in PyTorch, mean plus two standard deviations of
  ten passes with dropout, which is MolPAL's upper bound; network_ucb1: mean plus one.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import gpytorch
import numpy as np
import scipy.stats
import torch
from rdkit import Chem
from rdkit.Chem import QED
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

import torchbandits as tb
from torchbandits.sources import Fingerprints, from_smiles

# Acyl groups, amino acids and amines, written so that their SMILES can be joined.
_ACIDS = """
CC(=O) CCC(=O) CC(C)C(=O) CC(C)(C)C(=O) C1CC1C(=O) C1CCC1C(=O) C1CCCC1C(=O) C1CCCCC1C(=O) COCC(=O) N#CCC(=O) c1ccccc1C(=O)
Cc1ccccc1C(=O) Cc1cccc(c1)C(=O) Cc1ccc(cc1)C(=O) COc1ccccc1C(=O) COc1cccc(c1)C(=O) COc1ccc(cc1)C(=O) Clc1ccccc1C(=O)
Clc1cccc(c1)C(=O) Clc1ccc(cc1)C(=O) Fc1ccccc1C(=O) Fc1cccc(c1)C(=O) Fc1ccc(cc1)C(=O) FC(F)(F)c1ccc(cc1)C(=O) N#Cc1ccc(cc1)C(=O)
O=[N+]([O-])c1ccc(cc1)C(=O) CN(C)c1ccc(cc1)C(=O) c1ccncc1C(=O) c1cccnc1C(=O) c1ccoc1C(=O) c1ccsc1C(=O) c1ccc2ccccc2c1C(=O)
c1ccc2[nH]ccc2c1C(=O) c1ccccc1CC(=O) c1ccccc1CCC(=O) c1ccccc1OCC(=O) c1ccccc1/C=C/C(=O) CS(=O)(=O)c1ccc(cc1)C(=O)
"""
_AMINO_ACIDS = """
NCC(=O) NC(C)C(=O) NCCC(=O) NCCCC(=O) NC(C(C)C)C(=O) NC(CC(C)C)C(=O) NC(Cc1ccccc1)C(=O) NC(CO)C(=O) N1CCCC1C(=O) N1CCCC(C1)C(=O)
N1CCC(CC1)C(=O) N1CC(C1)C(=O) Nc1ccc(cc1)C(=O) Nc1cccc(c1)C(=O)
"""
_AMINES = """
N NC N(C)C NCC N(CC)CC NCCC NC(C)C NCCCC NCC(C)C NC(C)(C)C NC1CC1 NC1CCC1 NC1CCCC1 NC1CCCCC1 NCCO NCCOC NCCCO NCCN(C)C N1CCCC1
N1CCCCC1 N1CCOCC1 N1CCSCC1 N1CCN(C)CC1 N1CCN(CC1)c1ccccc1 N1CCC(O)CC1 NCc1ccccc1 NCc1ccc(F)cc1 NCc1ccc(Cl)cc1 NCc1ccc(OC)cc1
NCc1ccccn1 NCc1cccnc1 NCc1ccco1 NCCc1ccccc1 NCCc1c[nH]c2ccccc12 Nc1ccccc1 Nc1ccc(C)cc1 Nc1ccc(OC)cc1 Nc1ccc(F)cc1 Nc1ccc(Cl)cc1
Nc1ccc(C#N)cc1 Nc1cccnc1 Nc1ccncc1 Nc1nccs1 NN1CCOCC1 NC1CCN(C)CC1 NCC#C
"""

ACIDS, AMINO_ACIDS, AMINES = (text.split() for text in (_ACIDS, _AMINO_ACIDS, _AMINES))
SHARES = (0.001, 0.005, 0.02)
BEST = 0.01
Picker = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def library() -> tuple[Fingerprints, Fingerprints, np.ndarray]:
    """Fingerprints of bits and of counts with SMILES, and the QED of each molecule."""
    parts = (("".join(blocks), "-".join(map(str, place))) for place, blocks in _products())
    smiles, ids = zip(*parts, strict=True)
    # Molecules with equal fingerprints stay separate arms.
    arms = from_smiles(smiles, ids=ids, distinct=True)
    counted = from_smiles(smiles, ids=ids, counts=True, distinct=True)
    return arms, counted, np.array([QED.qed(Chem.MolFromSmiles(text)) for text in arms.smiles(range(arms.num_arms))])


def _products() -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    sizes = (len(ACIDS), len(AMINO_ACIDS), len(AMINES))
    places = itertools.product(*map(range, sizes))
    return [(place, (ACIDS[place[0]], AMINO_ACIDS[place[1]], AMINES[place[2]])) for place in places]


# ---------------------------------------------------------------------------------- methods


def ours(policy: Callable[..., tb.policies.Policy], **options: object) -> Callable[[Fingerprints, np.ndarray, int], Picker]:
    """A policy of this package."""

    def start(arms: Fingerprints, values: np.ndarray, seed: int) -> Picker:
        kernel = gpytorch.kernels.ScaleKernel(tb.TanimotoKernel()).double()
        kernel.outputscale = 0.04
        own = policy(kernel, noise_std=0.05, width=tb.widths.Constant(1.0), prior_mean="estimate", **options)
        bandit = tb.Bandit(own, arms, generator=torch.Generator().manual_seed(seed))
        known, batches = 0, 0

        def pick(index: np.ndarray, rewards: np.ndarray, count: int) -> np.ndarray:
            nonlocal known, batches
            bandit.tell(torch.as_tensor(index[known:]), torch.as_tensor(rewards[known:]))
            known, batches = len(index), batches + 1
            if batches & (batches - 1) == 0:
                bandit.fit_kernel_(noise=True)
            free = torch.ones(arms.num_arms, dtype=torch.bool)
            free[index] = False
            return bandit.ask(exactly=count, within=[tb.constraints.Distinct()], available=free).index.numpy()

        return pick

    return start


def by_itself(**options: float) -> Callable[[Fingerprints, np.ndarray, int], Picker]:
    """`tb.auto()`, which is given only rewards."""

    def start(arms: Fingerprints, values: np.ndarray, seed: int) -> Picker:
        bandit, known = tb.Bandit(tb.auto(**options), arms, generator=torch.Generator().manual_seed(seed)), 0

        def pick(index: np.ndarray, rewards: np.ndarray, count: int) -> np.ndarray:
            nonlocal known
            bandit.tell(torch.as_tensor(index[known:]), torch.as_tensor(rewards[known:]))
            known = len(index)
            return bandit.ask(exactly=count, available=bandit.counts == 0).index.numpy()

        return pick

    return start


def at_random(arms: Fingerprints, values: np.ndarray, seed: int) -> Picker:
    rng = np.random.default_rng(1000 + seed)

    def pick(index: np.ndarray, rewards: np.ndarray, count: int) -> np.ndarray:
        return rng.choice(np.setdiff1d(np.arange(arms.num_arms), index), count, replace=False)

    return pick


def forest(arms: Fingerprints, values: np.ndarray, seed: int) -> Picker:
    x = arms.chunk(slice(0, arms.num_arms)).float().numpy()

    def pick(index: np.ndarray, rewards: np.ndarray, count: int) -> np.ndarray:
        model = RandomForestRegressor(100, max_features=0.3, random_state=seed).fit(x[index], rewards)
        # Avoids the check of all features in `tree.predict`, which would be repeated for each tree.
        trees = np.stack([tree.tree_.predict(x)[:, 0] for tree in model.estimators_])
        return _highest(trees.mean(axis=0) + trees.std(axis=0), index, count)

    return pick


def network(arms: Fingerprints, values: np.ndarray, seed: int) -> Picker:
    x = arms.chunk(slice(0, arms.num_arms)).float().numpy()

    def pick(index: np.ndarray, rewards: np.ndarray, count: int) -> np.ndarray:
        centre, spread = rewards.mean(), rewards.std()
        model = MLPRegressor(
            hidden_layer_sizes=(100, 100), alpha=1e-3, learning_rate_init=1e-2, max_iter=100, random_state=seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x[index], (rewards - centre) / spread)
        return _highest(model.predict(x), index, count)

    return pick


def dropout(width: float) -> Callable[[Fingerprints, np.ndarray, int], Picker]:
    """A perceptron whose uncertainty is the spread of passes with dropout (Gal & Ghahramani 2016)."""

    def start(arms: Fingerprints, values: np.ndarray, seed: int) -> Picker:
        x = arms.chunk(slice(0, arms.num_arms)).float()

        def pick(index: np.ndarray, rewards: np.ndarray, count: int) -> np.ndarray:
            torch.manual_seed(1_000_000 * seed + len(index))
            first = torch.nn.Linear(x.shape[-1], 100)
            second, third = torch.nn.Linear(100, 100), torch.nn.Linear(100, 1)
            rest = torch.nn.Sequential(torch.nn.Dropout(0.2), second, torch.nn.ReLU(), torch.nn.Dropout(0.2), third)
            parameters = [*first.parameters(), *rest.parameters()]
            optimizer = torch.optim.Adam(parameters, lr=1e-2, weight_decay=1e-5)
            known = torch.as_tensor(index)
            target = torch.as_tensor((rewards - rewards.mean()) / rewards.std(), dtype=torch.float32)
            # The same training as scikit-learn's perceptron: 100 epochs of batches of 200.
            for _ in range(100):
                for rows in torch.randperm(len(index)).split(200):
                    optimizer.zero_grad()
                    found = rest(torch.relu(first(x[known[rows]])))[:, 0]
                    torch.nn.functional.mse_loss(found, target[rows]).backward()
                    optimizer.step()
            with torch.no_grad():
                hidden = torch.relu(first(x))
                passes = torch.stack([rest(hidden)[:, 0] for _ in range(10)])
            return _highest((passes.mean(dim=0) + width * passes.std(dim=0)).numpy(), index, count)

        return pick

    return start


def _highest(scores: np.ndarray, index: np.ndarray, count: int) -> np.ndarray:
    scores = scores.copy()
    scores[index] = -np.inf
    return np.argsort(-scores, kind="stable")[:count]


METHODS: dict[str, Callable[[Fingerprints, np.ndarray, int], Picker]] = {
    "auto": by_itself(),
    "auto_wide": by_itself(width=2.5),
    "bbkb": ours(tb.batch_bkb),
    "bbkb_counts": ours(tb.batch_bkb),
    "gp_ucb": ours(tb.gp_bucb),
    "ts": ours(tb.thompson_sampling),
    "random": at_random,
    "forest": forest,
    "network": network,
    "network_ucb": dropout(2.0),
    "network_ucb1": dropout(1.0),
}


# ---------------------------------------------------------------------------------- campaigns


def campaign(method: str, arms: Fingerprints, values: np.ndarray, seed: int) -> tuple[list[float], float]:
    """Fractions of the best 1 % found at each budget, and the seconds that the method took to pick."""
    best = np.argsort(-values)[: math.ceil(BEST * len(values))]
    budgets = [round(share * len(values)) for share in SHARES]
    size = budgets[0]
    index = np.random.default_rng(seed).choice(len(values), size, replace=False)
    pick, seconds, found = METHODS[method](arms, values, seed), 0.0, []
    while True:
        found += [len(np.intersect1d(index, best)) / len(best)] * (len(index) in budgets)
        if len(index) >= budgets[-1]:
            return found, seconds
        following = next(budget for budget in budgets if budget > len(index))
        began = time.process_time()
        picks = pick(index, values[index], min(size, following - len(index)))
        seconds += time.process_time() - began
        assert not len(np.intersect1d(index, picks))
        index = np.concatenate([index, picks])


def report(records: list[tuple[str, int, list[float], float]]) -> None:
    """Averages over the seeds, and intervals of the paired differences to the first method."""
    methods = list(dict.fromkeys(record[0] for record in records))
    shares = {method: np.array([record[2] for record in records if record[0] == method]) for method in methods}
    print("| method | " + " | ".join(f"{share:.1%} of the library" for share in SHARES) + " | seconds of processor time |")
    print("| --- |" + " --- |" * (len(SHARES) + 1))
    for method in methods:
        own, cells = shares[method], []
        for j in range(len(SHARES)):
            cell = f"{own[:, j].mean():.1%}"
            difference = own[:, j] - shares[methods[0]][:, j]
            if method != methods[0] and len(own) > 1 and j:
                half = scipy.stats.t.ppf(0.975, len(own) - 1) * difference.std(ddof=1) / math.sqrt(len(own))
                cell += f" ({100 * (difference.mean() - half):+.0f} … {100 * (difference.mean() + half):+.0f} points)"
            cells.append(cell)
        seconds = np.mean([record[3] for record in records if record[0] == method])
        print(f"| {method} | " + " | ".join(cells) + f" | {seconds:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--records", type=Path, help="CSV file, to which every run is added as it ends")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", tb.errors.DiagnosticWarning)
    arms, counted, values = library()
    print(
        f"{arms.num_arms:,} molecules, QED from {values.min():.2f} to {values.max():.2f}, 99 % of them below "
        f"{np.quantile(values, 0.99):.3f}",
        flush=True,
    )
    records = []
    for seed in range(given.seeds):
        for method in given.methods:
            found, seconds = campaign(method, counted if method.endswith("_counts") else arms, values, seed)
            records.append((method, seed, found, seconds))
            print(f"seed {seed}, {method}: {', '.join(f'{share:.1%}' for share in found)}; {seconds:.0f} s", flush=True)
            if given.records is not None:
                with given.records.open("a", newline="") as file:
                    csv.writer(file).writerow([method, seed, *found, seconds])
    report(records)


if __name__ == "__main__":
    main()
