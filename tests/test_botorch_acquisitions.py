"""BoTorch's acquisition functions and optimisers on our models agree with those on BoTorch's models and a dense sparse GP.

Exact models are compared with `SingleTaskGP`; sparse ones with `botorch_models.Dense`, which recomputes everything each time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from botorch import acquisition as acq
from botorch.acquisition.analytic import LogProbabilityOfImprovement
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.max_value_entropy_search import qLowerBoundMaxValueEntropy, qMaxValueEntropy
from botorch.acquisition.multi_objective import (
    qHypervolumeKnowledgeGradient,
    qLogExpectedHypervolumeImprovement,
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.acquisition.predictive_entropy_search import qPredictiveEntropySearch
from botorch.acquisition.utils import prune_inferior_points
from botorch.generation import BoltzmannSampling, MaxPosteriorSampling
from botorch.models import ModelList, ModelListGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.get_sampler import get_sampler
from botorch.utils.multi_objective.box_decompositions import FastNondominatedPartitioning
from botorch_models import DENSE, DIM, MODELS, REFERENCES, data, points
from torch import Tensor

pytestmark = [
    pytest.mark.filterwarnings("ignore:Non-strict enforcement of botorch tensor conventions"),
    pytest.mark.filterwarnings(
        "ignore::botorch.exceptions.NumericsWarning"
    ),  # plain EI and NEI are tested because they are in use
]
PAIRS = [pytest.param(MODELS[name], reference, id=name) for name, reference in REFERENCES.items()]
pairs = pytest.mark.parametrize(("make", "reference"), PAIRS)
# For functions that differentiate the covariance of a fantasy, or condition on known noise under a model with a single noise
# variance: there BoTorch's own exact model keeps the root of the covariance fixed, and uses the known noise for the covariance
# but not for the mean.
dense_pairs = pytest.mark.parametrize(("make", "reference"), [pytest.param(MODELS[n], DENSE[n], id=n) for n in DENSE])
BOUNDS = torch.tensor([[0.0] * DIM, [1.0] * DIM]).double()
BEST = 2.0


def sampler(num: int = 32) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([num]), seed=7)


def baseline() -> tuple[Tensor, Tensor]:
    """Well-separated baseline points, so that base samples are multiplied by the same Cholesky factor on both sides."""
    return data(70, n=10, repeats=0, near=0)


Acquire = Callable[[Model], acq.AcquisitionFunction]
ANALYTIC: dict[str, Acquire] = {
    "UpperConfidenceBound": lambda m: acq.UpperConfidenceBound(m, beta=4.0),
    "PosteriorMean": acq.PosteriorMean,
    "PosteriorStandardDeviation": acq.PosteriorStandardDeviation,
    "ExpectedImprovement": lambda m: acq.ExpectedImprovement(m, BEST),
    "LogExpectedImprovement": lambda m: acq.LogExpectedImprovement(m, BEST),
    "LogProbabilityOfImprovement": lambda m: LogProbabilityOfImprovement(m, BEST),
}
MONTE_CARLO: dict[str, Acquire] = {
    "qUpperConfidenceBound": lambda m: acq.qUpperConfidenceBound(m, beta=4.0, sampler=sampler()),
    "qSimpleRegret": lambda m: acq.qSimpleRegret(m, sampler=sampler()),
    "qProbabilityOfImprovement": lambda m: acq.qProbabilityOfImprovement(m, BEST, sampler=sampler()),
    "qExpectedImprovement": lambda m: acq.qExpectedImprovement(m, BEST, sampler=sampler()),
    "qLogExpectedImprovement": lambda m: acq.qLogExpectedImprovement(m, BEST, sampler=sampler()),
}
NOISY: dict[str, Callable[..., acq.AcquisitionFunction]] = {
    "qNoisyExpectedImprovement": acq.qNoisyExpectedImprovement,
    "qLogNoisyExpectedImprovement": acq.qLogNoisyExpectedImprovement,
}
# Acquisition functions that draw their own samples of the maximum, from torch's generator with the same seed.
ENTROPIES: dict[str, Acquire] = {
    "qMaxValueEntropy": lambda m: qMaxValueEntropy(m, points(72, 60), num_mv_samples=5, num_fantasies=4),
    "qLowerBoundMaxValueEntropy": lambda m: qLowerBoundMaxValueEntropy(m, points(72, 60), num_mv_samples=5),
    "qLowerBoundMaxValueEntropy, Thompson": lambda m: qLowerBoundMaxValueEntropy(
        m, points(72, 60), num_mv_samples=5, use_gumbel=False
    ),
}


def agree(make, reference, acquire: Acquire, X: Tensor, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    """Assert that values and gradients at `X` agree on both models of the same data."""
    found = []
    for maker in (make, reference):
        torch.manual_seed(0)
        acquisition, where = acquire(maker(*baseline())), X.clone().requires_grad_()
        value = acquisition(where)
        assert value.shape == X.shape[:-2]
        assert value.isfinite().all()
        (gradient,) = torch.autograd.grad(value.sum(), where, allow_unused=True)
        found.append((value.detach(), gradient))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=rtol, atol=atol)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=100 * rtol, atol=100 * atol)


@pytest.mark.sweep(6)
@pairs
@pytest.mark.parametrize("name", ANALYTIC)
def test_analytic(make, reference, name):
    agree(make, reference, ANALYTIC[name], points(73, 8, 1))


@pytest.mark.sweep(5)
@pairs
@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("name", MONTE_CARLO)
def test_monte_carlo(make, reference, name, q, pending):
    def acquire(model: Model) -> acq.AcquisitionFunction:
        acquisition = MONTE_CARLO[name](model)
        if pending:
            acquisition.set_X_pending(points(74, 2))
        return acquisition

    agree(make, reference, acquire, points(75, 4, q))


@dense_pairs
@pytest.mark.parametrize("q", [1, 3])
def test_integrated_variance(make, reference, q):
    X_pending = points(74, 2) if q == 3 else None

    def acquire(model: Model) -> acq.AcquisitionFunction:
        return acq.qNegIntegratedPosteriorVariance(model, points(71, 20), sampler=sampler(1), X_pending=X_pending)

    agree(make, reference, acquire, points(75, 4, q))


@pytest.mark.sweep(2)
@pairs
@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize("cache_root", [False, True])
@pytest.mark.parametrize("name", NOISY)
def test_noisy(make, reference, name, prune, cache_root):
    X, _ = baseline()

    def acquire(model: Model) -> acq.AcquisitionFunction:
        return NOISY[name](model, X, sampler=sampler(), prune_baseline=prune, cache_root=cache_root)

    agree(make, reference, acquire, points(76, 4, 2), rtol=1e-5)
    agree(make, reference, acquire, points(76, 4, 1), rtol=1e-5)


@pairs
def test_pruning_keeps_the_same_points(make, reference):
    X, _ = baseline()
    kept = [prune_inferior_points(maker(*baseline()), X, sampler=sampler(512)) for maker in (make, reference)]
    assert torch.equal(*kept)
    assert len(kept[0]) < len(X)


@pytest.mark.sweep(6)
@pairs
@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("name", ENTROPIES)
def test_max_value_entropy(make, reference, name, pending):
    """With pending points the model is fantasized."""

    def acquire(model: Model) -> acq.AcquisitionFunction:
        acquisition = ENTROPIES[name](model)
        if pending:
            torch.manual_seed(1)
            acquisition.set_X_pending(points(74, 2))
        return acquisition

    agree(make, reference, acquire, points(77, 4, 1), rtol=1e-5, atol=1e-7)


@pairs
@pytest.mark.parametrize("pending", [False, True])
def test_knowledge_gradient(make, reference, pending):
    X_pending = points(74, 2) if pending else None

    def acquire(model: Model) -> acq.AcquisitionFunction:
        return acq.qKnowledgeGradient(
            model, num_fantasies=4, sampler=sampler(4), X_pending=X_pending, current_value=torch.tensor(1.0)
        )

    agree(make, reference, acquire, points(78, 3, 2 + 4), rtol=1e-5)


@dense_pairs
def test_joint_entropy_search(make, reference):
    """Joint entropy search conditions on the optima, with one model per sample of them."""
    optima = points(79, 5)
    acquire = partial(qJointEntropySearch, optimal_inputs=optima, optimal_outputs=1.5 + optima[:, :1], estimation_type="LB")
    agree(make, reference, acquire, points(80, 4, 2), rtol=1e-5)


@dense_pairs
def test_several_steps_ahead(make, reference):
    """Multi-step lookahead, which needs fantasies of fantasies."""
    acquire = partial(qMultiStepLookahead, batch_sizes=[1, 1], num_fantasies=[3, 2])
    agree(make, reference, acquire, points(86, 2, acquire(make(*baseline())).get_augmented_q_batch_size(1)), rtol=1e-5)


@pytest.mark.sweep(1)
@pairs
def test_predictive_entropy_search(make, reference):
    agree(make, reference, partial(qPredictiveEntropySearch, optimal_inputs=points(87, 3)), points(88, 2, 1), rtol=1e-4)


@pairs
def test_near_the_last_point(make, reference):
    """Acquisition functions that read the observed points from the model."""

    def acquire(model: Model) -> acq.AcquisitionFunction:
        return acq.ProximalAcquisitionFunction(ANALYTIC["UpperConfidenceBound"](model), torch.ones(DIM).double())

    agree(make, reference, acquire, points(89, 3, 1))


@dense_pairs
def test_hypervolume_knowledge_gradient(make, reference):
    X, Y = baseline()
    values = []
    for maker in (make, reference):
        both = ModelListGP(maker(X, Y), maker(X, -Y.square()))
        torch.manual_seed(0)
        acquisition = qHypervolumeKnowledgeGradient(both, torch.tensor([0.0, -3.0]).double(), num_fantasies=3, num_pareto=2)
        values.append(acquisition(points(90, 2, acquisition.get_augmented_q_batch_size(1))))
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-7)


@pairs
def test_sampling_from_a_finite_set(make, reference):
    """Thompson and Boltzmann sampling give the same picks from the same draws."""
    X, picks = points(81, 60), []
    for maker in (make, reference):
        model = maker(*baseline())
        torch.manual_seed(3)
        thompson = MaxPosteriorSampling(model, replacement=False)(X, num_samples=4)
        boltzmann = BoltzmannSampling(acq.UpperConfidenceBound(model, beta=4.0), eta=3.0)(X, num_samples=5)
        picks.append((thompson, boltzmann))
    for one, other in zip(*picks, strict=True):
        assert torch.equal(one, other)


# ------------------------------------------------------------------------- optimisers


def optimize(acquisition: acq.AcquisitionFunction, q: int, sequential: bool = False) -> tuple[Tensor, Tensor]:
    options = {"seed": 5, "sample_around_best": True}
    torch.manual_seed(4)
    return optimize_acqf(acquisition, BOUNDS, q, num_restarts=2, raw_samples=32, options=options, sequential=sequential)


@pytest.mark.sweep(2)
@pairs
@pytest.mark.parametrize("name", ["UpperConfidenceBound", "LogExpectedImprovement"])
def test_optimize_one_point(make, reference, name):
    found = [optimize(ANALYTIC[name](maker(*baseline())), 1) for maker in (make, reference)]
    assert found[0][0].shape == (1, DIM)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0.0, atol=5e-3)


@pytest.mark.sweep(2)
@pairs
@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")  # two points of a batch that converge to the same place
@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("name", ["qLogExpectedImprovement", "qUpperConfidenceBound"])
def test_optimize_several_points(make, reference, name, sequential):
    found = [optimize(MONTE_CARLO[name](maker(*baseline())), 2, sequential) for maker in (make, reference)]
    assert found[0][0].shape == (2, DIM)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-3)


@pytest.mark.exhaustive
@pairs
def test_optimize_the_knowledge_gradient(make, reference):
    """One-shot: candidates and fantasies at once, starting from points optimised on the model itself."""
    values = []
    for maker in (make, reference):
        torch.manual_seed(6)
        acquisition = acq.qKnowledgeGradient(maker(*baseline()), num_fantasies=4, sampler=sampler(4))
        X, value = optimize_acqf(acquisition, BOUNDS, 1, num_restarts=2, raw_samples=16, options={"seed": 5, "maxiter": 30})
        assert X.shape == (1, DIM)
        values.append(value)
    torch.testing.assert_close(*values, rtol=2e-2, atol=1e-3)


@pytest.mark.sweep(2)
@pairs
@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")  # a pick whose copy is pending
@pytest.mark.parametrize("unique", [False, True])
def test_optimize_over_a_finite_set(make, reference, unique):
    choices, picks = points(82, 70), []
    for maker in (make, reference):
        model = maker(*baseline())
        analytic, joint = ANALYTIC["LogExpectedImprovement"](model), MONTE_CARLO["qLogExpectedImprovement"](model)
        one, _ = optimize_acqf_discrete(analytic, 1, choices)
        several, _ = optimize_acqf_discrete(joint, 3, choices, unique=unique, max_batch_size=16)
        picks.append(torch.cat([one, several]))
    assert torch.equal(*picks)


# ------------------------------------------------------------------------- several outputs


@pytest.mark.exhaustive  # BoTorch compiles an extension first
@pairs
@pytest.mark.parametrize("kind", [ModelList, ModelListGP])
@pytest.mark.parametrize("noisy", [False, True])
def test_hypervolume(make, reference, kind, noisy):
    """Two objectives, each a model of its own."""
    X, Y = baseline()
    corner = torch.tensor([0.0, -2.0]).double()
    values = []
    for maker in (make, reference):
        both = kind(maker(X, Y), maker(X, -Y.square()))
        draw = get_sampler(both.posterior(X[:3]), torch.Size([16]), seed=1)
        if noisy:
            acquisition = qLogNoisyExpectedHypervolumeImprovement(both, corner, X, sampler=draw, cache_root=False)
        else:
            partitioning = FastNondominatedPartitioning(corner, torch.cat([Y, -Y.square()], -1))
            acquisition = qLogExpectedHypervolumeImprovement(both, corner, partitioning, sampler=draw)
        values.append(acquisition(points(83, 3, 2)))
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "stock"])
@pytest.mark.filterwarnings(
    "ignore:A not p.d., added jitter"
)  # BoTorch adds jitter to sample equal points, which have equal values
@pytest.mark.parametrize("repeats", [0, 8])
def test_repeated_pulls(name, repeats):
    """Noisy acquisition functions over a baseline with the same point many times: finite."""
    X, Y = data(84, n=24, repeats=repeats, near=2)
    acquisition = acq.qLogNoisyExpectedImprovement(MODELS[name](X, Y), X, sampler=sampler(), prune_baseline=False)
    assert acquisition(points(85, 4, 2)).isfinite().all()
