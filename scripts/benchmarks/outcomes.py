"""Several outcomes on real tables: hypervolume and feasible optima compared with BoTorch and random picks, and scaling in A.

TORCHBANDITS_DATA=… python scripts/benchmarks/outcomes.py run --seeds 5     # add missing runs to docs/results/outcomes.csv
python scripts/benchmarks/outcomes.py scale                                 # the table of docs/measured/outcomes-cost.md
python scripts/benchmarks/outcomes.py leaders                               # leaders of 10⁶ arms, and qLogNEHVI at these
python scripts/benchmarks/outcomes.py report                                # the tables of docs/measured/outcomes.md

All methods start with the same ten arms of a seed. The models have BoTorch's default kernel, an RBF kernel with its
dimension-scaled prior (on fingerprints Tanimoto similarities), times an outputscale, and ours are fitted after every fifth
pull; `auto` has its own kernel. `growth` is the expected growth of the hypervolume above BoTorch's reference point (with
`auto`, above the reference point of the policy). BoTorch fits at every pick, and scores a new random sample of the arms,
because it holds the samples of its acquisition function at all scored arms in memory.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import csv
import importlib
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gpytorch
import numpy as np
import torch
import typer
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.optim import optimize_acqf_discrete
from fixed_kernels import rbf
from gpytorch.mlls import SumMarginalLogLikelihood
from scipy import stats
from torch import Tensor

import torchbandits as tb
from torchbandits import outcomes
from torchbandits.aims import hypervolume
from torchbandits.botorch import optimize_arms

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "results" / "outcomes.csv"
FIRST, SAMPLE, REFIT, MARKS = 10, 1_000, 5, (20, 40, 60)
FIELDS = ("task", "table", "method", "seed", "pulls", "value", "seconds_per_pick")

app = typer.Typer(add_completion=False, help=__doc__.splitlines()[0])


@dataclass(frozen=True)
class Table:
    """Arms `A x d`, recorded outcomes `A x r x 2` (NaN where fewer are recorded), both to be maximised, and their noise.

    `molecules` is True if the arms are fingerprints.
    """

    arms: Tensor
    runs: Tensor
    noise: tuple[float, float]
    molecules: bool = False

    @property
    def truth(self) -> Tensor:
        """The average of the recorded outcomes, `A x 2`."""
        return self.runs.nanmean(dim=1)

    def draw(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """One of the recorded outcomes of each arm, `q x 2`."""
        rows = self.runs[index]
        known = (~rows[..., 0].isnan()).sum(dim=-1)
        place = (torch.rand(len(index), generator=generator, dtype=torch.float64) * known).long()
        return rows[torch.arange(len(index)), place]

    @property
    def reference(self) -> Tensor:
        """The median of each outcome, the reference point of the hypervolume."""
        return self.truth.median(dim=0).values

    @property
    def limit(self) -> float:
        """The upper quartile of the second outcome, the limit of the constrained task."""
        return float(self.truth[:, 1].quantile(0.75))


def data(name: str) -> Any:
    return np.load(Path(os.environ["TORCHBANDITS_DATA"]) / name, allow_pickle=False)


def nas_bench_201() -> Table:
    """−log of the validation error on CIFAR-10 of one of three trainings, and −log of the seconds of a training."""
    arrays = data("nasbench201.npz")
    ops = arrays["ops"].astype(np.int64)
    bits = (ops[..., None] == np.arange(5)).reshape(len(ops), -1).astype(float)
    quality = -np.log(1 - arrays["val_acc_cifar10"] / 100)
    seconds = -np.log(arrays["train_seconds_cifar10valid"])
    runs = np.stack([quality, np.broadcast_to(seconds[:, None], quality.shape)], axis=-1)
    # Put recorded runs first.
    order = np.isnan(quality).argsort(axis=1, kind="stable")
    runs = np.take_along_axis(runs, order[..., None], axis=1)
    return Table(torch.tensor(bits), torch.tensor(runs), (0.05, 0.02))


def fcnet() -> Table:
    """−log of the validation error (protein structure) of one of four trainings, and −log of the number of parameters."""
    arrays = data("fcnet_hpolib.npz")
    index, names = arrays["index"].astype(np.int64), [str(name) for name in arrays["names"]]
    columns = []
    for j, name in enumerate(names):
        values = index[:, j].astype(float)
        columns.append(values / max(1.0, values.max()))
        if name.startswith("activation") or name == "lr_schedule":
            columns[-1] = (values > 0).astype(float)
    units = [arrays["n_units"][index[:, names.index(f"n_units_{i}")]].astype(float) for i in (1, 2)]
    parameters = (9 + 1) * units[0] + (units[0] + 1) * units[1] + units[1] + 1
    quality = -np.log(arrays["valid_mse_protein_structure"].astype(float))
    runs = np.stack([quality, np.broadcast_to(-np.log(parameters)[:, None], quality.shape)], axis=-1)
    return Table(torch.tensor(np.stack(columns, axis=-1)), torch.tensor(runs), (0.05, 0.02))


def molecules() -> Table:
    """RDKit's file of the first compounds of the NCI database, without duplicates: drug-likeness (QED) and −1 times the
    synthetic accessibility score of Ertl and Schuffenhauer 2009, both computed by RDKit, without noise; Morgan fingerprints."""
    from rdkit import Chem, RDConfig, RDLogger  # noqa: PLC0415 - for this table alone
    from rdkit.Chem import QED, rdFingerprintGenerator  # noqa: PLC0415

    RDLogger.DisableLog("rdApp.*")
    sys.path.append(str(Path(RDConfig.RDContribDir) / "SA_Score"))
    score = importlib.import_module("sascorer").calculateScore
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    texts = [line.split()[0] for line in (Path(RDConfig.RDDataDir) / "NCI" / "first_5K.smi").read_text().splitlines()]
    found = {Chem.MolToSmiles(made): made for text in texts if (made := Chem.MolFromSmiles(text)) is not None}
    own = [made for made in found.values() if made.GetNumHeavyAtoms() >= 6]
    values = torch.tensor([[QED.qed(made), -score(made)] for made in own], dtype=torch.float64)
    bits = np.stack([generator.GetFingerprintAsNumPy(made) for made in own]).astype(np.float64)
    return Table(torch.from_numpy(bits), values.unsqueeze(1), (0.02, 0.1), molecules=True)


TABLES = {"nas-bench-201": nas_bench_201, "fcnet": fcnet, "molecules": molecules}


def shape(table: Table) -> gpytorch.kernels.Kernel:
    """The kernel of an outcome of variance 1: BoTorch's default, and Tanimoto similarities of fingerprints."""
    return tb.TanimotoKernel() if table.molecules else get_covar_module_with_dim_scaled_prior(table.arms.shape[-1])


