"""The methods by name. A method's packages are imported when it is first built, so that one can run without the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from peer_study.game import Budget, Method
from peer_study.tables import Table


@dataclass(frozen=True)
class Entry:
    """A method's class, by module and name, its arguments, and the packages whose versions are recorded with its runs."""

    module: str
    name: str
    packages: tuple[str, ...]
    arguments: dict[str, str]

    def load(self) -> Callable[..., Method]:
        """Import the class and what it needs."""
        return getattr(import_module(f"peer_study.methods.{self.module}"), self.name)

    def build(self, table: Table, budget: Budget, seed: int) -> Method:
        return self.load()(table, budget, seed, **self.arguments)


def entry(module: str, name: str, *packages: str, **arguments: str) -> Entry:
    return Entry(module, name, ("numpy", *packages), arguments)


OURS = ("auto", "batch_bkb")
METHODS = {
    "random": entry("random_search", "Random"),
    "forest_ucb": entry("forest", "Forest", "scikit-learn", score="ucb"),
    "forest_ei": entry("forest", "Forest", "scikit-learn", score="ei"),
    "optuna_tpe": entry("optuna_box", "OptunaBox", "optuna", sampler="tpe"),
    "botorch": entry("botorch_list", "BoTorchList", "botorch", "gpytorch", "torch"),
    "baybe": entry("baybe_campaign", "BaybeCampaign", "baybe", "botorch", "gpytorch", "torch"),
    "smac": entry("smac_box", "SmacBox", "smac", "ConfigSpace"),
    "optuna_gp": entry("optuna_box", "OptunaBox", "optuna", "torch", sampler="gp"),
    "auto": entry("ours", "Auto", "torchbandits", "gpytorch", "torch"),
    "batch_bkb": entry("ours", "BatchBkb", "torchbandits", "gpytorch", "torch"),
}
