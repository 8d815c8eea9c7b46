"""Experiments from a configuration file: policies side by side on one environment, with records, a table and figures.

Needs the extra `torchbandits[experiments]`. `load_config` reads a YAML file, `run_experiment` runs it and writes
everything into a folder, `load_records` and `aggregate` read it back.
"""

from torchbandits.experiments.config import ExperimentConfig, load_config
from torchbandits.experiments.plots import draw_figures
from torchbandits.experiments.records import Record, load_records
from torchbandits.experiments.runner import run_experiment
from torchbandits.experiments.tables import aggregate

__all__ = [
    "ExperimentConfig",
    "Record",
    "aggregate",
    "draw_figures",
    "load_config",
    "load_records",
    "run_experiment",
]
