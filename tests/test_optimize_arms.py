"""optimize_arms returns the picks of a naive scan for any BoTorch acquisition function, and restores the function's state."""

from __future__ import annotations

import warnings
from typing import Any

import botorch
import pytest
import torch
from botorch.acquisition import (
    ProximalAcquisitionFunction,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.optim import optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from problems import NOISE_STD, rbf
from test_acquisition import BASE, SCORES, data, drawing, fixed_model, points, ucb
from torch import Tensor

import torchbandits as tb
import torchbandits.botorch.arms as arms_module
from torchbandits.botorch import BanditModel, PolicyAcquisition, optimize_arms
from torchbandits.errors import ArgumentError, NonFiniteError, NumericalError, ShapeError, UnsupportedError

ARMS = points(300, seed=9)
# If an arm is picked again, BoTorch's joint posterior is singular, and its jitter issues a warning.
pytestmark = pytest.mark.filterwarnings("ignore:A not p.d., added jitter:linear_operator.utils.warnings.NumericalWarning")


def q_ucb(model: Any, **options: Any) -> qUpperConfidenceBound:
    return qUpperConfidenceBound(model, beta=4.0, sampler=SobolQMCNormalSampler(torch.Size([32]), seed=0), **options)


def naive(
    acqf: Any, arms: Tensor, q: int, base: Tensor, *, unique: bool, available: Tensor | None = None
) -> tuple[list[int], list[float]]:
    """Score every arm separately for every pick, given the pending points, and pick the first of the best arms."""
    open_ = torch.ones(len(arms), dtype=torch.bool) if available is None else available.clone()
    picks: list[int] = []
    values: list[float] = []
    for _ in range(q):
        acqf.set_X_pending(torch.cat([base, arms[picks]]))
        with torch.no_grad():
            own = torch.cat([acqf(arm[None, None, :]) for arm in arms])
        own[~open_] = -torch.inf
        picks.append(int(own.argmax()))
        values.append(float(own.max()))
        if unique:
            open_[picks[-1]] = False
    acqf.set_X_pending(base)
    return picks, values


def acquisitions(model: BanditModel, pending: Tensor | None) -> dict[str, Any]:
    best = model.train_targets.max()
    own = {score: PolicyAcquisition(model, ucb(acquisition=score), pending) for score in SCORES}
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=0)
    theirs = {
        "q_ucb": q_ucb(model, X_pending=pending),
        "q_log_ei": qLogExpectedImprovement(model, best_f=best, sampler=sampler, X_pending=pending),
        "q_log_nei": qLogNoisyExpectedImprovement(
            model, model.train_inputs[0][4:-1], sampler=sampler, X_pending=pending, prune_baseline=False
        ),
    }
    return own | theirs | {"draws": PolicyAcquisition(model, drawing(), pending)}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dictionary", ["all", "leverage"])
