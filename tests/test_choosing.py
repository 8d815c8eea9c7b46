"""docs/choosing.md, followed literally: every row beats picking at random on two small tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

import torchbandits as tb
from torchbandits.environments import Table, simulated_designs

PAGE = (Path(__file__).parents[1] / "docs" / "choosing.md").read_text(encoding="utf-8")
ROWS = [re.split(r" \| ", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| ")]
ROWS = ROWS[2 : [row[0] for row in ROWS].index("a baseline is wanted")]
RECIPES = sorted({code for row in ROWS for code in re.findall(r"`(tb\.[^`]+)`", row[1])})
HORIZON = 30


def diabetes() -> Table:
    """442 patients with 10 measures; the reward is the progression of the disease in a year."""
    features, progress = load_diabetes(return_X_y=True, scaled=False)
    return Table(torch.from_numpy(features), torch.from_numpy(progress), 20.0, name="diabetes")


def piston() -> Table:
    """400 designs with 7 inputs in their units, which differ by factors of 10⁸; the reward is the speed of a cycle."""
    return simulated_designs("piston", num_arms=400, scaling="none", noise_std=0.05)


@pytest.fixture(scope="module", params=[diabetes, piston])
def given(request: pytest.FixtureRequest) -> dict:
    """The quantities that the page asks to determine first."""
    names: dict = {}
    exec(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0], names)
    table: Table = request.param()
    assert isinstance(table.arms, Tensor)
    draw = torch.Generator().manual_seed(1)
    index = torch.randint(len(table.arms), (30,), generator=draw)
    pilot, repeats = table.sample(index, [draw]), table.sample(index[:1].expand(10), [draw])
    arms, kernel, options = names["practical"](table.arms, pilot, repeats)
    costs = torch.ones(len(arms), dtype=torch.float64)
    scaled = Table(arms, table.means / pilot.std(), table.noise_std / float(pilot.std()), costs=costs)
    raw = Table(table.arms, table.means, table.noise_std)
    found = {"raw": raw, "scaled": scaled, "tb": tb, "kernel": kernel, "given": options, "horizon": HORIZON}
    return found | {"uniform": {kind: regret(tb.uniform(), found[kind]) for kind in ("raw", "scaled")}}


def regret(policy: tb.Policy, table: Table) -> float:
    return tb.run(policy, table, HORIZON, generator=torch.Generator().manual_seed(0)).summary()["regret"]


@pytest.mark.sweep(6)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_row_followed_literally_beats_random_picks(recipe: str, given: dict) -> None:
    kind = "raw" if recipe == "tb.auto()" else "scaled"
    ratio = regret(eval(recipe, dict(given)), given[kind]) / given["uniform"][kind]
    assert ratio < 0.9, f"{recipe}: {ratio:.2f} of the regret of uniform picks"


def test_the_kernel_of_a_box_is_that_of_its_points_standardised() -> None:
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[:2]:
        exec(block, names)
    low, high = names["box"]
    points = torch.lerp(low, high, torch.rand(20_000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    _, kernel, given = names["practical"](points, points[:, 0], points[:9, 0])
    torch.testing.assert_close(names["kernel"].lengthscale, kernel.lengthscale * points.std(dim=0), rtol=0.02, atol=0.0)
    for policy in (tb.gp_ucb(names["kernel"], **given), tb.ada_bkb(names["kernel"], horizon=9, **given)):
        bandit = tb.Bandit(policy, bounds=names["box"])
        bandit.tell(bandit.ask(), torch.ones(1))


def test_the_first_row_answers_who_knows_nothing() -> None:
    assert ROWS[0][0].startswith("I know no kernel")
    assert "tb.auto()" in ROWS[0][1]
    assert len(RECIPES) >= 10
