"""Tables of simulated designs: published engineering formulas, evaluated at many random designs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from torchbandits.checks import check_choice, check_dtype, check_whole, is_whole
from torchbandits.environments.datasets import SCALINGS, scaled_features
from torchbandits.environments.functions import GRID_LIMIT
from torchbandits.environments.noise import check_noise
from torchbandits.environments.tables import Table
from torchbandits.errors import require
from torchbandits.linalg import sobol_points

Designs = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Formula:
    """An engineering formula.

    Attributes:
        summary: The output, in words.
        ranges: Lowest and highest value of each input, in its unit.
        value: Function of an array for each input; its value is maximised.
        source: Publication.
    """

    summary: str
    ranges: dict[str, tuple[float, float]]
    value: Callable[[Designs], NDArray[np.float64]]
    source: str


def _wing_weight(d: Designs) -> NDArray[np.float64]:
    sweep = np.cos(np.deg2rad(d["sweep"]))
    weight = 0.036 * d["wing_area"] ** 0.758 * d["fuel_weight"] ** 0.0035 * (d["aspect_ratio"] / sweep**2) ** 0.6
    weight *= d["dynamic_pressure"] ** 0.006 * d["taper"] ** 0.04 * (100 * d["thickness"] / sweep) ** -0.3
    return -(weight * (d["load_factor"] * d["gross_weight"]) ** 0.49 + d["wing_area"] * d["paint_weight"])


def _borehole(d: Designs) -> NDArray[np.float64]:
    ratio = np.log(d["influence_radius"] / d["radius"])
    drop = d["upper_head"] - d["lower_head"]
    leak = 2 * d["length"] * d["upper_transmissivity"] / (ratio * d["radius"] ** 2 * d["conductivity"])
    flow = 2 * np.pi * d["upper_transmissivity"] * drop
    return flow / (ratio * (1 + leak + d["upper_transmissivity"] / d["lower_transmissivity"]))


def _piston(d: Designs) -> NDArray[np.float64]:
    force = d["pressure"] * d["area"] + 19.62 * d["mass"] - d["spring"] * d["volume"] / d["area"]
    gas = d["pressure"] * d["volume"] * d["temperature"] / d["filling_temperature"]
    volume = d["area"] / (2 * d["spring"]) * (np.sqrt(force**2 + 4 * d["spring"] * gas) - force)
    stiffness = d["spring"] + d["area"] ** 2 * gas / volume**2
    return -2 * np.pi * np.sqrt(d["mass"] / stiffness)


FORMULAS: dict[str, Formula] = {
    "wing_weight": Formula(
        "minus the weight of the wing of a light aircraft, pounds",
        {
            "wing_area": (150.0, 200.0),
            "fuel_weight": (220.0, 300.0),
            "aspect_ratio": (6.0, 10.0),
            "sweep": (-10.0, 10.0),
            "dynamic_pressure": (16.0, 45.0),
            "taper": (0.5, 1.0),
            "thickness": (0.08, 0.18),
            "load_factor": (2.5, 6.0),
            "gross_weight": (1700.0, 2500.0),
            "paint_weight": (0.025, 0.08),
        },
        _wing_weight,
        "Forrester, Sobester & Keane 2008, Engineering Design via Surrogate Modelling",
    ),
    "borehole": Formula(
        "water that flows through a borehole, cubic metres a year",
        {
            "radius": (0.05, 0.15),
            "influence_radius": (100.0, 50_000.0),
            "upper_transmissivity": (63_070.0, 115_600.0),
            "upper_head": (990.0, 1110.0),
            "lower_transmissivity": (63.1, 116.0),
            "lower_head": (700.0, 820.0),
            "length": (1120.0, 1680.0),
            "conductivity": (9855.0, 12_045.0),
        },
        _borehole,
        "Harper & Gupta 1983; Morris, Mitchell & Ylvisaker 1993",
    ),
    "piston": Formula(
        "minus the time of one cycle of a piston, seconds",
        {
            "mass": (30.0, 60.0),
            "area": (0.005, 0.02),
            "volume": (0.002, 0.01),
            "spring": (1000.0, 5000.0),
            "pressure": (90_000.0, 110_000.0),
            "temperature": (290.0, 296.0),
            "filling_temperature": (340.0, 360.0),
        },
        _piston,
        "Kenett & Zacks 1998; Ben-Ari & Steinberg 2007",
    ),
}


def simulated_designs(
    name: str = "borehole",
    *,
    num_arms: int = 20_000,
    scaling: str = "standardize",
    noise_std: float = 0.05,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Table:
    """Random designs rewarded by a published engineering formula: a simulation, not measurements.

    Args:
        name: `"borehole"` (8 inputs), `"piston"` (7) or `"wing_weight"` (10).
        num_arms: Number of designs, scrambled Sobol points of the inputs' ranges.
        scaling: `"standardize"` gives each feature mean 0 and variance 1, `"standardize/sqrt_d"` divides that by √d,
            `"none"` leaves them in their units, which differ by factors of a million.
        noise_std: Standard deviation of the Gaussian noise of an evaluation, in scaled reward units.
        seed: Seed of the designs.
        dtype: Dtype of arms and rewards.

    Returns:
        A `Table` whose rewards are the formula's values scaled to [0, 1] over the designs; large is good.

    Raises:
        ArgumentError: If an option is out of its range.

    Source: the publications that `FORMULAS` cites, after
    Surjanovic & Bingham's Virtual Library of Simulation Experiments.
    """
    check_choice("name", name, tuple(FORMULAS))
    check_choice("scaling", scaling, SCALINGS)
    check_noise(noise_std, "gaussian")
    check_whole("seed", seed, 0)
    check_dtype("dtype", dtype)
    require(is_whole(num_arms, 2) and num_arms <= GRID_LIMIT, f"num_arms must be from 2 to {GRID_LIMIT}, got {num_arms}.")
    formula = FORMULAS[name]
    unit = sobol_points(num_arms, len(formula.ranges), seed).numpy()
    low, high = np.array(list(formula.ranges.values()), dtype=np.float64).T
    arms = low + unit * (high - low)
    values = formula.value(dict(zip(formula.ranges, arms.T, strict=True)))
    rewards = (values - values.min()) / (values.max() - values.min())
    return Table(
        torch.from_numpy(scaled_features(arms, scaling)).to(dtype), torch.from_numpy(rewards).to(dtype), noise_std, name=name
    )
