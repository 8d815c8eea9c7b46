"""PolicyAcquisition: the score of every policy, the hallucinated batch, and the use of both by BoTorch."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import pickle
from typing import Any

import botorch
import gpytorch
import oracles
import pytest
import torch
from botorch.acquisition.analytic import LogExpectedImprovement, LogProbabilityOfImprovement, UpperConfidenceBound
from botorch.acquisition.input_constructors import ACQF_INPUT_CONSTRUCTOR_REGISTRY, get_acqf_input_constructor
from botorch.acquisition.objective import ExpectationPosteriorTransform, ScalarizedPosteriorTransform
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.transforms.outcome import StratifiedStandardize
from botorch.optim import optimize_acqf
from problems import DELTA, NOISE_STD, kernel_pair, rbf
from torch import Tensor

import torchbandits as tb
import torchbandits.botorch.inputs
from torchbandits.botorch import BanditModel, PolicyAcquisition, optimize_arms
from torchbandits.errors import ArgumentError, NonFiniteError, NumericalError, ShapeError, UnsupportedError
from torchbandits.policies import Composed, registry
from torchbandits.scores import PosteriorDraw

Q_WIDTH = 2.0
BASE: dict[str, Any] = {"noise_std": NOISE_STD}
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def data(n: int = 12, d: int = 2, seed: int = 0, batch: tuple[int, ...] = (), repeats: int = 3) -> tuple[Tensor, Tensor]:
    """Points of the unit cube, some of them repeated and some nearly equal, and noisy rewards."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(*batch, n, d, generator=g, dtype=torch.float64)
    X[..., 1 : 1 + repeats, :] = X[..., :1, :]
    X[..., -1, :] = X[..., 0, :] + 1e-9
    noise = NOISE_STD * torch.randn(*batch, n, 1, generator=g, dtype=torch.float64)
    return X, (5 * X.sum(dim=-1, keepdim=True)).sin() + noise


def fixed_model(n: int = 12, d: int = 2, seed: int = 0, batch: tuple[int, ...] = (), **options: Any) -> BanditModel:
    return BanditModel(*data(n, d, seed, batch), **({"kernel": rbf(), "noise_std": NOISE_STD} | options))


def points(n: int, d: int = 2, seed: int = 1, batch: tuple[int, ...] = ()) -> Tensor:
    return torch.rand(*batch, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ucb(width: float = Q_WIDTH, **options: Any) -> tb.policies.Policy:
    return tb.gp_ucb(rbf(), width=tb.widths.Constant(width), **(BASE | options))


SCORES = ["ucb", "ei", "pi"]
every_score = pytest.mark.parametrize("score", SCORES)
every_dictionary = pytest.mark.parametrize("dictionary", ["all", "leverage", "bless", "points"])


def of_dictionary(name: str) -> Any:
    return points(9, seed=4) if name == "points" else name


# ---------------------------------------------------------------------- scores


@pytest.mark.parametrize("kernel", ["rbf", "matern52", "scaled", "linear"])
def test_scores_are_those_of_a_dense_oracle(kernel):
    theirs, ours = kernel_pair(kernel)
    X, Y = data()
    model = BanditModel(X, Y, kernel=theirs, noise_std=NOISE_STD)
    acqf = PolicyAcquisition(model, tb.gp_ucb(theirs, width=tb.widths.Constant(Q_WIDTH), **BASE))
    x = points(30)
    K, k = torch.as_tensor(ours(X.numpy(), X.numpy())), torch.as_tensor(ours(x.numpy(), X.numpy()))
    solved = torch.linalg.solve(K + NOISE_STD**2 * torch.eye(len(X), dtype=K.dtype), torch.cat([Y, k.T], dim=-1))
    variance = torch.as_tensor(ours(x.numpy(), x.numpy())).diagonal() - (k.T * solved[:, 1:]).sum(dim=0)
    expected = k @ solved[:, 0] + Q_WIDTH * variance.clamp_min(0).sqrt()
    torch.testing.assert_close(acqf(x.unsqueeze(-2)), expected, rtol=1e-6, atol=1e-6)


@every_dictionary
@every_score
def test_scores_are_those_of_botorch_on_the_same_model(score, dictionary):
    model = fixed_model(dictionary=of_dictionary(dictionary))
    policy = ucb(acquisition=score, margin=0.01 if score == "pi" else None)
    acqf, x = PolicyAcquisition(model, policy), points(30).unsqueeze(-2)
    best = model.posterior(model.train_inputs[0]).mean.max()
    theirs = {
        "ucb": lambda: UpperConfidenceBound(model, beta=Q_WIDTH**2),
        "ei": lambda: LogExpectedImprovement(model, best_f=best),
        "pi": lambda: LogProbabilityOfImprovement(model, best_f=best + 0.01),
    }[score]()
    torch.testing.assert_close(acqf(x), theirs(x), rtol=1e-6, atol=1e-8)


@pytest.mark.sweep(3)
@every_score
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_shapes_are_those_of_botorch(score, dtype):
    rows = fixed_model(batch=(3,))
    acqf = PolicyAcquisition(rows, ucb(acquisition=score))
    singles = [
        PolicyAcquisition(BanditModel(X, Y, kernel=rbf(), noise_std=NOISE_STD), ucb(acquisition=score))
        for X, Y in zip(*data(batch=(3,)), strict=True)
    ]
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-8}
    x = points(5, batch=(4, 3)).to(dtype)  # 5 x 4 x 3 x 1 x 2: the last batch dimension is the model's
    values = acqf(x.movedim(-2, 0).unsqueeze(-2))
    assert values.shape == (5, 4, 3)
    for row, single in enumerate(singles):
        expected = single(x[:, row].movedim(1, 0).unsqueeze(-2))
        torch.testing.assert_close(values[..., row], expected, check_dtype=False, **tolerance)
    shared = points(6).to(dtype)
    values = acqf(shared[:, None, None, :])  # 6 x 1 x 1 x 2, for all rows
    assert values.shape == (6, 3)
    for row, single in enumerate(singles):
        torch.testing.assert_close(values[:, row], single(shared.unsqueeze(-2)), check_dtype=False, **tolerance)
    assert acqf(shared[:1]).shape == (3,)
    assert singles[0](shared[:1]).shape == (1,)


