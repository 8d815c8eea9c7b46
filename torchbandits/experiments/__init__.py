"""Experiments from a configuration file: policies side by side on one environment, with records, a table and figures.

Needs the extra `torchbandits[experiments]`. `load_config` reads a YAML file, `run_experiment` runs it and writes
everything into a folder, `load_records` and `aggregate` read it back. `find_reproduction` and `reproduce` do so for a figure of
a paper.
"""

from torchbandits.experiments.config import ExperimentConfig, load_config
from torchbandits.experiments.plots import draw_figures
from torchbandits.experiments.records import Record, load_records
from torchbandits.experiments.reproducing import Reproduced, reproduce
from torchbandits.experiments.reproduction import ReproductionConfig, find_reproduction
from torchbandits.experiments.runner import run_experiment
from torchbandits.experiments.tables import aggregate

__all__ = [
    "ExperimentConfig",
    "Record",
    "Reproduced",
    "ReproductionConfig",
    "aggregate",
    "draw_figures",
    "find_reproduction",
    "load_config",
    "load_records",
    "reproduce",
    "run_experiment",
]
