"""Scores against references in log space, far tails included, and the properties that the lazy argmax relies on."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchbandits as tb
from torchbandits.scores import UCB, LogEI, LogPI, named_score


def value(score, mean: float, std: float, incumbent: float) -> float:
    m, s, i = (torch.tensor(x, dtype=torch.float64) for x in ([mean], [std], incumbent))
    return float(score(m, s, torch.tensor(2.0, dtype=torch.float64), i))


@given(z=st.floats(-8, 8), std=st.floats(1e-3, 1e3), incumbent=st.floats(-5, 5), margin=st.floats(1e-3, 1.0))
def test_the_scores_are_their_formulas(z, std, incumbent, margin):
    mean = incumbent + margin + z * std
    z = (mean - incumbent - margin) / std
    ei = std * (scipy.stats.norm.pdf(z) + z * scipy.stats.norm.cdf(z))
    if ei > 1e-300 and z > -6:
        np.testing.assert_allclose(value(LogEI(margin), mean, std, incumbent), np.log(ei), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(value(LogPI(margin), mean, std, incumbent), scipy.stats.norm.logcdf(z), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("score", [LogEI(), LogEI(0.1), LogPI(0.1), UCB()])
@pytest.mark.parametrize("gap", [1e-3, 1.0, 1e3])
def test_scores_are_finite_and_fall_with_the_deviation_far_in_the_tail(score, gap):
    std = torch.logspace(-12, 3, 400, dtype=torch.float64)
    mean = torch.full_like(std, -gap)
    values = score(mean, std, torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    assert torch.isfinite(values).all()
    assert (values.diff() >= 0).all()
    assert (values.diff()[50:] > 0).all()


def test_a_deviation_of_zero_is_no_accident():
    mean, std = torch.tensor([0.0, -1.0, 0.5], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    one, half = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    for score in (LogEI(), LogPI(0.1)):
        assert not torch.isnan(score(mean, std, one, half)).any()


@pytest.mark.parametrize(("make", "word"), [(lambda: LogPI(0.0), "noise_std"), (lambda: LogEI(-1.0), "≥ 0")])
def test_margins_out_of_range(make, word):
    with pytest.raises(tb.errors.ArgumentError, match=word):
        make()


def test_names():
    assert named_score("pi", None, 0.3) == LogPI(0.3)
    assert named_score("ei", None, 0.3) == LogEI(0.0)
    with pytest.raises(tb.errors.ArgumentError, match="Did you mean 'ucb'"):
        named_score("ucbb", None, 0.3)
    with pytest.raises(tb.errors.ArgumentError, match="margin"):
        named_score("ucb", 0.1, 0.3)
