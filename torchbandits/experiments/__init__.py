"""Experiments from a configuration file: a comparison of policies on one environment, with records, a table and figures.

Needs the extra `torchbandits[experiments]`. `load_config` reads a YAML file, `run_experiment` runs it and writes
everything into a folder, `load_records` and `aggregate` read it back. `find_reproduction` and `reproduce` do the same for a
figure of a paper.
"""

from typing import TYPE_CHECKING

from torchbandits.extras import lazily

if TYPE_CHECKING:
    from torchbandits.experiments.config import ExperimentConfig, load_config
    from torchbandits.experiments.records import Record, load_records
    from torchbandits.experiments.reproducing import Reproduced, reproduce
    from torchbandits.experiments.reproduction import ReproductionConfig, find_reproduction
    from torchbandits.experiments.results import aggregate, draw_figures
    from torchbandits.experiments.runner import run_experiment

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

# Module of each public name. A module is imported when one of its names is first read: the modules need Matplotlib, pandas and
# pydantic, but the command line imports this package only to print text.
_MODULES = {
    "ExperimentConfig": "config",
    "Record": "records",
    "Reproduced": "reproducing",
    "ReproductionConfig": "reproduction",
    "aggregate": "results",
    "draw_figures": "results",
    "find_reproduction": "reproduction",
    "load_config": "config",
    "load_records": "records",
    "reproduce": "reproducing",
    "run_experiment": "runner",
}
__getattr__, __dir__ = lazily(globals(), _MODULES)
