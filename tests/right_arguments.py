"""Valid arguments of all public functions, by the argument's name, and by function if a name has several meanings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import torch
from botorch.utils.datasets import SupervisedDataset

import torchbandits as tb
from torchbandits import experiments
from torchbandits.botorch import BanditModel, PolicyAcquisition

Make = Callable[[Path], Any]  # a function of an empty folder

ARMS = torch.rand(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
REWARDS = ARMS.sum(dim=-1)
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
BYTES = torch.arange(90, dtype=torch.uint8).reshape(30, 3)
THREE = torch.arange(3)
ONES = torch.ones(3, dtype=torch.float64)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def kernel() -> gpytorch.kernels.Kernel:
    return gpytorch.kernels.RBFKernel().double()


def gp_ucb() -> Any:
    return tb.gp_ucb(kernel(), noise_std=0.1)


def known_width() -> Any:
    return tb.gp_ucb(kernel(), noise_std=0.1, width=tb.widths.Constant(2.0))


def bandit() -> tb.Bandit:
    """Make a bandit with some pulls told and three picks open."""
    learned = tb.Bandit(gp_ucb(), ARMS)
    index = torch.arange(12)
    learned.observe(index, torch.full((12,), 2.0), 2 * REWARDS[index], 2 * REWARDS[index] ** 2 + 0.01)
    learned.ask(more=3)
    return learned


def campaign(folder: Path) -> tb.Campaign:
    """Make a campaign with two rows measured and one pending."""
    rows = pandas.DataFrame({"id": range(30), "a": ARMS[:, 0], "b": ARMS[:, 1]})
    made = tb.Campaign(rows, "yield", tb.Journal(folder / "lab", durable=False), policy=gp_ucb())
    made.tell({"id": [3, 4], "yield": [1.0, 2.0]})
    made.ask(1)
    return made


def outcome_campaign(folder: Path) -> tb.OutcomeCampaign:
    rows = pandas.DataFrame({"id": range(30), "a": ARMS[:, 0], "b": ARMS[:, 1]})
    policy = tb.outcomes.pareto(outcome_models())
    made = tb.OutcomeCampaign(rows, ["yield", "cost"], tb.Journal(folder / "labs", durable=False), policy=policy)
    made.tell({"id": [3, 4], "yield": [1.0, 2.0], "cost": [2.0, 1.5]})
    made.ask(1)
    return made


def contextual() -> tb.ContextualBandit:
    learned = tb.ContextualBandit(tb.gp_ucb(kernel(), noise_std=0.1), ARMS, ARMS[:2])
    learned.tell([3], 0.5, context=ARMS[0])
    learned.ask(context=ARMS[0])
    return learned


def outcome_models() -> dict[str, Any]:
    return {"yield": known_width(), "cost": known_width()}


def outcome_bandit() -> tb.OutcomeBandit:
    policy = tb.outcomes.constrained(outcome_models(), maximize="yield", at_most={"cost": 1.0})
    learned = tb.OutcomeBandit(policy, ARMS)
    learned.tell(THREE, torch.zeros(len(THREE), 2))
    learned.ask()
    return learned


def history() -> tb.History:
    recorded = tb.run(tb.uniform(), table(), 3)
    recorded.metadata["outcomes"] = ["yield"]
    return recorded


def table() -> tb.environments.Table:
    return tb.environments.Table(ARMS, REWARDS, 0.1, costs=1 + REWARDS)


def model() -> BanditModel:
    return BanditModel(ARMS[:6], REWARDS[:6, None], kernel=kernel(), noise_std=0.1)


@cache
def worker(folder: Path) -> tb.Worker:
    return tb.Worker(gp_ucb(), ARMS, store=folder / "store.sqlite")


def journal(folder: Path) -> tb.Journal:
    held = tb.Journal(folder / "journal", durable=False)
    tb.Bandit(gp_ucb(), ARMS, journal=held).ask()
    return held


def npy(folder: Path) -> Path:
    np.save(folder / "arms.npy", ARMS.numpy())
    return folder / "arms.npy"


def parquet(folder: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.table({"a": ARMS[:, 0].numpy(), "b": ARMS[:, 1].numpy()}), folder / "arms.parquet")
    return folder / "arms.parquet"


def stream() -> Iterator[torch.Tensor]:
    return iter([ARMS])


def evaluate(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=-1)


def config(folder: Path) -> Any:
    """Write a small experiment to a file."""
    path = folder / "small.yaml"
    path.write_text(
        "{environment: {name: rosenbrock, options: {points_per_dim: 4}}, kernel: {lengthscale: 1.0}, horizon: 3, "
        f"output: '{folder / 'results'}', policies: [{{name: uniform}}]}}"
    )
    return experiments.load_config(path)


def records(folder: Path) -> list[experiments.Record]:
    return [experiments.Record(0, "uniform", 0, history())]


def written(folder: Path) -> Path:
    """A folder with the records of an experiment."""
    experiments.run_experiment(config(folder))
    return folder / "results"


def a_file(folder: Path) -> Path:
    config(folder)
    return folder / "small.yaml"


def reproduction(folder: Path) -> experiments.ReproductionConfig:
    path = folder / "figure.yaml"
    a_file(folder)
    path.write_text(
        "{title: A, source: Nobody, experiments: {small: small.yaml}, panels: [[{experiment: small, measure: mean_regret}]]}"
    )
    return experiments.find_reproduction(str(path))


def no_executor(_: Path) -> Executor:
    return ThreadPoolExecutor(1)


def given(value: Any) -> Make:
    return lambda _: value


BY_NAME: dict[str, Make] = {
    "acq_function": lambda _: PolicyAcquisition(model(), known_width()),
    "arms": given(ARMS),
    "axes": given([torch.linspace(0, 1, 3), torch.linspace(0, 1, 4)]),
    "bandit": lambda _: bandit(),
    "base": given(tb.widths.Constant(1.0)),
    "centers": given(ARMS[:4]),
    "coefficients": given(torch.ones(4, dtype=torch.float64)),
    "config": config,
    "context": given(ARMS[0]),
    "contexts": given(ARMS[:3]),
    "counts": given(ONES),
    "delta": given(0.1),
    "draws": given(100),
    "exactly": given(2),
    "leaders": given(50),
    "labels": given(torch.arange(30) % 3),
    "values": given(torch.arange(30.0)),
    "picks": given(THREE),
    "offered": given(torch.ones(30, dtype=torch.bool)),
    "count": given(2),
    "epsilon": given(0.1),
    "k": given(2),
    "level": given(0.5),
    "means": given(REWARDS),
    "price": given(0.1),
    "stop": given(tb.stopping.Budget(pulls=3)),
    "device": given("cpu"),
    "dim": given(2),
    "distinct": given(True),
    "dtype": given(torch.float64),
    "environment": lambda _: table(),
    "folder": given(Path("somewhere")),
    "function": given(evaluate),
    "generator": lambda _: seeded(),
    "generators": lambda _: [seeded()],
    "horizon": given(50),
    "confidence": given(tb.widths.Constant(1.0)),
    "idcs": given([0]),
    "index": given(THREE),
    "index_or_points": given(THREE),
    "kernel": lambda _: kernel(),
    "lease": lambda folder: worker(folder).ask(),
    "log": given(lambda name, value, step: None),
    "min_batch_size": given(3.0),
    "model": lambda _: model(),
    "models": lambda _: outcome_models(),
    "num_tasks": given(2),
    "bounds": given(BOX),
    "name": given("branin"),
    "noise_std": given(0.1),
    "noise_var": given(0.01),
    "norm_bound": given(1.0),
    "nu": given(1.5),
    "num_arms": given(30),
    "num_features": given(4),
    "num_rounds": given(3),
    "other": given(ARMS[:3]),
    "part": given(slice(0, 3)),
    "points_or_index": given(THREE),
    "points": given(ARMS),
    "policy": lambda _: known_width(),
    "records": records,
    "regularization": given(0.01),
    "reproduction": reproduction,
    "reward": given(1.0),
    "rewards": given(REWARDS),
    "scale": given(0.5),
    "selection": given(THREE),
    "shape": given(torch.Size([30, 2])),
    "size": given(5),
    "sketch_size": given(4),
    "source": lambda _: tb.sources.tensor(ARMS),
    "step": given(7),
    "store": lambda folder: folder / "store.sqlite",
    "stream": given(stream),
    "sums": given(ONES),
    "train_X": given(ARMS),
    "train_Y": given(REWARDS[:, None]),
    "training_data": given(SupervisedDataset(ARMS, REWARDS[:, None], feature_names=["a", "b"], outcome_names=["y"])),
    "threshold": given(0.1),
    "value": given(2.0),
    "X": given(ARMS[:3]),
    "Y": given(REWARDS[:3, None]),
}

_REPORT = tb.Report(*(torch.ones(1, dtype=torch.float64) for _ in range(8)))
BY_FUNCTION: dict[str, dict[str, Make]] = {  # includes optional arguments that other arguments require
    "Bandit": {"arms": given(ARMS)},
    "Bandit.forget": {"selection": lambda _: bandit().ask().index},
    "Bandit.load_state_dict": {"state_dict": lambda _: bandit().state_dict()},
    "Bandit.tell": {"rewards": given(ONES)},
    "Campaign": {
        "table": given({"id": [1, 2, 3], "a": [0.5, 1.5, 2.0], "c": [1.0, 2.0, 1.0]}),
        "objective": given("yield"),
        "policy": lambda _: gp_ucb(),
        "id": given("id"),
        "cost": given("c"),
    },
    "ingredients.PerCost": {"base": given(tb.ingredients.UCB())},
    "Campaign.correct": {"id": given(3), "value": given(1.0)},
    "Campaign.extend": {"table": given({"id": [30], "a": [0.5], "b": [0.25]})},
    "Campaign.exclude": {"ids": given([2])},
    "Campaign.forget": {},
    "Campaign.plan": {"ids": given([2])},
    "Campaign.renew": {
        "table": given({"id": range(31), "a": [*ARMS[:, 0].tolist(), 0.5], "b": [*ARMS[:, 1].tolist(), 0.25]}),
        "journal": lambda folder: folder / "renewed",
    },
    "Campaign.report": {"path": lambda folder: folder / "page.html"},
    "Campaign.tell": {"measured": given({"id": [5], "yield": [1.0]})},
    "OutcomeCampaign": {
        "table": given({"id": [1, 2, 3], "a": [0.5, 1.5, 2.0]}),
        "objectives": given(["yield", "cost"]),
        "policy": lambda _: tb.outcomes.pareto(outcome_models()),
        "minimize": given(["cost"]),
        "id": given("id"),
    },
    "OutcomeCampaign.correct": {"id": given(3), "values": given({"yield": 1.0})},
    "OutcomeCampaign.extend": {"table": given({"id": [30], "a": [0.5], "b": [0.25]})},
    "OutcomeCampaign.exclude": {"ids": given([2])},
    "OutcomeCampaign.forget": {},
    "OutcomeCampaign.plan": {"ids": given([2])},
    "OutcomeCampaign.renew": {
        "table": given({"id": range(31), "a": [*ARMS[:, 0].tolist(), 0.5], "b": [*ARMS[:, 1].tolist(), 0.25]}),
        "journal": lambda folder: folder / "renewed",
    },
    "OutcomeCampaign.report": {"path": lambda folder: folder / "page.html"},
    "botorch.BanditModel.get_fantasy_model": {"inputs": given(ARMS[:3]), "targets": given(REWARDS[:3])},
    "OutcomeCampaign.tell": {"measured": given({"id": [5], "yield": [1.0]})},
    "ContextualBandit.forget": {"selection": lambda _: contextual().ask(context=ARMS[0])},
    "ContextualBandit.load_state_dict": {"state_dict": lambda _: contextual().state_dict()},
    "ContextualBandit.observe": {"context": given(ARMS[0])},
    "ContextualBandit.tell": {"rewards": given(ONES), "context": given(ARMS[0])},
    "GroupNoise": {"variances": given({"a": 0.1, "b": 0.2})},
    "GroupNoise.__call__": {"groups": given(["a", "b"])},
    "GroupNoise.fit": {"groups": given(["a", "b"] * 15)},
    "OutcomeBandit": {"policy": lambda _: tb.outcomes.pareto(outcome_models()), "arms": given(ARMS)},
    "OutcomeBandit.front": {"minimize": given(["cost"])},
    "OutcomeBandit.level_set": {"width": given(tb.widths.Constant(1.0))},
    "OutcomeBandit.forget": {"selection": lambda _: outcome_bandit().ask().index},
    "OutcomeBandit.load_state_dict": {"state_dict": lambda _: outcome_bandit().state_dict()},
    "OutcomeBandit.observe": {"sums": given(torch.zeros(len(THREE), 2))},
    "OutcomeBandit.pareto_set": {"epsilon": given({"yield": 0.1, "cost": 0.1}), "minimize": given(["cost"])},
    "OutcomeBandit.tell": {"rewards": given(torch.zeros(len(THREE), 2))},
    "combinations": {"parameters": given({"a": [1, 2, 3], "b": ["x", "y"]}), "where": given("a < 3"), "count": given(3)},
    "rehearse": {
        "table": given({"id": range(30), "a": ARMS[:, 0].tolist(), "b": ARMS[:, 1].tolist(), "yield": ARMS[:, 0].tolist()}),
        "objective": given("yield"),
        "evaluations": given(8),
        "trials": given(1),
        "columns": given({"b": "number"}),
    },
    "constraints.Total": {"at_most": given(90.0)},
    "outcomes.constrained": {"maximize": given("yield"), "at_most": given({"cost": 1.0})},
    "outcomes.epal": {"epsilon": given({"yield": 0.1, "cost": 0.1})},
    "outcomes.fidelity": {
        "models": lambda _: {"yield": known_width()},
        "arms": given(torch.tensor([[0.1, 1.0], [0.2, 1.0], [0.1, 0.0]], dtype=torch.float64)),
        "column": given(1),
        "target": given(1.0),
        "costs": given({0.0: 1.0, 1.0: 4.0}),
    },
    "outcomes.pareto": {"objectives": given(["yield", "cost"]), "at_most": given({"cost": 1.0})},
    "outcomes.safe": {"start": given([0]), "maximize": given("yield"), "at_most": given({"cost": 1.0})},
    "History.from_parquet": {"folder": lambda folder: (history().to_parquet(folder), folder)[1]},
    "History.r2": {"ideal": given({"yield": 9.0}), "reference": given({"yield": 0.0})},
    "History.hypervolume": {"reference": given({"yield": 0.0}), "minimize": given(["yield"])},
    "Rehearsal.plot": {"path": lambda folder: folder / "rehearsal.png"},
    "History.to_parquet": {"folder": lambda folder: folder},
    "History.record": {
        **dict.fromkeys(("index", "rewards", "regret"), given(torch.zeros(1, 2, dtype=torch.int64))),
        **dict.fromkeys(("recommended", "simple_regret"), given(torch.zeros(1))),
        "report": given(_REPORT),
        "seconds": given(1.0),
    },
    "Journal": {"path": lambda folder: folder / "journal"},
    "Worker": {"arms": given(ARMS)},
    "ingredients.Discount": {"factor": given(0.9)},
    "ingredients.Restart": {"every": given(5)},
    "ingredients.Window": {"pulls": given(5)},
    "forgetting.discount": {"factor": given(0.9)},
    "forgetting.restart": {"every": given(5)},
    "forgetting.window": {"pulls": given(5)},
    "stopping.Budget": {"pulls": given(3), "cost": given(2.0)},
    "stopping.SameArm": {"pulls": given(3)},
    "stopping.SameArm.load_state_dict": {"state_dict": given({"arm": None, "since": None})},
    "sources.NpyFile": {"path": npy},
    "sources.npy": {"path": npy},
    "sources.ColumnFile": {"path": parquet, "columns": given(["a", "b"])},
    "sources.parquet": {"path": parquet},
    "sources.save_npy": {"path": lambda folder: folder / "copy.npy"},
    "sources.Chunks": {"at": given(None)},
    "sources.Fingerprints": {"packed": given(BYTES), "ids": given(range(30)), "smiles": given(["C"] * 30)},
    "sources.Fingerprints.ids": {"picks": given([0, 2])},
    "sources.Fingerprints.smiles": {"picks": given([0, 2])},
    "sources.Fingerprints.save": {"path": lambda folder: folder / "bits.parquet"},
    "sources.from_smiles": {
        "smiles": given(["C", "CC"]),
        "ids": given(["a", "b"]),
        "path": lambda folder: folder / "library.parquet",
        "radius": given(2),
        "num_bits": given(64),
        "counts": given(True),
        "processes": given(1),
        "progress": given(lambda lines, left_out: None),
    },
    "environments.BlackBox": {"arms": given(ARMS)},
    "environments.Recorded": {"records": given(REWARDS[:, None])},
    "environments.from_table": {
        "table": given({"id": [1, 2, 3], "a": [0.5, 1.5, 2.0], "b": [1.0, 2.0, 2.5], "c": [1.0, 2.0, 1.0]}),
        "objective": given("b"),
        "noise_std": given(0.1),
        "id": given("id"),
        "cost": given("c"),
    },
    "diagnostics.calibration": {"source": lambda _: bandit(), "rewards": given(REWARDS[:3])},
    "diagnostics.Calibration.figure": {},
    "callbacks.LogScalars.__call__": {
        "selection": lambda _: bandit().ask(),
        "rewards": given(ONES),
        "report": given(_REPORT),
    },
    "botorch.PolicyAcquisition.forward": {"X": given(ARMS[:3, None])},
    "experiments.aggregate": {"versus": given("uniform")},
    "experiments.draw_figures": {"folder": lambda folder: folder},
    "experiments.find_reproduction": {"name": given("pi-fig2")},
    "experiments.load_config": {"path": a_file},
    "experiments.load_records": {"folder": written},
}

WITHOUT_NAMES: dict[str, tuple[Any, ...]] = {"ContextualBandit.should_stop": (tb.stopping.Budget(pulls=9),)}

OBJECTS: dict[str, Make] = {  # objects whose methods are called
    "Bandit": lambda _: bandit(),
    "Campaign": campaign,
    "ContextualBandit": lambda _: contextual(),
    "GroupNoise": lambda _: tb.GroupNoise({"a": 0.1, "b": 0.2}),
    "History": lambda _: history(),
    "Rehearsal": lambda _: tb.rehearse({"a": range(20), "yield": range(20)}, "yield", evaluations=8, trials=1),
    "OutcomeBandit": lambda _: outcome_bandit(),
    "OutcomeCampaign": outcome_campaign,
    "Journal": journal,
    "Shard": lambda _: tb.Shard(ARMS),
    "Worker": worker,
    "stopping.SameArm": lambda _: tb.stopping.SameArm(3),
    "sources.Chunks": lambda _: tb.sources.chunks(stream, 30, 2),
    "sources.ColumnFile": lambda folder: tb.sources.parquet(parquet(folder)),
    "sources.Fingerprints": lambda _: tb.sources.Fingerprints(BYTES, smiles=["C"] * 30),
    "sources.Grid": lambda _: tb.sources.grid([torch.linspace(0, 1, 5)] * 2),
    "sources.InMemory": lambda _: tb.sources.tensor(ARMS),
    "sources.NpyFile": lambda folder: tb.sources.npy(npy(folder)),
    "sources.Pinned": lambda _: tb.sources.pinned(ARMS, "cpu"),
    "environments.BlackBox": lambda _: tb.environments.BlackBox(evaluate, ARMS),
    "environments.KernelExpansion": lambda _: tb.environments.KernelExpansion(kernel(), ARMS[:4], ONES.new_ones(4)),
    "environments.Function": lambda _: tb.environments.Function(evaluate, ARMS, 0.1),
    "environments.Recorded": lambda _: tb.environments.Recorded(ARMS, REWARDS[:, None]),
    "environments.Table": lambda _: table(),
    "diagnostics.Calibration": lambda _: tb.diagnostics.leave_one_out(bandit()),
    "callbacks.LogScalars": lambda _: tb.callbacks.LogScalars(lambda name, value, step: None),
    "botorch.BanditModel": lambda _: model(),
    "botorch.PolicyAcquisition": lambda _: PolicyAcquisition(model(), known_width()),
}