@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("name", [*SCORES, "q_ucb", "q_log_ei", "q_log_nei", "draws"])
def test_picks_are_those_of_a_naive_scan(name, unique, dictionary):
    arms, pending = ARMS[:60], points(2, seed=5)
    acqf = acquisitions(fixed_model(dictionary=dictionary), pending)[name]
    available = torch.rand(60, generator=torch.Generator().manual_seed(3)) < 0.7
    before = acqf(arms.unsqueeze(-2))
    for offered in (None, available):
        expected, values = naive(acqf, arms, 4, pending, unique=unique, available=offered)
        chosen, best, index = optimize_arms(acqf, arms, 4, unique=unique, available=offered, max_batch_size=7)
        assert index.tolist() == expected
        assert torch.equal(chosen, arms[index])
        torch.testing.assert_close(best, torch.tensor(values, dtype=best.dtype), rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(acqf(arms.unsqueeze(-2)), before, rtol=1e-9, atol=1e-9)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("noise_std", [0.1, 1e-3])
@pytest.mark.parametrize("q", [1, 2, 12])
def test_picks_are_those_of_botorch(score, noise_std, q):
    X, Y = data()
    model = BanditModel(X, Y, kernel=rbf(), noise_std=noise_std)
    for tabulated in (False, True):
        acqf = PolicyAcquisition(model.tabulate_(ARMS) if tabulated else model, ucb(acquisition=score, noise_std=noise_std))
        for unique in (False, True):
            theirs, values = optimize_acqf_discrete(acqf, q, ARMS, unique=unique)
            ours, best, index = optimize_arms(acqf, ARMS, q, unique=unique)
            assert torch.equal(ours, theirs)
            torch.testing.assert_close(best, values.reshape(-1), rtol=1e-6, atol=1e-8)
            assert ours.shape == (q, 2)
            assert best.shape == index.shape == (q,)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("width", [0.0, 2.0, 1000.0])
def test_lazy_picks_when_few_or_all_arms_compete(width):
    arms = torch.cat([ARMS, ARMS + 1e-9, ARMS[:50]])  # nearly equal and equal ones
    acqf = PolicyAcquisition(fixed_model(), ucb(width=width))
    _, values, index = optimize_arms(acqf, arms, 40, unique=False)
    acqf.set_X_pending(None)
    for pick in range(40):
        own = acqf(arms.unsqueeze(-2))
        best = own.max()
        torch.testing.assert_close(values[pick], best, rtol=1e-9, atol=1e-9)
        ties = own >= best - 1e-14 * best.abs()
        assert int(index[pick]) == int(ties.nonzero()[0]) or float(own[int(index[pick])]) >= float(best) * (1 - 1e-12)
        acqf.set_X_pending(arms[index[: pick + 1]])


def test_equal_arms_go_to_the_lowest_index():
    arms = torch.cat([ARMS[:20], ARMS[:20], ARMS[:20]])
    for size in (2048, 13):
        index = optimize_arms(PolicyAcquisition(fixed_model(), ucb()), arms, 6, unique=False, max_batch_size=size)[2]
        assert int(index.max()) < 20
    assert int(optimize_arms(q_ucb(fixed_model()), arms)[2]) < 20
    without = torch.ones(60, dtype=torch.bool)
    without[:20] = False
    first = optimize_arms(PolicyAcquisition(fixed_model(), ucb()), arms, available=without)[2]
    assert 20 <= int(first) < 40


def test_few_arms_are_scored_again(monkeypatch):
    scored: list[int] = []
    evaluated = arms_module._evaluated

    def counted(acqf: Any, x: Tensor) -> Tensor:
        scored.append(x.shape[-2])
        return evaluated(acqf, x)

    monkeypatch.setattr(arms_module, "_evaluated", counted)
    arms = points(5000, seed=3)
    optimize_arms(PolicyAcquisition(fixed_model(), ucb()), arms, 10)
    assert sum(scored) < 5000 + 9 * 1000
    assert max(scored) <= 2048


def test_batch_rows_pick_for_themselves():
    X, Y = data(batch=(2, 3))
    model, arms = BanditModel(X, Y, kernel=rbf(), noise_std=NOISE_STD), points(40, batch=(2, 3), seed=9)
    available = torch.rand(2, 3, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    for make in (lambda m: PolicyAcquisition(m, ucb()), q_ucb):
        chosen, values, index = optimize_arms(make(model), arms, 3, available=available, max_batch_size=11)
        assert chosen.shape == (2, 3, 3, 2)
        assert values.shape == index.shape == (2, 3, 3)
        for row in [(0, 0), (0, 2), (1, 1)]:
            single = BanditModel(X[row], Y[row], kernel=rbf(), noise_std=NOISE_STD)
            own = optimize_arms(make(single), arms[row], 3, available=available[row])
            assert torch.equal(own[2], index[row])
            torch.testing.assert_close(own[1], values[row], rtol=1e-7, atol=1e-7)
    shared = optimize_arms(PolicyAcquisition(model, ucb()), arms[0, 0], 2)[2]
    assert shared.shape == (2, 3, 2)


def test_other_models_and_functions_of_botorch():
    X, Y = data()
    gp = SingleTaskGP(X, Y)
    for acqf in (UpperConfidenceBound(gp, beta=4.0), q_ucb(gp)):
        theirs, value = optimize_acqf_discrete(acqf, 1, ARMS)
        ours, best, _ = optimize_arms(acqf, ARMS)
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(best.squeeze(), value)
    theirs, values = optimize_acqf_discrete(q_ucb(gp), 3, ARMS)
    assert torch.equal(optimize_arms(q_ucb(gp), ARMS, 3)[0], theirs), "the defaults are the same"
    path = PathwiseThompsonSampling(fixed_model())
    values = path(ARMS.unsqueeze(-2))
    assert int(optimize_arms(path, ARMS)[2]) == int(values.argmax())


@pytest.mark.parametrize("kind", ["own", "theirs"])
def test_fixed_features(kind):
    """The picks are those among whole points; what is pending reaches the function that BoTorch wraps."""
    free = torch.linspace(0, 1, 60, dtype=torch.float64).unsqueeze(-1)
    whole = torch.cat([torch.full_like(free, 0.3), free], dim=-1)
    make = (lambda: PolicyAcquisition(fixed_model(), ucb())) if kind == "own" else (lambda: q_ucb(fixed_model()))
    fixed = FixedFeatureAcquisitionFunction(make(), d=2, columns=[0], values=[0.3])
    _, values, index = optimize_arms(make(), whole, 4)
    assert index.unique().numel() == 4
    picks, best, places = optimize_arms(fixed, free, 4)
    assert torch.equal(places, index)
    torch.testing.assert_close(best, values)
    assert torch.equal(optimize_acqf_discrete(fixed, 4, free)[0], picks)


@pytest.mark.parametrize("kind", ["own", "theirs"])
@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_what_was_pending_is_pending_again_whatever_happens(kind, fails_at, monkeypatch):
    pending = points(2, seed=5)
    acqf = PolicyAcquisition(fixed_model(), ucb(), pending) if kind == "own" else q_ucb(fixed_model(), X_pending=pending)
    before, calls = acqf(ARMS.unsqueeze(-2)), 0
    evaluated = arms_module._evaluated

    def broken(function: Any, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise NumericalError("broken on purpose")
        return evaluated(function, x)

    with monkeypatch.context() as patched:
        patched.setattr(arms_module, "_evaluated", broken)
        with pytest.raises(NumericalError):
            optimize_arms(acqf, ARMS, 5)
    assert torch.equal(acqf.X_pending, pending)
    assert torch.equal(acqf(ARMS.unsqueeze(-2)), before)


def test_interrupted_in_set_x_pending(monkeypatch):
    acqf = PolicyAcquisition(fixed_model(), ucb())
    before, hallucinate, calls = acqf(ARMS.unsqueeze(-2)), BanditModel.hallucinate, 0

    def broken(self: BanditModel, X: Tensor, counts: Tensor | None = None, **options: bool) -> BanditModel:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return hallucinate(self, X, counts, **options)

    with monkeypatch.context() as patched:
        patched.setattr(BanditModel, "hallucinate", broken)
        with pytest.raises(KeyboardInterrupt):
            optimize_arms(acqf, ARMS, 5)
    assert acqf.X_pending is None
    assert torch.equal(acqf(ARMS.unsqueeze(-2)), before)


def test_several_picks_need_pending_points():
    with pytest.raises(botorch.exceptions.UnsupportedError, match="X_pending"):
        optimize_arms(UpperConfidenceBound(fixed_model(), beta=4.0), ARMS, 2)
    with pytest.raises(UnsupportedError, match="optimize_acqf"):
        optimize_arms(qKnowledgeGradient(fixed_model(), num_fantasies=2), ARMS)


def test_bad_input_is_named(annotations_not_enforced):
    acqf = PolicyAcquisition(fixed_model(), ucb())
    with pytest.raises(ShapeError, match="A x d"):
        optimize_arms(acqf, ARMS[0])
    with pytest.raises(ShapeError, match="available"):
        optimize_arms(acqf, ARMS, available=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ShapeError, match="batch shape"):
        optimize_arms(acqf, points(9, batch=(2,)))
    with pytest.raises(ArgumentError, match="only 0 can be selected"):
        optimize_arms(acqf, ARMS, available=torch.zeros(300, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="4 different arms"):
        optimize_arms(acqf, ARMS[:3], 4)
    assert optimize_arms(acqf, ARMS[:3], 4, unique=False)[2].shape == (4,)
    for q in (0, 1.5):
        with pytest.raises(ArgumentError, match="q must be"):
            optimize_arms(acqf, ARMS, q)
    with pytest.raises(ArgumentError, match="max_batch_size"):
        optimize_arms(acqf, ARMS, max_batch_size=0)

    class Broken(botorch.acquisition.AcquisitionFunction):
        def forward(self, X: Tensor) -> Tensor:
            return torch.where(X[:, 0, 0] < 0.5, torch.nan, 1.0)

    with pytest.raises(NonFiniteError, match="NaN"):
        optimize_arms(Broken(fixed_model()), ARMS)


def test_float32_arms():
    acqf = PolicyAcquisition(fixed_model(), ucb())
    chosen, _, index = optimize_arms(acqf, ARMS.float(), 5)
    assert chosen.dtype == torch.float32
    assert torch.equal(index, optimize_arms(acqf, ARMS, 5)[2])
    assert acqf.width.dtype == torch.float64


def test_functions_of_several_models():
    X, Y = data()
    models = ModelListGP(SingleTaskGP(X, Y), SingleTaskGP(X, -Y))
    total = botorch.acquisition.objective.ScalarizedPosteriorTransform(torch.tensor([1.0, 0.5], dtype=torch.float64))
    acqf = UpperConfidenceBound(models, beta=4.0, posterior_transform=total)
    assert torch.equal(optimize_arms(acqf, ARMS)[0], optimize_acqf_discrete(acqf, 1, ARMS)[0])


def test_functions_and_models_without_a_batch_shape():
    """A known function of the points as a model has the batch shape None, and a function around another one has no model."""
    known = GenericDeterministicModel(lambda X: X.sum(dim=-1, keepdim=True))
    best = int(ARMS.sum(dim=-1).argmax())
    assert optimize_arms(UpperConfidenceBound(known, beta=4.0), ARMS)[2].tolist() == [best]
    assert optimize_arms(PolicyAcquisition(known, ucb()), ARMS)[2].tolist() == [best]
    model = fixed_model()
    near = ProximalAcquisitionFunction(PolicyAcquisition(model, ucb()), torch.ones(2, dtype=torch.float64), beta=1.0)
    assert torch.equal(optimize_arms(near, ARMS)[0], optimize_acqf_discrete(near, 1, ARMS)[0])


def test_a_batch_of_gp_bucb_over_arms_and_in_chunks():
    policy = tb.gp_bucb(rbf(), regularization=NOISE_STD**2, **BASE)
    acqf = PolicyAcquisition(fixed_model(), policy)
    whole = optimize_arms(acqf, ARMS, 8, unique=False)
    for size in (1, 17, 299):
        assert torch.equal(optimize_arms(acqf, ARMS, 8, unique=False, max_batch_size=size)[2], whole[2])


@pytest.mark.parametrize("seed", range(4))
def test_an_arm_beside_itself_warns_of_nothing(seed):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(200, 3, dtype=torch.float64, generator=generator)
    model = BanditModel(X, torch.sin(5 * X[:, :1]), kernel=rbf(), noise_std=0.1)
    candidates = torch.rand(50, 3, dtype=torch.float64, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index = optimize_arms(qLogExpectedImprovement(model, model.train_targets.max()), candidates, q=3, unique=False)[2]
    assert index.shape == (3,)
