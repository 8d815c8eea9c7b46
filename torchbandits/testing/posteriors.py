"""The contract of a posterior, as tests."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms import matches
from torchbandits.errors import TorchBanditsError
from torchbandits.testing.play import Problem, check_raises
from torchbandits.types import Marginals

Pulls = tuple[Tensor, Tensor, Tensor, Tensor]  # points, counts, sums of rewards and of squared rewards


class PosteriorContract(ABC):
    """Laws of a Gaussian posterior: a function of points that returns `Marginals` in reward units.

    Return a posterior that has learned nothing from `posterior`. It learns by `append_` and `add_`, as `GaussianProcess` does;
    one that learns in another way overrides `learn`.

    Attributes:
        dim: Number of features of a point.
        tolerance: Largest difference, relative and absolute, between two ways to the same mean or variance.
        has_batch_rows: False for a posterior without batch rows.
        has_state: False for a posterior without `state_dict`.
    """

    dim: int = 2
    tolerance: float = 1e-8
    has_batch_rows: bool = True
    has_state: bool = True

    @abstractmethod
    def posterior(self, batch_shape: tuple[int, ...] = ()) -> Any:
        """The posterior under test, a new one at each call that has learned nothing.

        Args:
            batch_shape: `()`, or `(2,)` for two rows side by side.
        """

    def learn(self, posterior: Any, points: Tensor, counts: Tensor, sums: Tensor, squares: Tensor) -> None:
        """Add pulls to a posterior.

        Args:
            posterior: From `posterior`.
            points: `batch_shape x n x dim`, distinct within a row, some of them perhaps known already.
            counts: `batch_shape x n`, numbers of pulls.
            sums: `batch_shape x n`, sums of rewards.
            squares: `batch_shape x n`, sums of squared rewards.
        """
        known = matches(posterior.statistics.points, points)
        appended = posterior.append_(points, known < 0)
        posterior.add_(torch.where(known < 0, appended, known), counts, sums, squares)

    # ------------------------------------------------------------------ shapes and points

    def test_marginals_are_one_mean_and_one_variance_per_point(self) -> None:
        """Both are finite and no variance is negative, before and after anything is learned."""
        for posterior in (self.posterior(), self._learned()):
            marginals = posterior(self._points)
            for name in ("mean", "variance"):
                value = getattr(marginals, name)
                assert value.shape == (30,), f"the {name} of 30 points must have shape (30,), got {tuple(value.shape)}"
                assert value.isfinite().all(), f"every {name} must be finite"
            assert (marginals.variance >= 0).all(), f"variances must be ≥ 0, got {float(marginals.variance.min())}"

    def test_a_point_does_not_depend_on_the_points_beside_it(self) -> None:
        """Each point alone gives the same values, and no points give none."""
        posterior = self._learned()
        together = posterior(self._points)
        for place in (0, 13, 29):
            alone = posterior(self._points[place : place + 1])
            for name in ("mean", "variance"):
                part = getattr(together, name)[place : place + 1]
                self._check_close(getattr(alone, name), part, f"the {name} of a point asked for alone")
        nothing = posterior(self._points[:0])
        assert nothing.mean.shape == nothing.variance.shape == (0,), "no points must have marginals of shape (0,)"

    def test_asking_changes_nothing(self) -> None:
        """A second call returns the same values to the last bit."""
        posterior = self._learned()
        first, again = posterior(self._points), posterior(self._points)
        assert torch.equal(first.mean, again.mean), "asking must not change means"
        assert torch.equal(first.variance, again.variance), "asking must not change variances"

    def test_float32_points_have_float32_marginals(self) -> None:
        """The values are those of float64, rounded."""
        posterior, points = self._learned(), self._points.float()
        single, double = posterior(points), posterior(points.double())
        for name in ("mean", "variance"):
            got, expected = getattr(single, name), getattr(double, name)
            assert got.dtype == torch.float32, f"the {name} of float32 points must be float32, got {got.dtype}"
            assert expected.dtype == torch.float64, f"the {name} of float64 points must be float64, got {expected.dtype}"
            off = float((got.double() - expected).abs().max())
            assert off <= 1e-4 * float(1 + expected.abs().max()), f"float32 changes the {name} by {off}"

    def test_marginals_differentiate_in_the_points(self) -> None:
        """Gradients are compared with finite differences."""
        posterior = self._learned()
        points = self._points[:3].clone().requires_grad_()
        good = torch.autograd.gradcheck(
            lambda x: (posterior(x).mean, posterior(x).variance), (points,), atol=1e-5, raise_exception=False
        )
        assert good, "gradients of means and variances must be those of finite differences"

    def test_points_that_are_not_finite_or_of_another_dimension_are_refused(self) -> None:
        """The error is one of this package."""
        posterior = self._learned()
        wrong = self._points.clone()
        wrong[3, 0] = torch.nan
        check_raises(TorchBanditsError, lambda: posterior(wrong), "asking for a point with a NaN")
        more = torch.zeros(4, self.dim + 1, dtype=torch.float64)
        check_raises(TorchBanditsError, lambda: posterior(more), f"asking for a point with {self.dim + 1} features")

    # ------------------------------------------------------------------ learning

    def test_variance_falls_with_pulls(self) -> None:
        """The variance rises nowhere, and falls at the points that were pulled."""
        posterior = self._learned()
        before = posterior(self._points).variance, posterior(self._pulls[0]).variance
        self.learn(posterior, *self._pulls)
        after = posterior(self._points).variance, posterior(self._pulls[0]).variance
        rise = float((after[0] - before[0]).max())
        assert rise <= self.tolerance * float(before[0].max()), f"pulls must not raise a variance, one rose by {rise}"
        assert (after[1] < before[1]).all(), "the variance of every point that is pulled must fall"

    def test_the_mean_approaches_what_is_observed(self) -> None:
        """A million pulls of one point pin its mean to their average."""
        posterior = self.posterior()
        point, ones = self._pulls[0][:1], torch.ones(1, dtype=torch.float64)
        self.learn(posterior, point, 1e6 * ones, 0.7e6 * ones, 0.49e6 * ones)
        marginals = posterior(point)
        assert abs(float(marginals.mean) - 0.7) < 1e-3, f"after 1e6 pulls of average 0.7 the mean is {float(marginals.mean)}"
        assert float(marginals.variance) < 1e-3, f"after 1e6 pulls the variance is {float(marginals.variance)}"

    def test_the_order_of_pulls_does_not_matter(self) -> None:
        """Points are told one after the other, forwards and backwards, and all at once."""
        expected = self._learned()(self._points)
        for order in (range(10), reversed(range(10))):
            posterior = self.posterior()
            for place in order:
                self.learn(posterior, *(x[place : place + 1] for x in self._pulls))
            self._check_alike(posterior(self._points), expected, "after pulls in another order")

    def test_sums_are_all_that_counts(self) -> None:
        """Half of the pulls now and half later teach what all of them teach together, also to a posterior that was asked."""
        points, *numbers = self._pulls
        posterior = self.posterior()
        for share in (0.25, 0.75):
            self.learn(posterior, points, *(share * x for x in numbers))
            got = posterior(self._points)
        self._check_alike(got, self._learned()(self._points), "after the same sums in two parts")

    def test_variances_do_not_depend_on_rewards_and_means_do_linearly(self) -> None:
        """Three times the rewards move the means three times as far."""
        points, counts, sums, squares = self._pulls
        none, once, thrice = (self.posterior() for _ in range(3))
        for posterior, factor in ((none, 0.0), (once, 1.0), (thrice, 3.0)):
            self.learn(posterior, points, counts, factor * sums, factor**2 * squares)
        base, single, triple = (posterior(self._points) for posterior in (none, once, thrice))
        self._check_close(triple.variance, single.variance, "the variance after three times the rewards")
        moved = 3 * (single.mean - base.mean)
        self._check_close(triple.mean - base.mean, moved, "the change of the mean by three times the rewards")

    # ------------------------------------------------------------------ batch rows, copies and saved states

    def test_batch_rows_are_independent(self) -> None:
        """Each row learns like a single posterior, and its rewards change no other row."""
        if not self.has_batch_rows:
            return
        points, counts, sums, squares = self._pulls
        rows = torch.stack([points, points.flip(0)]), torch.stack([counts, counts + 1])
        both, other = (self.posterior((2,)) for _ in range(2))
        for posterior, factor in ((both, 1.0), (other, -5.0)):
            scale = torch.tensor([[1.0], [factor]], dtype=torch.float64)
            self.learn(posterior, *rows, scale * torch.stack([sums, 2 * sums]), scale**2 * torch.stack([squares, 9 * squares]))
        asked = torch.stack([self._points, self._points])
        got, changed = both(asked), other(asked)
        for name in ("mean", "variance"):
            value = getattr(got, name)
            assert value.shape == (2, 30), f"the {name} of two rows of 30 points must be (2, 30), got {tuple(value.shape)}"
            same = torch.equal(value[0], getattr(changed, name)[0])
            assert same, f"rewards of batch row 1 must not change the {name} of batch row 0"
        for row, (s, q) in enumerate(((sums, squares), (2 * sums, 9 * squares))):
            single = self.posterior()
            self.learn(single, rows[0][row], rows[1][row], s, q)
            part = Marginals(got.mean[row], got.variance[row])
            self._check_alike(part, single(self._points), f"in batch row {row}, compared with a single posterior,")

    def test_a_saved_state_is_the_posterior(self) -> None:
        """It is loaded into a new posterior and into one with other data; both go on learning."""
        if not self.has_state:
            return
        saved = copy.deepcopy(self._learned().state_dict())
        another = self.posterior()
        self.learn(another, *(x[:4].flip(0) for x in self._pulls))
        for resumed in (self.posterior(), another):
            original = self._learned()
            resumed.load_state_dict(saved)
            self._check_alike(resumed(self._points), original(self._points), "after loading a saved state")
            for posterior in (resumed, original):
                self.learn(posterior, *(x[2:6] for x in self._pulls))
            self._check_alike(resumed(self._points), original(self._points), "after loading a saved state and more pulls")

    def test_a_deep_copy_has_a_life_of_its_own(self) -> None:
        """Pulls of the copy change nothing in the original."""
        posterior = self._learned()
        before, twin = posterior(self._points), copy.deepcopy(posterior)
        self._check_alike(twin(self._points), before, "of a deep copy")
        self.learn(twin, *(x[:3] for x in self._pulls))
        self._check_alike(posterior(self._points), before, "after pulls of a deep copy")

    # ------------------------------------------------------------------ what the laws learn and ask

    @property
    def _points(self) -> Tensor:
        """30 points that are asked for."""
        return Problem(seed=1, num_arms=30, dim=self.dim).arms

    @property
    def _pulls(self) -> Pulls:
        """10 points with 1 to 4 pulls each, of rewards around a smooth function."""
        problem = Problem(seed=2, num_arms=10, dim=self.dim)
        counts = (torch.arange(10) % 4 + 1).double()
        return problem.arms, counts, counts * problem.means, counts * (problem.means.square() + 0.01)

    def _learned(self) -> Any:
        posterior = self.posterior()
        self.learn(posterior, *self._pulls)
        return posterior

    def _check_alike(self, got: Marginals, expected: Marginals, when: str) -> None:
        self._check_close(got.mean, expected.mean, f"the mean {when}")
        self._check_close(got.variance, expected.variance, f"the variance {when}")

    def _check_close(self, got: Tensor, expected: Tensor, what: str) -> None:
        off = float((got - expected).abs().max())
        most = self.tolerance * (1 + float(expected.abs().max()))
        assert off <= most, f"{what} must be the same, it is off by {off}, more than {most}"