def kernel(table: Table) -> gpytorch.kernels.Kernel:
    return gpytorch.kernels.ScaleKernel(shape(table)).double()


def models(table: Table, make: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """A policy for each outcome, each with a separate kernel that is fitted by the loop."""
    known = {"prior_mean": "estimate", "width": tb.widths.Constant(1.0 if make is tb.thompson_sampling else 2.0)} | options
    return {
        name: make(kernel(table), noise_std=std, **known) for name, std in zip(("quality", "economy"), table.noise, strict=True)
    }


def policy(table: Table, method: str) -> Any:
    limits = {"maximize": "quality", "at_least": {"economy": table.limit}}
    reference = dict(zip(("quality", "economy"), table.reference.tolist(), strict=True))
    if method.startswith("auto"):
        own = {name: tb.auto(replicate_every=0) for name in ("quality", "economy")}
        if method == "auto, bounds":
            return outcomes.constrained(own, **limits)
        return outcomes.pareto(own, scalarization="chebyshev" if method == "auto, chebyshev" else "improvement")
    if method == "growth":
        return outcomes.pareto(models(table, tb.gp_ucb), reference=reference)
    if method == "chebyshev":
        return outcomes.pareto(models(table, tb.gp_ucb), scalarization="chebyshev")
    if method == "hypervolume":
        return outcomes.pareto(models(table, tb.thompson_sampling), scalarization="hypervolume", reference=reference)
    if method == "linear":
        return outcomes.pareto(models(table, tb.gp_ucb), scalarization="linear")
    if method == "bounds":
        return outcomes.constrained(models(table, tb.gp_ucb), **limits)
    if method == "improvement":
        return outcomes.constrained(models(table, tb.gp_ucb, acquisition="ei"), **limits)
    return outcomes.constrained(models(table, tb.thompson_sampling), **limits)


METHODS = {
    "pareto": (
        "random",
        "growth",
        "auto, growth",
        "chebyshev",
        "auto, chebyshev",
        "linear",
        "hypervolume",
        "botorch qLogNEHVI",
    ),
    "constrained": ("random", "bounds", "auto, bounds", "improvement", "draws", "botorch qLogEI"),
}


def play(table: Table, method: str, first: Tensor, pulls: int, seed: int) -> tuple[Tensor, list[float]]:
    """The arms pulled, `pulls`, and the seconds of each decision after the first arms, including kernel fits."""
    generator = torch.Generator().manual_seed(1_000 + seed)
    A = len(table.arms)
    told, values = first.clone(), table.draw(first, generator)
    if method == "random":
        more = torch.randint(A, (pulls - FIRST,), generator=generator)
        return torch.cat([first, more]), [0.0] * (pulls - FIRST)
    spent: list[float] = []
    bandit = None
    if not method.startswith("botorch"):
        arms = table.arms
        if table.molecules:
            arms = tb.sources.Fingerprints(np.packbits(table.arms.numpy() > 0, axis=1), dtype=torch.float64)
        bandit = tb.OutcomeBandit(policy(table, method), arms, generator=torch.Generator().manual_seed(seed))
        bandit.tell(first, values)
    while len(told) < pulls:
        began = time.perf_counter()
        if bandit is None:
            sample = torch.randperm(A, generator=generator)[:SAMPLE]
            index = sample[botorch_pick(table, method, told, values, sample)].reshape(1)
        else:
            if not method.startswith("auto") and len(told) % REFIT == 0:
                bandit.fit_kernel_()
            # Outcomes without noise are not evaluated twice.
            fresh = (bandit.counts == 0).all(dim=-2) if table.molecules else None
            index = bandit.ask(available=fresh).index
        spent.append(time.perf_counter() - began)
        reward = table.draw(index, generator)
        if bandit is not None:
            began = time.perf_counter()
            bandit.tell(bandit.ask(), reward)
            spent[-1] += time.perf_counter() - began
        told, values = torch.cat([told, index]), torch.cat([values, reward])
    return told, spent


def botorch_pick(table: Table, method: str, told: Tensor, values: Tensor, sample: Tensor) -> int:
    """The position of BoTorch's next arm in the sample. Kernels are fitted at each step."""
    x = table.arms[told]
    parts = []
    for j in range(2):
        own = {"covar_module": kernel(table)} if table.molecules else {}
        parts.append(SingleTaskGP(x, values[:, j : j + 1], outcome_transform=Standardize(1), **own))
    model = ModelListGP(*parts)
    fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
    if method.endswith("qLogNEHVI"):
        acquisition = qLogNoisyExpectedHypervolumeImprovement(model, table.reference.tolist(), x, prune_baseline=True)
    else:
        feasible = values[:, 1] >= table.limit
        best = values[feasible, 0].max() if bool(feasible.any()) else values[:, 0].min()
        acquisition = qLogExpectedImprovement(
            model,
            best,
            objective=GenericMCObjective(lambda Y, X=None: Y[..., 0]),
            constraints=[lambda Y: table.limit - Y[..., 1]],
        )
    found, _ = optimize_acqf_discrete(acquisition, 1, table.arms[sample], max_batch_size=250)
    return int((table.arms[sample] == found).all(dim=-1).nonzero()[0, 0])


def value_of(table: Table, task: str, told: Tensor, best: dict[str, float]) -> float:
    """The fraction of the table's hypervolume that the pulled arms dominate, or the regret of their best feasible arm, by the
    averages of the recorded runs."""
    truth = table.truth[told]
    if task == "pareto":
        return hypervolume(truth, table.reference) / best[task]
    feasible = truth[:, 1] >= table.limit
    worst = float(table.truth[:, 0].median())
    return best[task] - (max(worst, float(truth[feasible, 0].max())) if bool(feasible.any()) else worst)


@app.command()
def run(
    seeds: Annotated[int, typer.Option(help="Seeds 0, 1, … below this number.")] = 3,
    only: Annotated[list[str], typer.Option(help="Methods to run, repeated for several; all by default.")] = [],  # noqa: B006
    tables: Annotated[list[str], typer.Option(help="Tables, repeated for several; all by default.")] = [],  # noqa: B006
    records: Path = RECORDS,
) -> None:
    """Run everything that is not recorded yet, and append a line after each run."""
    warnings.filterwarnings("ignore")
    records.parent.mkdir(parents=True, exist_ok=True)
    known = set()
    if records.exists():
        known = {(r["task"], r["table"], r["method"], r["seed"]) for r in csv.DictReader(records.open())}
    else:
        records.write_text(",".join(FIELDS) + "\n")
    made = {name: make() for name, make in TABLES.items() if not tables or name in tables}
    for seed in range(seeds):
        for name, table in made.items():
            feasible = table.truth[:, 1] >= table.limit
            best = {"pareto": hypervolume(table.truth, table.reference), "constrained": float(table.truth[feasible, 0].max())}
            first = torch.randperm(len(table.arms), generator=torch.Generator().manual_seed(seed))[:FIRST]
            for task, methods in METHODS.items():
                for method in methods:
                    if (task, name, method, str(seed)) in known or (only and method not in only):
                        continue
                    torch.manual_seed(seed)
                    told, seconds = play(table, method, first, MARKS[-1], seed)
                    said = []
                    for mark in MARKS:
                        value, mean = value_of(table, task, told[:mark], best), np.mean(seconds[: mark - FIRST])
                        said.append([task, name, method, seed, mark, f"{value:.5f}", f"{mean:.4f}"])
                    with records.open("a") as file:
                        csv.writer(file).writerows(said)
                    print(*said[-1], flush=True)


@app.command()
def report(
    records: Path = RECORDS,
    pulls: Annotated[int, typer.Option(help="After which pull: 20, 40 or 60.")] = MARKS[-1],
) -> None:
    """Print a table per task: mean and standard error over seeds, the number of common seeds that are better than BoTorch's,
    the mean difference over common seeds with its 95 % interval (t distribution), and the median seconds per pick."""
    rows = [row for row in csv.DictReader(records.open()) if int(row["pulls"]) == pulls]
    for task, methods in METHODS.items():
        for name in TABLES:
            print(f"\n| {task}, {name}, {pulls} pulls | value | against BoTorch | seconds a pick |\n| --- | --- | --- | --- |")
            theirs = _by_seed(rows, task, name, methods[-1])
            for method in methods:
                own = _by_seed(rows, task, name, method)
                if not own:
                    continue
                y, s = (np.array([one[j] for one in own.values()]) for j in range(2))
                error = f" ± {y.std(ddof=1) / np.sqrt(len(y)):.2f}" if len(y) > 1 else ""
                print(f"| {method} | {y.mean():.2f}{error} ({len(y)}) | {_paired(task, own, theirs)} | {np.median(s):.2f} |")


def _by_seed(rows: list[dict[str, str]], task: str, name: str, method: str) -> dict[str, tuple[float, float]]:
    """Value and seconds per pick of each seed."""
    own = [row for row in rows if (row["task"], row["table"], row["method"]) == (task, name, method)]
    return {row["seed"]: (float(row["value"]), float(row["seconds_per_pick"])) for row in own}


def _paired(task: str, own: dict[str, tuple[float, float]], theirs: dict[str, tuple[float, float]]) -> str:
    """Number of seeds that are better than BoTorch's, and the mean difference, where positive is better."""
    both = sorted(own.keys() & theirs.keys())
    if len(both) < 2 or own == theirs:
        return ""
    gain = np.array([own[seed][0] - theirs[seed][0] for seed in both]) * (1 if task == "pareto" else -1)
    wide = stats.t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / np.sqrt(len(gain))
    return f"{(gain > 0).sum()} of {len(gain)} better, {gain.mean():+.2f} ± {wide:.2f}"


SCALED = ("growth", "chebyshev", "hypervolume", "bounds", "improvement", "draws", "epal", "safe")


def scaled_policy(method: str) -> Any:
    def model(make: Callable[..., Any], **options: Any) -> dict[str, Any]:
        own = {"width": tb.widths.Constant(2.0)} | options
        return {name: make(rbf(0.5), noise_std=0.1, **own) for name in ("a", "b")}

    limits = {"maximize": "a", "at_least": {"b": 0.0}}
    if method == "growth":
        return outcomes.pareto(model(tb.gp_ucb))
    if method in ("chebyshev", "hypervolume"):
        return outcomes.pareto(model(tb.gp_ucb if method == "chebyshev" else tb.thompson_sampling), scalarization=method)
    if method == "epal":
        return outcomes.epal(model(tb.gp_ucb), epsilon={"a": 0.05, "b": 0.05})
    if method == "safe":
        return outcomes.safe(model(tb.gp_ucb), start=[0], maximize="a", at_least={"b": -1.0})
    make = tb.thompson_sampling if method == "draws" else tb.gp_ucb
    return outcomes.constrained(model(make, **({"acquisition": "ei"} if method == "improvement" else {})), **limits)


@app.command()
def one(method: str, arms: int, history: int = 100, picks: int = 5) -> None:
    """Print processor seconds of an ask and a tell of two outcomes after some history, and the peak memory in MiB."""
    g = torch.Generator().manual_seed(0)
    points = torch.rand(arms, 4, generator=g, dtype=torch.float64)
    truth = torch.stack([torch.sin(3 * points.sum(dim=-1)), torch.cos(2 * points[:, 0] + points[:, 1])], dim=-1)
    bandit = tb.OutcomeBandit(scaled_policy(method), points)
    index = torch.randperm(arms, generator=g)[:history]
    bandit.observe(index, torch.ones(history), truth[index])
    spent = []
    for _ in range(picks):
        began = time.process_time()
        selection = bandit.ask()
        bandit.tell(selection, truth[selection.index])
        spent.append(time.process_time() - began)
    print(f"{np.median(spent):.4f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")


@app.command()
def scale(
    arms: Annotated[list[int], typer.Option(help="Repeat for several.")] = [1_000, 10_000, 100_000, 1_000_000],  # noqa: B006
    methods: Annotated[list[str], typer.Option(help="Repeat for several; all by default.")] = [],  # noqa: B006
) -> None:
    """Print processor seconds per pick and peak memory by policy and number of arms, each measured in a separate process."""
    print("| policy | " + " | ".join(f"{A:,} arms" for A in arms) + " |\n| --- |" + " --- |" * len(arms))
    for method in methods or SCALED:
        cells = []
        for A in arms:
            command = [sys.executable, __file__, "one", method, str(A)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds, memory = done.stdout.split()
            cells.append(f"{float(seconds):.3g} s, {int(memory):,} MiB")
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)


@app.command()
def leaders(arms: int = 1_000_000, count: int = 1_000, history: int = 100) -> None:
    """Print the processor seconds of the leaders of two objectives after some history, those of qLogNEHVI at them, and the peak
    memory in MiB."""
    g = torch.Generator().manual_seed(0)
    points = torch.rand(arms, 4, generator=g, dtype=torch.float64)
    truth = torch.stack([torch.sin(3 * points.sum(dim=-1)), torch.cos(2 * points[:, 0] + points[:, 1])], dim=-1)
    bandit = tb.OutcomeBandit(scaled_policy("growth"), points)
    index = torch.randperm(arms, generator=g)[:history]
    bandit.observe(index, torch.ones(history), truth[index])
    began = time.process_time()
    found = points[bandit.leaders(count)]
    first = time.process_time() - began
    began = time.process_time()
    acquisition = qLogNoisyExpectedHypervolumeImprovement(bandit.model(), [-1.0, -1.0], points[index], prune_baseline=True)
    optimize_arms(acquisition, found)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{first:.2f} s, qLogNEHVI {time.process_time() - began:.2f} s, {memory:.0f} MiB")


if __name__ == "__main__":
    app()