def test_a_point_must_stand_alone():
    acqf = PolicyAcquisition(fixed_model(), ucb())
    with pytest.raises(AssertionError, match="q=1"):
        acqf(points(3))
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        acqf(points(3)[0])


@pytest.mark.sweep(3)
@every_score
@every_dictionary
def test_gradients_in_the_points(score, dictionary):
    acqf = PolicyAcquisition(
        fixed_model(dictionary=of_dictionary(dictionary)), ucb(acquisition=score), X_pending=points(2, seed=5)
    )
    x = points(4, seed=2).unsqueeze(-2).requires_grad_()
    assert torch.autograd.gradcheck(acqf, x)


def test_gradients_are_finite_where_nothing_is_left_to_learn():
    X, Y = data()
    acqf = PolicyAcquisition(BanditModel(X, Y, kernel=rbf(), noise_std=1e-4), ucb(noise_std=1e-4))
    x = X.unsqueeze(-2).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(acqf(x).sum(), x)
    assert bool(torch.isfinite(gradient).all())


def test_gradients_before_the_first_observation():
    X, Y = data()
    acqf = PolicyAcquisition(BanditModel(X[:0], Y[:0], kernel=rbf(), noise_std=NOISE_STD), ucb())
    x = points(4).unsqueeze(-2).requires_grad_()
    (gradient,) = torch.autograd.grad(acqf(x).sum(), x)
    torch.testing.assert_close(acqf(x), torch.full((4,), Q_WIDTH, dtype=torch.float64))
    assert torch.equal(gradient, torch.zeros_like(x))


@pytest.mark.parametrize("dictionary", ["all", "leverage"])
def test_float32_points_leave_the_model_as_it_is(dictionary):
    acqf = PolicyAcquisition(fixed_model(dictionary=dictionary), ucb(), X_pending=points(2, seed=5))
    x = points(20).unsqueeze(-2)
    before = acqf(x)
    rounded = acqf(x.float())
    acqf.to(x.float())
    acqf.float()
    assert torch.equal(acqf(x), before)
    assert acqf.width.dtype == torch.float64
    assert rounded.dtype == torch.float64
    torch.testing.assert_close(rounded, before, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
def test_float32_arms_that_are_tabulated():
    X, Y = data()
    arms = points(20).float()
    model = BanditModel(X.float(), Y.float(), kernel=rbf(), noise_std=NOISE_STD).tabulate_(arms)
    acqf, plain = PolicyAcquisition(model, ucb()), PolicyAcquisition(fixed_model(), ucb())
    values = acqf(arms.unsqueeze(-2))
    torch.testing.assert_close(values, acqf(arms.clone().unsqueeze(-2)), rtol=1e-5, atol=1e-5, check_dtype=False)
    torch.testing.assert_close(values, plain(arms.unsqueeze(-2)), rtol=1e-3, atol=1e-3, check_dtype=False)


# ---------------------------------------------------------------------- units, transforms, incumbents


@every_score
def test_a_negative_weight_minimises(score):
    X, Y = data()
    minimised = PolicyAcquisition(
        fixed_model(), ucb(acquisition=score), posterior_transform=ScalarizedPosteriorTransform(torch.tensor([-1.0]).double())
    )
    negated = PolicyAcquisition(BanditModel(X, -Y, kernel=rbf(), noise_std=NOISE_STD), ucb(acquisition=score))
    x = points(20).unsqueeze(-2)
    torch.testing.assert_close(minimised(x), negated(x), rtol=1e-9, atol=1e-9)


@every_score
def test_weights_and_offsets_are_those_of_botorch(score):
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.5]), offset=0.7)
    model = fixed_model()
    best = model.posterior(model.train_inputs[0], posterior_transform=transform).mean.max()
    theirs = {
        "ucb": lambda: UpperConfidenceBound(model, beta=Q_WIDTH**2, posterior_transform=transform),
        "ei": lambda: LogExpectedImprovement(model, best_f=best, posterior_transform=transform),
        "pi": lambda: LogProbabilityOfImprovement(model, best_f=best + NOISE_STD, posterior_transform=transform),
    }[score]()
    x = points(20).unsqueeze(-2)
    acqf = PolicyAcquisition(model, ucb(acquisition=score), posterior_transform=transform)
    expected = theirs(x)
    torch.testing.assert_close(acqf(x), expected.double(), rtol=1e-5, atol=1e-5)


