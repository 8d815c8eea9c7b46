"""Simulated designs: the formulas at one point each, in units, and tables with the documented scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torchbandits.environments import simulated_designs
from torchbandits.environments.engineering import FORMULAS
from torchbandits.errors import ArgumentError

CESSNA = (174, 252, 7.52, 0, 34, 0.672, 0.12, 3.8, 2000, 0.064)


def at(name: str, inputs: tuple[float, ...]) -> float:
    formula = FORMULAS[name]
    return float(formula.value({key: np.array([float(x)]) for key, x in zip(formula.ranges, inputs, strict=True)})[0])


def test_the_wing_of_a_cessna():
    """Forrester et al. 2008, section 1.4: 0.036 Sw^0.758 …, term by term."""
    area, fuel, aspect, _, pressure, taper, thickness, load, gross, paint = CESSNA
    terms = (0.036 * area**0.758, fuel**0.0035, aspect**0.6, pressure**0.006, taper**0.04, (100 * thickness) ** -0.3)
    assert at("wing_weight", CESSNA) == pytest.approx(-math.prod(terms) * (load * gross) ** 0.49 - area * paint)
    assert 230 < -at("wing_weight", CESSNA) < 250


def test_a_borehole():
    radius, outer, upper, head, lower, tail, length, conductivity = 0.1, 25_050, 89_335, 1050, 89.55, 760, 1400, 10_950
    log = math.log(outer / radius)
    below = log * (1 + 2 * length * upper / (log * radius**2 * conductivity) + upper / lower)
    flow = at("borehole", (radius, outer, upper, head, lower, tail, length, conductivity))
    assert flow == pytest.approx(2 * math.pi * upper * (head - tail) / below)
    assert 60 < flow < 90


def test_a_piston():
    mass, area, volume, spring, pressure, ambient, filling = 45, 0.0125, 0.006, 3000, 100_000, 293, 350
    force = pressure * area + 19.62 * mass - spring * volume / area
    gas = pressure * volume / filling * ambient
    v = area / (2 * spring) * (math.sqrt(force**2 + 4 * spring * gas) - force)
    cycle = 2 * math.pi * math.sqrt(mass / (spring + area**2 * gas / v**2))
    assert at("piston", (mass, area, volume, spring, pressure, ambient, filling)) == pytest.approx(-cycle)
    assert 0.1 < cycle < 1


@pytest.mark.parametrize("name", FORMULAS)
def test_a_table_is_scaled_and_the_same_each_time(name):
    table = simulated_designs(name, num_arms=500)
    assert table.arms.shape == (500, len(FORMULAS[name].ranges))
    assert table.means.aminmax() == (0, 1)
    torch.testing.assert_close(table.arms.mean(dim=0), torch.zeros_like(table.arms[0]), atol=1e-9, rtol=0)
    torch.testing.assert_close(table.arms.var(dim=0, correction=0), torch.ones_like(table.arms[0]))
    raw = simulated_designs(name, num_arms=500, scaling="none")
    low, high = torch.tensor(list(FORMULAS[name].ranges.values()), dtype=torch.float64).T
    assert bool(((raw.arms >= low) & (raw.arms <= high)).all())
    assert torch.equal(raw.means, table.means)
    assert not torch.equal(simulated_designs(name, num_arms=500, seed=1).means, table.means)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "bore hole"}, "borehole"),
        ({"num_arms": 1}, "num_arms"),
        ({"num_arms": 10**9}, "num_arms"),
        ({"scaling": "log"}, "scaling"),
        ({"noise_std": -1.0}, "noise_std"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_is_out_of_range_is_named(options, message):
    with pytest.raises(ArgumentError, match=message):
        simulated_designs(**options)
