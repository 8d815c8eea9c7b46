"""Arms with recorded rewards, and tables of neighbours, compared with loops that share no code with the package."""

import math

import pytest
import torch

from torchbandits.environments import Recorded, Table
from torchbandits.environments.networks import mixed_radix, one_digit_changes, table_of_neighbors
from torchbandits.errors import ArgumentError, ArmIndexError, NonFiniteError, ShapeError


def generators(count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(7 + row) for row in range(count)]


def random_records(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    records = torch.rand(20, 4, generator=generator, dtype=dtype)
    missing = torch.rand(20, 4, generator=generator) < 0.4
    missing[:, 2] = False
    return records.masked_fill(missing, torch.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_and_noise_are_those_of_the_records(dtype):
    records = random_records(dtype)
    environment = Recorded(torch.rand(20, 3, dtype=dtype, generator=generators(1)[0]), records)
    deviations = []
    for arm, line in enumerate(records.tolist()):
        present = [value for value in line if not math.isnan(value)]
        mean = sum(present) / len(present)
        assert float(environment.means[arm]) == pytest.approx(mean, rel=1e-5)
        deviations += [(value - mean) ** 2 for value in present]
    assert environment.noise_std == pytest.approx(math.sqrt(sum(deviations) / len(deviations)), rel=1e-5)
    assert environment.means.dtype == dtype


def test_a_pull_draws_each_record_of_its_arm_alike():
    records = random_records(torch.float64)
    environment = Recorded(torch.rand(20, 3, dtype=torch.float64, generator=generators(1)[0]), records)
    rewards = environment.sample(torch.arange(20).repeat(2000), generators(1)).reshape(2000, 20)
    for arm in range(20):
        present = [value for value in records[arm].tolist() if not math.isnan(value)]
        for value in present:
            share = float((rewards[:, arm] == value).double().mean())
            expected = 1 / len(present)
            assert abs(share - expected) < 5 * math.sqrt(expected / 2000) + 1e-12
    assert set(rewards.unique().tolist()) <= set(records[~records.isnan()].tolist())


@pytest.mark.parametrize(
    ("records", "error", "message"),
    [
        (torch.zeros(3, 2, dtype=torch.float64), ShapeError, "records must be A x r"),
        (torch.zeros(4, 2), ShapeError, "float64"),
        (torch.full((4, 2), torch.nan, dtype=torch.float64), NonFiniteError, "every arm needs at least one record"),
        (torch.full((4, 2), torch.inf, dtype=torch.float64), NonFiniteError, "none may be infinite"),
    ],
)
def test_bad_records_are_refused(records, error, message):
    with pytest.raises(error, match=message):
        Recorded(torch.zeros(4, 2, dtype=torch.float64), records)


def test_neighbours_are_the_listed_arms_one_change_away():
    generator = torch.Generator().manual_seed(3)
    levels, ordered = (3, 2, 5), (False, False, True)
    every = torch.cartesian_prod(*map(torch.arange, levels))
    digits = every[torch.randperm(len(every), generator=generator)[:20]].numpy()
    table = table_of_neighbors(mixed_radix(digits, levels), one_digit_changes(digits, levels, ordered)).tolist()
    for arm, own in enumerate(digits.tolist()):
        near = set()
        for other, its in enumerate(digits.tolist()):
            apart = [(place, abs(a - b)) for place, (a, b) in enumerate(zip(own, its, strict=True)) if a != b]
            if len(apart) == 1 and (not ordered[apart[0][0]] or apart[0][1] == 1):
                near.add(other)
        found = [n for n in table[arm] if n >= 0]
        assert sorted(found) == sorted(near)
        assert table[arm][len(found) :] == [-1] * (len(table[arm]) - len(found))


def test_a_table_keeps_its_neighbours_and_refuses_others():
    arms, rewards = torch.eye(3, dtype=torch.float64), torch.arange(3.0, dtype=torch.float64)
    near = torch.tensor([[1], [2], [-1]])
    assert Table(arms, rewards, 0.1, neighbors=near).to(torch.float32).neighbors.equal(near)
    with pytest.raises(ArmIndexError, match="got 3"):
        Table(arms, rewards, 0.1, neighbors=near + 1)
    with pytest.raises(ShapeError, match="integers 3 x k"):
        Recorded(arms, rewards.unsqueeze(-1), neighbors=near[:2])
    with pytest.raises(ArgumentError, match="costs"):
        Recorded(arms, rewards.unsqueeze(-1), costs=-rewards)