@every_score
def test_model_transforms_are_applied_and_undone(score):
    X, Y = data()
    X, Y = 10 * X - 3, 100 * Y + 2000
    model = BanditModel(X, Y, kernel=rbf(), noise_std=NOISE_STD, input_transform=Normalize(2), outcome_transform=Standardize(1))
    acqf, x = PolicyAcquisition(model, ucb(acquisition=score, margin=1.0 if score == "pi" else None)), 10 * points(20) - 3
    best = model.posterior(X).mean.max()
    theirs = {
        "ucb": lambda: UpperConfidenceBound(model, beta=Q_WIDTH**2),
        "ei": lambda: LogExpectedImprovement(model, best_f=best),
        "pi": lambda: LogProbabilityOfImprovement(model, best_f=best + 1.0),
    }[score]()
    torch.testing.assert_close(acqf(x.unsqueeze(-2)), theirs(x.unsqueeze(-2)), rtol=1e-7, atol=1e-7)
    acqf.set_X_pending(x[:3])
    shrunk = model.hallucinate(x[:3]).posterior(x.unsqueeze(-2))
    if score == "ucb":
        expected = (shrunk.mean + Q_WIDTH * shrunk.variance.sqrt()).flatten()
        torch.testing.assert_close(acqf(x.unsqueeze(-2)), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_default_margin_is_the_noise_in_the_units_of_the_outcomes(batch, sign):
    """A model that standardises ranks points by PI as the same model of standardised outcomes does."""
    X, Y = data(batch=batch)
    Y = 1_500 + 200 * Y
    policy = tb.gp_ucb(rbf(), acquisition="pi", **BASE)
    by_itself = BanditModel(X, Y, kernel=rbf(), noise_std=NOISE_STD, outcome_transform=Standardize(m=1, batch_shape=batch))
    standard = (Y - Y.mean(dim=-2, keepdim=True)) / Y.std(dim=-2, keepdim=True)
    by_hand = BanditModel(X, standard, kernel=rbf(), noise_std=NOISE_STD)
    transform = ScalarizedPosteriorTransform(torch.tensor([sign], dtype=torch.float64))
    x = points(20).reshape(20, *(1 for _ in batch), 1, 2)
    values, expected = (PolicyAcquisition(m, policy, posterior_transform=transform)(x) for m in (by_itself, by_hand))
    torch.testing.assert_close(values, expected)


def test_transforms_that_are_not_affine_are_refused():
    X, Y = data()
    bent = BanditModel(X, Y.exp(), kernel=rbf(), noise_std=NOISE_STD, outcome_transform=Log())
    for error in (UnsupportedError, botorch.exceptions.UnsupportedError):
        with pytest.raises(error, match="not affine"):
            PolicyAcquisition(bent, ucb())
        with pytest.raises(error, match="not affine"):
            PolicyAcquisition(fixed_model(), ucb(), posterior_transform=ExpectationPosteriorTransform(n_w=1))
    strata = torch.cat([torch.arange(12.0).double().remainder(2).unsqueeze(-1), X[:, :1]], dim=-1)
    each = StratifiedStandardize(0, torch.tensor([0, 1]))
    with pytest.raises(UnsupportedError, match="a scale for each stratum"):
        PolicyAcquisition(BanditModel(strata, Y, kernel=rbf(), noise_std=NOISE_STD, outcome_transform=each), ucb())


def test_the_incumbent_is_sought_among_the_arms_that_are_tabulated():
    model, arms = fixed_model(), points(500, seed=8)
    observed = PolicyAcquisition(model, ucb(acquisition="ei")).incumbent
    torch.testing.assert_close(observed, model.marginals(model.train_inputs[0]).mean.max())
    tabulated = PolicyAcquisition(fixed_model().tabulate_(arms), ucb(acquisition="ei")).incumbent
    torch.testing.assert_close(tabulated, model.marginals(arms).mean.max())
    assert tabulated > observed
    assert PolicyAcquisition(model, ucb()).incumbent.isnan().all()  # UCB does not use the incumbent


# ---------------------------------------------------------------------- widths


def test_the_width_is_that_of_the_observations():
    n, policy = 12, tb.gp_ucb(rbf(), delta=DELTA, **BASE)
    for extra in (None, points(4, seed=5)):
        acqf = PolicyAcquisition(fixed_model(n), policy, extra, num_arms=77)
        expected = math.sqrt(2 * math.log(77 * (n + 1) ** 2 * math.pi**2 / (6 * DELTA)))
        torch.testing.assert_close(acqf.width, torch.tensor(expected, dtype=torch.float64))
    K = torch.as_tensor(oracles.rbf(0.4)(data()[0].numpy(), data()[0].numpy()))
    log_det = torch.logdet(torch.eye(n, dtype=K.dtype) + K / NOISE_STD**2)
    acqf = PolicyAcquisition(
        fixed_model(n), tb.igp_ucb(rbf(), delta=DELTA, norm_bound=1.5, regularization=NOISE_STD**2, **BASE)
    )
    expected = 1.5 + (2 * (log_det / 2 + 1 + math.log(1 / DELTA))).sqrt()
    torch.testing.assert_close(acqf.width, expected, rtol=1e-6, atol=0)
    assert "width" in dict(acqf.named_buffers())


def test_a_width_that_counts_arms_must_be_told_them():
    with pytest.raises(ArgumentError, match="num_arms="):
        PolicyAcquisition(fixed_model(), tb.gp_ucb(rbf(), **BASE))
    with pytest.raises(ArgumentError, match="whole number"):
        PolicyAcquisition(fixed_model(), tb.gp_ucb(rbf(), **BASE), num_arms=0)
    given = PolicyAcquisition(fixed_model(), tb.gp_ucb(rbf(), **BASE), num_arms=50)
    tabulated = PolicyAcquisition(fixed_model().tabulate_(points(50)), tb.gp_ucb(rbf(), **BASE))
    assert torch.equal(given.width, tabulated.width)
    # Scores that use no width need no number of arms.
    x = points(3).unsqueeze(-2)
    for acquisition in ("ei", "pi"):
        policy = tb.gp_ucb(rbf(), acquisition=acquisition, **BASE)
        alone = PolicyAcquisition(fixed_model(), policy)
        assert bool(alone.width.isnan())
        assert torch.equal(alone(x), PolicyAcquisition(fixed_model(), policy, num_arms=50)(x))


# ---------------------------------------------------------------------- pending points


@every_dictionary
def test_pending_points_shrink_variances_and_leave_means(dictionary):
    model, x, pending = fixed_model(dictionary=of_dictionary(dictionary)), points(40), points(3, seed=5)
    told = model.condition_on_observations(pending, torch.zeros(3, 1, dtype=torch.float64)).marginals(x).variance
    both = torch.cat([x, pending])
    C, at = model.joint(both, both), slice(len(x), None)
    noisy = C[at, at] + model.regularization * torch.eye(3, dtype=torch.float64)
    exact = (C.diagonal() - (C[:, at] @ torch.linalg.solve(noisy, C[at])).diagonal())[: len(x)]
    for frozen, expected in ((True, told), (False, exact)):
        wide, none = (PolicyAcquisition(model, ucb(width=w), pending, frozen_dictionary=frozen) for w in (1.0, 0.0))
        mean, std = model.marginals(x).mean, wide(x.unsqueeze(-2)) - none(x.unsqueeze(-2))
        torch.testing.assert_close(none(x.unsqueeze(-2)), mean, rtol=0, atol=0)
        torch.testing.assert_close(std.square(), expected, rtol=1e-6, atol=1e-8)
        assert bool((std.square() <= model.marginals(x).variance + 1e-12).all())


@every_dictionary
def test_one_after_the_other_is_all_at_once_and_the_way_back_is_exact(dictionary):
    model, x, pending = fixed_model(dictionary=of_dictionary(dictionary)), points(40).unsqueeze(-2), points(4, seed=5)
    pending[3] = pending[1]  # one point is pending twice
    acqf = PolicyAcquisition(model, ucb())
    values = [acqf(x)]
    for count in range(1, 5):
        acqf.set_X_pending(pending[:count])
        values.append(acqf(x))
        torch.testing.assert_close(values[-1], PolicyAcquisition(model, ucb(), pending[:count])(x), rtol=1e-9, atol=1e-9)
    for count in (3, 2, 1):
        acqf.set_X_pending(pending[:count])
        assert torch.equal(acqf(x), values[count])
    acqf.set_X_pending(pending.flip(0))  # the same points in another order
    torch.testing.assert_close(acqf(x), values[-1], rtol=1e-9, atol=1e-9)
    acqf.set_X_pending(None)
    assert acqf.X_pending is None
    assert torch.equal(acqf(x), values[0])
    acqf.set_X_pending(pending[:0])
    assert torch.equal(acqf(x), values[0])


def test_pending_points_of_batch_rows():
    model, pending, x = fixed_model(batch=(3,)), points(2, seed=5, batch=(3,)), points(6)[:, None, None, :]
    acqf = PolicyAcquisition(model, ucb(), pending)
    for row, (X, Y) in enumerate(zip(*data(batch=(3,)), strict=True)):
        single = PolicyAcquisition(BanditModel(X, Y, kernel=rbf(), noise_std=NOISE_STD), ucb(), pending[row])
        torch.testing.assert_close(acqf(x)[:, row], single(x[:, 0]), rtol=1e-9, atol=1e-9)
    acqf.set_X_pending(points(2, seed=5))  # the same for all rows
    assert acqf(x).shape == (6, 3)


def test_pending_points_that_fail_change_nothing(monkeypatch):
    acqf, x = PolicyAcquisition(fixed_model(), ucb(), points(2, seed=5)), points(20).unsqueeze(-2)
    before, pending = acqf(x), acqf.X_pending

    def broken(self: BanditModel, X: Tensor, counts: Tensor | None = None, **options: bool) -> BanditModel:
        raise NumericalError("broken on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(BanditModel, "hallucinate", broken)
        with pytest.raises(NumericalError):
            acqf.set_X_pending(points(4, seed=5))
    with pytest.raises(ShapeError, match="p x 2"):
        acqf.set_X_pending(points(2, d=3))
    with pytest.raises(NonFiniteError, match="NaN"):
        acqf.set_X_pending(torch.full((1, 2), torch.nan, dtype=torch.float64))
    assert acqf.X_pending is pending
    assert torch.equal(acqf(x), before)


def test_copies_are_of_their_own():
    acqf, x = PolicyAcquisition(fixed_model(), ucb(), points(2, seed=5)), points(20).unsqueeze(-2)
    before = acqf(x)
    for twin in (copy.deepcopy(acqf), pickle.loads(pickle.dumps(acqf))):
        assert torch.equal(twin(x), before)
        twin.set_X_pending(None)
        assert not torch.equal(twin(x), before)
        assert torch.equal(acqf(x), before)


def test_optimize_acqf_builds_the_batch_pick_by_pick():
    model = fixed_model()
    acqf = PolicyAcquisition(model, ucb())
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_restarts": 8, "raw_samples": 128}
    batch, values = optimize_acqf(acqf, BOX, q=3, sequential=True, **options)
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 201, dtype=torch.float64)] * 2)
    for pick in range(3):
        own = PolicyAcquisition(model, ucb(), batch[:pick] if pick else None)
        best = own(grid.unsqueeze(-2)).max()
        torch.testing.assert_close(own(batch[pick : pick + 1]).squeeze(), values[pick], rtol=1e-9, atol=1e-9)
        assert values[pick] >= best - 1e-3
    assert acqf.X_pending is None


# ---------------------------------------------------------------------- posterior draws


def drawing(**options: Any) -> Composed:
    policy = tb.thompson_sampling(rbf(), width=tb.widths.Constant(1.0), **(BASE | options))
    assert isinstance(policy, Composed)
    return policy


def test_a_draw_is_a_fixed_differentiable_path():
    acqf, x = PolicyAcquisition(fixed_model(), drawing()), points(5, seed=2).unsqueeze(-2)
    assert torch.equal(acqf(x), acqf(x))
    torch.testing.assert_close(acqf(x.flip(0)).flip(0), acqf(x), rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(acqf, x.clone().requires_grad_())


def test_pending_points_go_on_to_the_next_path_and_back():
    acqf, x, pending = PolicyAcquisition(fixed_model(), drawing()), points(20).unsqueeze(-2), points(3, seed=5)
    values = [acqf(x)]
    for count in (1, 2, 3):
        acqf.set_X_pending(pending[:count])
        values.append(acqf(x))
    assert all(not torch.allclose(a, b, atol=1e-3) for i, a in enumerate(values) for b in values[:i])
    for count in (2, 1):
        acqf.set_X_pending(pending[:count])
        assert torch.equal(acqf(x), values[count])
    acqf.set_X_pending(None)
    assert torch.equal(acqf(x), values[0])
    again = PolicyAcquisition(fixed_model(), drawing())
    assert torch.equal(again(x), values[0])  # repeatable, and another path once there is more data
    assert not torch.allclose(PolicyAcquisition(fixed_model(n=13), drawing())(x), values[0], atol=1e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dictionary", ["all", "leverage"])
def test_draws_have_the_moments_of_the_posterior(dictionary):
    model, x, count = fixed_model(dictionary=dictionary), points(6, seed=2), 400
    policy = tb.thompson_sampling(rbf(), width=tb.widths.Constant(0.5), **BASE)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([PolicyAcquisition(model, policy, generator=g)(x.unsqueeze(-2)) for _ in range(count)])
    covariance = model.joint(x, x)
    scale = covariance.diagonal().sqrt()
    assert bool(((draws.mean(dim=0) - model.marginals(x).mean).abs() <= 4 * 0.5 * scale / math.sqrt(count)).all())
    correlation = draws.T.cov() / 0.25 / scale / scale.unsqueeze(-1)
    torch.testing.assert_close(correlation, covariance / scale / scale.unsqueeze(-1), rtol=0, atol=5 / math.sqrt(count))


def test_batch_rows_draw_for_themselves():
    model, x = fixed_model(batch=(2,)), points(6)[:, None, None, :]
    first, second = (torch.Generator().manual_seed(s) for s in (3, 4))
    values = PolicyAcquisition(model, drawing(), generator=[first, second])(x)
    X, Y = data(batch=(2,))
    single = BanditModel(X[1], Y[1], kernel=rbf(), noise_std=NOISE_STD)
    own = PolicyAcquisition(single, drawing(), generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(own(x[:, 0]), values[:, 1], rtol=1e-7, atol=1e-7)
    with pytest.raises(ArgumentError, match="one generator per batch row"):
        PolicyAcquisition(model, drawing(), generator=torch.Generator())


def test_draws_under_transforms_are_in_the_users_units():
    X, Y = data()
    options: dict[str, Any] = {"input_transform": Normalize(2), "outcome_transform": Standardize(1)}
    model = BanditModel(10 * X - 3, 100 * Y + 2000, kernel=rbf(), noise_std=1e-3, **options)
    policy = tb.thompson_sampling(rbf(), width=tb.widths.Constant(1.0), noise_std=1e-3)
    flipped = ScalarizedPosteriorTransform(torch.tensor([-1.0], dtype=torch.float64))
    x = (10 * X - 3)[4:-1].unsqueeze(-2)  # points whose rewards were observed
    torch.testing.assert_close(PolicyAcquisition(model, policy)(x), (100 * Y + 2000)[4:-1, 0], rtol=0, atol=5.0)
    torch.testing.assert_close(
        PolicyAcquisition(model, policy, posterior_transform=flipped)(x), -(100 * Y + 2000)[4:-1, 0], rtol=0, atol=5.0
    )


# ---------------------------------------------------------------------- other models of BoTorch


def single_task(*, known_noise: bool = False, batch: tuple[int, ...] = (), **options: Any) -> botorch.models.SingleTaskGP:
    X, Y = data(batch=batch, repeats=0)
    noise = torch.linspace(0.5, 2.0, X.shape[-2], dtype=torch.float64).unsqueeze(-1).expand_as(Y) * NOISE_STD**2
    model = botorch.models.SingleTaskGP(X[..., :-1, :], Y[..., :-1, :], noise[..., :-1, :] if known_noise else None, **options)
    return model.eval()


def variational() -> botorch.models.SingleTaskVariationalGP:
    X, Y = data()
    return botorch.models.SingleTaskVariationalGP(X, (Y - Y.mean()) / Y.std(), inducing_points=6).double().eval()


OTHERS = {
    "SingleTaskGP": single_task,
    "transforms": lambda: single_task(input_transform=Normalize(2), outcome_transform=Standardize(1)),
    "known noise": lambda: single_task(known_noise=True),
    "variational": variational,
    "member of a list": lambda: botorch.models.ModelListGP(single_task(), single_task()).models[1],
    "list of one": lambda: botorch.models.ModelListGP(single_task()),
    "batch": lambda: single_task(batch=(3,)),
    "float32": lambda: single_task().float(),
}
every_other_model = pytest.mark.parametrize("name", OTHERS)


@pytest.mark.filterwarnings("ignore:.*not double precision")
@every_other_model
def test_upper_bounds_of_other_models_are_those_of_botorch(name: str):
    """Values and gradients of t-batches agree for beta = width²."""
    model = OTHERS[name]()
    ours, theirs = PolicyAcquisition(model, ucb()), UpperConfidenceBound(model, beta=Q_WIDTH**2)
    x = points(7).unsqueeze(-2).to(next(model.parameters()))
    x = x.unsqueeze(1) if name == "batch" else x
    tolerance = 1e-5 if name == "float32" else 1e-9
    slopes = []
    for acquisition in (ours, theirs):
        own = x.clone().requires_grad_(True)
        value = acquisition(own)
        slopes.append((value.detach().double(), torch.autograd.grad(value.sum(), own)[0].double()))
    torch.testing.assert_close(slopes[0], slopes[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["SingleTaskGP", "transforms", "known noise", "member of a list", "batch"])
def test_improvements_of_other_models_are_those_of_botorch(name: str):
    model = OTHERS[name]()
    x = points(7).unsqueeze(-2)
    x = x.unsqueeze(1) if name == "batch" else x
    seen = data(batch=(3,) if name == "batch" else (), repeats=0)[0][..., :-1, :]
    best = model.posterior(seen).mean.detach().squeeze(-1).amax(dim=-1)
    ei = PolicyAcquisition(model, tb.gp_ucb(rbf(), acquisition="ei", **BASE))
    torch.testing.assert_close(ei.incumbent, best)

    def theirs(kind: Any, margin: float) -> Tensor:
        if best.dim():
            return torch.stack([kind(model, best_f=b + margin)(x)[..., row] for row, b in enumerate(best)], dim=-1)
        value: Tensor = kind(model, best_f=best + margin)(x)
        return value

    torch.testing.assert_close(ei(x), theirs(LogExpectedImprovement, 0.0))
    pi = PolicyAcquisition(model, tb.gp_ucb(rbf(), acquisition="pi", margin=0.02, **BASE))
    torch.testing.assert_close(pi(x), theirs(LogProbabilityOfImprovement, 0.02))


def test_a_mock_and_a_posterior_transform_give_the_formula():
    mean, variance = (torch.tensor(v, dtype=torch.float64).reshape(3, 1, 1) for v in ([0.0, 1.0, 2.0], [1.0, 4.0, 0.0]))
    model = botorch.utils.testing.MockModel(botorch.utils.testing.MockPosterior(mean=mean, variance=variance))
    x = points(3).unsqueeze(-2)
    torch.testing.assert_close(PolicyAcquisition(model, ucb())(x), torch.tensor([2.0, 5.0, 2.0], dtype=torch.float64))
    flipped = ScalarizedPosteriorTransform(torch.tensor([-1.0], dtype=torch.float64), offset=3.0)
    found = PolicyAcquisition(model, ucb(), posterior_transform=flipped)(x)
    torch.testing.assert_close(found, torch.tensor([5.0, 6.0, 1.0], dtype=torch.float64))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["SingleTaskGP", "transforms", "known noise", "batch"])
def test_pending_points_shrink_the_deviations_of_other_models_alone(name: str):
    """Pending points reduce the variance as in the dense formula, one by one or together, and can be removed."""
    model, pending = OTHERS[name](), points(3, seed=9)
    policy, x = ucb(), points(5)
    acquisition, still = PolicyAcquisition(model, policy), PolicyAcquisition(model, ucb(width=0.0))
    xs = x.unsqueeze(-2).unsqueeze(1) if name == "batch" else x.unsqueeze(-2)
    before, mean = acquisition(xs), still(xs)
    for count in (1, 3):
        acquisition.set_X_pending(pending[:count])
    found = ((acquisition(xs) - mean) / Q_WIDTH).square()
    together = PolicyAcquisition(model, policy, X_pending=pending)
    torch.testing.assert_close(acquisition(xs), together(xs), rtol=1e-7, atol=1e-8)
    still.set_X_pending(pending)
    torch.testing.assert_close(still(xs), mean)
    seen = data(batch=(3,) if name == "batch" else (), repeats=0)[0][..., :-1, :]
    everything = torch.cat([seen, pending.expand(*seen.shape[:-2], -1, -1)], dim=-2)
    transform = model.input_transform if name == "transforms" else lambda points: points
    scale = float(model.outcome_transform.stdvs) ** 2 if name != "batch" else model.outcome_transform.stdvs.squeeze(-1) ** 2
    noise = model.likelihood.noise.detach()
    own = noise if name == "known noise" else noise.expand(*seen.shape[:-1])
    noise = torch.cat([own, own.mean(dim=-1, keepdim=True).expand(*own.shape[:-1], 3)], dim=-1)
    kernel = model.covar_module
    K = kernel(transform(everything)).to_dense().detach() + torch.diag_embed(noise)
    k = kernel(transform(everything), transform(x.expand(*seen.shape[:-2], -1, -1))).to_dense().detach()
    prior = kernel(transform(x.expand(*seen.shape[:-2], -1, -1)), diag=True).detach()
    expected = scale * (prior - (k * torch.linalg.solve(K, k)).sum(dim=-2))
    torch.testing.assert_close(found, expected.T if name == "batch" else expected, rtol=1e-5, atol=1e-8)
    acquisition.set_X_pending(None)
    torch.testing.assert_close(acquisition(xs), before)


def test_a_sequential_batch_of_another_model_spreads():
    """BoTorch's analytic bound takes no pending points, and would repeat one point; ours spreads the batch."""
    model = single_task()
    acquisition = PolicyAcquisition(model, tb.gp_bucb(rbf(), norm_bound=1.0, width=tb.widths.Constant(3.0), **BASE))
    picked, _ = optimize_acqf(acquisition, BOX, q=3, num_restarts=4, raw_samples=32, sequential=True)
    assert float(torch.cdist(picked, picked).add(torch.eye(3)).amin()) > 0.02
    assert acquisition.X_pending is None


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("column", [0, 1, -1])
@pytest.mark.parametrize("told", [(0, 1), (1,)], ids=["both tasks", "the other task"])
def test_one_task_of_several(column: int, told: tuple[int, ...]):
    """Points are given without their task, as to the posterior; the incumbent is one of the task that is predicted."""
    X, Y = data(14, repeats=0)
    task = torch.tensor([told[i % len(told)] for i in range(13)], dtype=torch.float64).unsqueeze(-1)
    at = column % 3
    X, Y = torch.cat([X[:-1, :at], task, X[:-1, at:]], dim=-1), Y[:-1] + 5 * task
    model = botorch.models.MultiTaskGP(X, Y, task_feature=column, output_tasks=[0], all_tasks=[0, 1]).eval()
    x, pending = points(7), points(2, seed=9)

    def whole(x: Tensor) -> Tensor:
        return torch.cat([x[:, :at], torch.zeros(len(x), 1, dtype=torch.float64), x[:, at:]], dim=-1)

    acquisition = PolicyAcquisition(model, ucb(), pending)
    conditioned = model.condition_on_observations(whole(pending), model.posterior(pending).mean.detach())
    expected = model.posterior(x).mean + Q_WIDTH * conditioned.posterior(x).variance.sqrt()
    torch.testing.assert_close(acquisition(x.unsqueeze(-2)), expected.squeeze(-1))
    torch.testing.assert_close(acquisition(whole(x).unsqueeze(-2)), expected.squeeze(-1))
    own = X[task.squeeze(-1) == 0] if 0 in told else torch.cat([X[:, :at], torch.zeros_like(task), X[:, at + 1 :]], dim=-1)
    ei = PolicyAcquisition(model, tb.gp_ucb(rbf(), acquisition="ei", **BASE))
    torch.testing.assert_close(ei.incumbent, model.posterior(own).mean.detach().amax())
    assert optimize_arms(acquisition, points(30), 3)[2].unique().numel() == 3
    with pytest.raises(ShapeError, match=r"X_pending must be \.\.\. x p x 3"):
        acquisition.set_X_pending(points(2, d=4))


def test_what_is_missing_of_other_models_is_named():
    model, counted = single_task(), tb.gp_ucb(rbf(), delta=DELTA, **BASE)
    with pytest.raises(ArgumentError, match="num_arms="):
        PolicyAcquisition(model, counted)
    acquisition = PolicyAcquisition(model, counted, num_arms=50)
    t = len(model.train_targets) + 1
    assert float(acquisition.width) == pytest.approx(math.sqrt(2 * math.log(50 * t**2 * math.pi**2 / (6 * DELTA))))
    assert float(PolicyAcquisition(variational(), counted, num_arms=50).width) > float(acquisition.width)
    mock = botorch.utils.testing.MockModel(
        botorch.utils.testing.MockPosterior(mean=torch.zeros(3, 1, 1), variance=torch.ones(3, 1, 1))
    )
    with pytest.raises(ArgumentError, match=r"number of observations.*widths\.Constant"):
        PolicyAcquisition(mock, counted, num_arms=50)
    with pytest.raises(ArgumentError, match=r"IGP depends on the information.*BanditModel"):
        PolicyAcquisition(model, tb.igp_ucb(rbf(), norm_bound=1.0, **BASE))
    with pytest.raises(ArgumentError, match="highest mean of the observations"):
        PolicyAcquisition(mock, tb.gp_ucb(rbf(), acquisition="ei", **BASE))
    with pytest.raises(UnsupportedError, match="subset_output"):
        PolicyAcquisition(botorch.models.ModelListGP(model, model), ucb())
    with pytest.raises(UnsupportedError, match="draws of the posterior"):
        PolicyAcquisition(model, tb.thompson_sampling(rbf(), norm_bound=1.0, **BASE))
    with pytest.raises(UnsupportedError, match=r"can't be conditioned on pending points.*qUpperConfidenceBound"):
        PolicyAcquisition(mock, ucb(), X_pending=points(2))


# ---------------------------------------------------------------------- agreement


def test_what_is_no_policy_no_model_or_no_transform_is_refused(annotations_not_enforced):
    with pytest.raises(ArgumentError, match="BanditModel or another BoTorch model"):
        PolicyAcquisition(torch.nn.Linear(2, 1), ucb())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="torchbandits policy"):
        PolicyAcquisition(fixed_model(), "gp_ucb")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="PosteriorTransform"):
        PolicyAcquisition(fixed_model(), ucb(), posterior_transform=lambda p: p)  # type: ignore[arg-type]


SCORING = {
    "auto",
    "gp_ucb",
    "igp_ucb",
    "gp_bucb",
    "bkb",
    "batch_bkb",
    "compressed_gp",
    "mini_gp_ucb",
    "thompson_sampling",
    "lin_ucb",
    "lse",
}
FEATURES = {"cbrap", "soful", "rff_ucb"}  # policies whose posterior uses features that only their bandit has


@pytest.mark.sweep(14)
@pytest.mark.parametrize("name", registry)
def test_every_policy_scores_or_says_that_it_does_not(name):
    factory, kernel = registry[name], rbf()
    takes = inspect.signature(factory).parameters
    needed: dict[str, Any] = {"nu": 1.5, "horizon": 50, "sketch_size": 2, "num_features": 4, "level": 0.3}
    options = {k: v for k, v in needed.items() if k in takes and takes[k].default is inspect.Parameter.empty}
    if "regularization" in takes:
        options |= {"regularization": NOISE_STD**2}
    if "noise_std" in takes:
        options |= BASE
    policy = factory(*((kernel,) if "kernel" in takes else ()), **options)
    own = kernel if "kernel" in takes else getattr(policy, "kernel", tb.lin_ucb().kernel)
    noise_std = policy.noise_std if name == "auto" else NOISE_STD  # in its own units, where the noise has variance 1
    model = BanditModel(*data(), kernel=own, noise_std=noise_std)
    x = points(7).unsqueeze(-2).requires_grad_()
    if name in SCORING:
        values = PolicyAcquisition(model, policy, num_arms=7)(x)
        assert values.shape == (7,)
        assert bool(torch.isfinite(values).all())
        assert values.requires_grad
        return
    with pytest.raises(botorch.exceptions.UnsupportedError, match="gp_ucb") as caught:
        PolicyAcquisition(model, policy, num_arms=7)
    assert isinstance(caught.value, UnsupportedError)
    assert isinstance(caught.value, NotImplementedError)


def test_scores_per_cost_are_refused():
    with pytest.raises(UnsupportedError, match="costs"):
        PolicyAcquisition(fixed_model(), tb.per_cost(ucb()))


def test_kernels_of_another_form_are_refused_and_other_values_are_the_models():
    model = fixed_model()
    for other in ("matern52", "scaled", "linear"):
        with pytest.raises(ArgumentError, match=r"model\.covar_module"):
            PolicyAcquisition(model, tb.gp_ucb(kernel_pair(other)[0], **BASE), num_arms=5)
    with pytest.raises(ArgumentError, match=r"auto estimates kernel.* use gp_ucb\(model\.covar_module"):
        PolicyAcquisition(model, tb.auto())
    with pytest.raises(ArgumentError, match=r"nu=0\.5"):
        PolicyAcquisition(
            fixed_model(kernel=kernel_pair("matern52")[0]), tb.gp_ucb(kernel_pair("matern12")[0], **BASE), num_arms=5
        )
    with pytest.raises(ArgumentError, match="active_dims"):
        PolicyAcquisition(model, tb.gp_ucb(gpytorch.kernels.RBFKernel(active_dims=(0,)), **BASE), num_arms=5)
    x, other = points(9).unsqueeze(-2), tb.gp_ucb(rbf(lengthscale=3.0), width=tb.widths.Constant(Q_WIDTH), **BASE)
    assert torch.equal(PolicyAcquisition(model, other)(x), PolicyAcquisition(model, ucb())(x))


def test_another_regularization_is_refused_unless_the_noise_was_fitted():
    with pytest.raises(ArgumentError, match=r"λ is 0\.0001"):
        PolicyAcquisition(fixed_model(), ucb(noise_std=0.01))
    fitted = fixed_model(noise_std=None)
    PolicyAcquisition(fitted, ucb(noise_std=0.01))  # the ratio of λ to the noise variance is 1 on both sides
    with pytest.raises(ArgumentError, match="λ / noise_std²"):
        PolicyAcquisition(fitted, ucb(regularization=1.0))
    both = fixed_model(regularization=1.0)
    PolicyAcquisition(both, ucb(regularization=1.0))
    PolicyAcquisition(fixed_model(regularization=0.5), ucb(noise_std=0.0, regularization=0.5))


def test_another_noise_than_the_model_s_is_refused_for_a_bandit_s_model_too():
    with pytest.raises(ArgumentError, match=r"λ is 0\.01 and its noise_std 0\.5, the model's 0\.01 and 0\.1: make it with"):
        PolicyAcquisition(fixed_model(noise_std=0.1), ucb(noise_std=0.5, regularization=0.01))
    bandit = tb.Bandit(ucb(noise_std=0.1), points(12).squeeze(-2))
    rewards = 3 * points(12)[:, 0] + 0.3 * torch.randn(2, 12, generator=torch.Generator().manual_seed(3))
    bandit.tell(torch.arange(12).repeat(2), rewards.flatten())
    with pytest.raises(ArgumentError, match=r"λ is 0\.25 and its noise_std 0\.5, the model's 0\.01 and 0\.1"):
        PolicyAcquisition(bandit.model(), ucb(noise_std=0.5))
    PolicyAcquisition(bandit.model(), ucb(noise_std=0.1))
    bandit.fit_kernel_(noise=True)
    model = bandit.model()
    assert abs(model.noise_std - 0.1) > 1e-3
    PolicyAcquisition(model, bandit.policy)
    PolicyAcquisition(model, ucb(noise_std=model.noise_std))


def test_another_prior_mean_than_the_model_s_is_refused():
    with pytest.raises(ArgumentError, match=r"the policy's prior_mean is 3\.0, and means are those of the model"):
        PolicyAcquisition(fixed_model(), ucb(prior_mean=3.0))
    PolicyAcquisition(fixed_model(prior_mean=3.0), ucb(prior_mean=3.0))
    PolicyAcquisition(fixed_model(prior_mean="estimate"), ucb())


def test_the_draws_of_a_policy_that_does_not_score_are_not_its_own():
    assert isinstance(drawing().score, PosteriorDraw)
    assert not PolicyAcquisition(fixed_model(), drawing()).lazy
    assert PolicyAcquisition(fixed_model(), ucb()).lazy


# ---------------------------------------------------------------------- BoTorch's registry


def built(**options: Any) -> PolicyAcquisition:
    model = options.pop("model", None) or fixed_model()
    return PolicyAcquisition(**get_acqf_input_constructor(PolicyAcquisition)(model=model, training_data=None, **options))


def test_the_input_constructor_is_registered_and_takes_what_ax_passes():
    assert PolicyAcquisition in ACQF_INPUT_CONSTRUCTOR_REGISTRY
    flipped, pending = ScalarizedPosteriorTransform(torch.tensor([-1.0]).double()), points(2, seed=5)
    acqf = built(X_pending=pending, posterior_transform=flipped, X_baseline=pending, bounds=[(0.0, 1.0)] * 2)
    assert torch.equal(acqf.X_pending, pending)
    x = points(9).unsqueeze(-2)
    expected = PolicyAcquisition(fixed_model(), ucb(), pending, posterior_transform=flipped)
    torch.testing.assert_close(acqf(x), expected(x))
    assert float(acqf.width) == 2.0


def test_policies_are_given_or_named():
    x, model = points(9).unsqueeze(-2), fixed_model()
    mine = built(model=model, policy=ucb(width=3.0))
    assert torch.equal(mine(x), built(model=model, beta=9.0)(x))
    named = built(model=model, policy="gp_bucb", policy_options={"norm_bound": 0.5, "delta": 0.2})
    expected = PolicyAcquisition(model, tb.gp_bucb(rbf(), norm_bound=0.5, delta=0.2, **BASE))
    assert torch.equal(named(x), expected(x))
    counted = built(model=model, policy="gp_ucb", policy_options={"delta": 0.2}, num_arms=40)
    assert float(counted.width) > 2
    assert float(built(model=model, policy="bkb", beta=1.0).width) == 1.0
    other = single_task()
    assert torch.equal(built(model=other, policy=ucb())(x), PolicyAcquisition(other, ucb())(x))
    drawn = built(model=model, policy="thompson_sampling", generator=torch.Generator().manual_seed(1))
    assert drawn(x).shape == (9,)


def test_bad_options_are_named():
    with pytest.raises(ArgumentError, match="Did you mean 'gp_bucb'"):
        built(policy="gpbucb")
    with pytest.raises(ArgumentError, match="for a policy that is given by its name"):
        built(policy=ucb(), beta=2.0)
    with pytest.raises(ArgumentError, match="either beta"):
        built(policy="gp_ucb", beta=2.0, policy_options={"width": tb.widths.Constant(1.0)})
    with pytest.raises(ArgumentError, match="beta must be"):
        built(beta=-1.0)
    with pytest.raises(ArgumentError, match="has no width"):
        built(policy="uniform", beta=1.0)
    with pytest.raises(UnsupportedError, match="outcome constraints"):
        built(constraints=[lambda y: y])
    with pytest.raises(UnsupportedError, match="the model has 2 outcomes: leave one metric in the objective"):
        built(model=botorch.models.ModelListGP(fixed_model(), fixed_model()))
    with pytest.raises(UnsupportedError, match="the model is a SingleTaskGP: make a BanditModel of the data, or pass a policy"):
        built(model=single_task(), policy="gp_bucb", beta=4.0)
    with pytest.raises(TypeError, match="nonsense"):
        built(nonsense=1)


def test_the_module_may_be_loaded_again():
    importlib.reload(torchbandits.botorch.inputs)
    assert isinstance(built(), PolicyAcquisition)
