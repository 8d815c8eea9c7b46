"""Bandit.model(): the same posterior in BoTorch, and law 6 for every policy of the catalogue."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import botorch
import pytest
import torch
from botorch.optim import optimize_acqf_discrete
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from contract import ARMS, BOUNDED, CASES, PROBLEM, Case, every_policy, proceed
from problems import COMMON, Problem, generator, kernel_pair, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits.batching import FixedSize
from torchbandits.botorch import BanditModel, PolicyAcquisition, optimize_arms
from torchbandits.botorch.agreement import uses_width
from torchbandits.errors import UnsupportedError
from torchbandits.policies import Composed
from torchbandits.random_effects import RandomEffectKernel, smooth_part
from torchbandits.scores import PosteriorDraw
from torchbandits.testing.play import everything

NO_MODEL = {"pi_gp_ucb", "soful", "epsilon_greedy", "regularized_evolution", "uniform"}
# Policies whose scores are drawn, or depend on all arms together. No acquisition function can compute them, and
# `test_acquisition` checks that they are refused.
OF_ALL_ARMS = {"irgp_ucb", "kriging_believer", "lucb", "qpo"}
SCORING = [
    case
    for case in CASES
    if case.name not in NO_MODEL | OF_ALL_ARMS
    and isinstance(policy := case.policy(), Composed)
    and not isinstance(policy.score, PosteriorDraw)
]
every_score = pytest.mark.parametrize("case", SCORING, ids=lambda case: "-".join(filter(None, (case.name, case.mode))))
X_ARMS = PROBLEM.tensor


def ranked(bandit: tb.Bandit) -> Tensor:
    """The score by which `ask` ranks each arm: the evidence for it when no other arm is on offer."""
    state, A, shape = bandit.loop.state, bandit.arms.shape[-2], bandit.batch_shape
    scores = []
    for arm in range(A):
        only = torch.zeros(*shape, A, dtype=torch.bool)
        only[..., arm] = True
        selection, evidence = bandit.policy.select(state, available=only)
        assert bool((selection.index[..., 0] == arm).all())
        scores.append(evidence.score[..., 0])
    return torch.stack(scores, dim=-1)


def acquisition(bandit: tb.Bandit, pending: Tensor | None = None, **options: bool) -> PolicyAcquisition:
    return PolicyAcquisition(bandit.model(), bandit.policy, pending, **options)


def settled(case: Case) -> tb.Bandit:
    """A bandit after its first picks, with an arm that was pulled repeatedly."""
    bandit = case.bandit(14)
    bandit.tell(torch.tensor([3, 3, 3]), torch.tensor([0.3, 0.4, 0.2], dtype=torch.float64))
    return bandit


@pytest.mark.sweep(8)
@every_score
def test_law_6_scores(case):
    bandit = settled(case)
    acqf, expected = acquisition(bandit), ranked(bandit)
    torch.testing.assert_close(acqf(X_ARMS.unsqueeze(-2)), expected, rtol=1e-8, atol=1e-8)  # read from the table
    torch.testing.assert_close(acqf(X_ARMS.clone().unsqueeze(-2)), expected, rtol=1e-8, atol=1e-8)
    width = bandit.width if uses_width(bandit.policy) else torch.full_like(bandit.width, torch.nan)
    torch.testing.assert_close(acqf.width, width, rtol=1e-9, atol=1e-12, equal_nan=True)


@every_score
def test_law_6_before_the_first_pull(case):
    bandit = tb.Bandit(case.policy(), X_ARMS, generator=generator(5))
    expected = ranked(bandit) if getattr(bandit.policy, "initial", None) is None else None
    values = acquisition(bandit)(X_ARMS.unsqueeze(-2))
    assert bool(torch.isfinite(values).all())
    if expected is not None:
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.sweep(8)
@every_score
def test_law_6_batches(case):
    bandit = settled(case)
    if case.name == "auto":  # an acquisition function can't restrict a batch to distinct arms, and scores no replicates
        without = replace(bandit.policy.from_data, replicate_every=0)
        bandit.policy = bandit.loop.policy = replace(bandit.policy, batch_rule=FixedSize(), from_data=without)
    waiting = bandit.ask(limit=1)
    acqf = acquisition(bandit, waiting.points)
    batch = bandit.ask(more=6)
    own = batch.index[len(waiting) :].tolist()
    assert optimize_arms(acqf, X_ARMS, 6, unique=False)[2].tolist() == own
    assert torch.equal(optimize_acqf_discrete(acqf, 6, X_ARMS, unique=False)[0], X_ARMS[own])


@pytest.mark.parametrize("make", [tb.gp_bucb, tb.batch_bkb])
@pytest.mark.parametrize("ratio_threshold", [1.2, 3.0])
def test_law_6_batches_that_the_rule_ends(make, ratio_threshold):
    bandit = tb.Bandit(make(rbf(), ratio_threshold=ratio_threshold, **BOUNDED), X_ARMS, generator=generator(2))
    for _ in range(4):
        acqf, batch = acquisition(bandit, frozen_dictionary=True), bandit.ask(limit=25)
        picks = optimize_acqf_discrete(acqf, len(batch), X_ARMS, unique=False)[0]
        assert torch.equal(picks, batch.points)
        assert optimize_arms(acqf, X_ARMS, len(batch), unique=False)[2].tolist() == batch.index.tolist()
        bandit.tell(batch, PROBLEM.rewards(int(bandit.pulls), batch.index))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["global", "product", "fixed", "capped"])
def test_a_loop_until_the_rule_ends_builds_the_batch_of_ask(name):
    rule = {"fixed": {}, "capped": {"max_batch_size": 3}}.get(name, {})
    make = {"product": tb.gp_bucb, "fixed": tb.gp_ucb}.get(name, tb.batch_bkb)
    options = BOUNDED | {"ratio_threshold": 3.0} if name != "fixed" else COMMON
    if make is tb.batch_bkb:
        options = options | {"batch_rule": "global"}
    bandit = tb.Bandit(make(rbf(), **options, **rule), X_ARMS, generator=generator(2))
    for _ in range(4):
        acqf, batch = acquisition(bandit, frozen_dictionary=True), bandit.ask()
        picks: list[int] = []
        while not bool(acqf.batch_ended):
            picks.append(int(optimize_arms(acqf, X_ARMS)[2]))
            acqf.set_X_pending(X_ARMS[picks])
        assert picks == batch.index.tolist()
        bandit.tell(batch, PROBLEM.rewards(int(bandit.pulls), batch.index))


def test_rules_that_look_at_all_arms_have_no_end_here():
    bandit = tb.Bandit(tb.batch_bkb(rbf(), batch_rule="local", **BOUNDED), X_ARMS)
    with pytest.raises(UnsupportedError, match="all arms"):
        _ = acquisition(bandit).batch_ended


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kernel", ["rbf", "matern32", "scaled", "linear"])
@pytest.mark.parametrize("prior_mean", [0.7, "estimate"])
@pytest.mark.parametrize("make", [tb.gp_ucb, tb.bkb])
def test_the_model_is_the_posterior(make, kernel, prior_mean):
    bandit = tb.Bandit(make(kernel_pair(kernel)[0], prior_mean=prior_mean, **COMMON), X_ARMS, generator=generator(2))
    proceed(bandit, 15)
    bandit.observe(torch.rand(3, 2, dtype=torch.float64), torch.tensor([1.0, 2.5, 4.0]), torch.tensor([0.1, 0.2, 0.3]))
    x = torch.rand(30, 2, generator=generator(1), dtype=torch.float64)
    model, posterior = bandit.model(), bandit.posterior
    expected, found = posterior(x), model.posterior(x.unsqueeze(-2))
    torch.testing.assert_close(found.mean.flatten(), expected.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance.flatten(), expected.variance, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(model.joint(x, x), posterior.covariance(x), rtol=1e-6, atol=1e-8)
    assert model.prior_mean == prior_mean
    torch.testing.assert_close(acquisition(bandit)(X_ARMS.unsqueeze(-2)), ranked(bandit), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kernel", ["rbf", "matern12"])
def test_large_dictionaries(kernel):
    """Dictionaries beyond 256 points, from which products skip the zeros of triangular factors."""
    X = torch.rand(420, 3, generator=generator(0), dtype=torch.float64)
    model = BanditModel(X, X.sum(-1, keepdim=True).sin(), kernel=kernel_pair(kernel)[0], noise_std=0.1, dictionary=X[:300])
    x = torch.rand(50, 3, generator=generator(1), dtype=torch.float64)
    found, expected = model.marginals(x), model.process()(x)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-6, atol=1e-9)
    shrunk, process = model.hallucinate(x[:3]).marginals(x).variance, model.process()
    process.set_pending_(x[:3], torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(shrunk, process(x).variance, rtol=1e-6, atol=1e-9)


@pytest.mark.sweep(7)
@every_policy
def test_every_policy_hands_out_a_model_or_says_why_not(case):
    bandit = case.bandit(6)
    before = everything(bandit)
    if case.name not in NO_MODEL:
        assert isinstance(bandit.model(), BanditModel)
        after = everything(bandit)
        assert all(torch.equal(a, after["state"][k]) for k, a in before["state"].items() if isinstance(a, Tensor))
        return
    with pytest.raises(botorch.exceptions.UnsupportedError, match=r"gp_ucb|lin_ucb"):
        bandit.model()


def test_pending_picks_are_left_out_and_the_model_is_a_copy():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), X_ARMS)
    proceed(bandit, 8)
    scores, model = ranked(bandit), bandit.model()
    selection = bandit.ask(limit=1)
    acqf = PolicyAcquisition(bandit.model(), bandit.policy)
    torch.testing.assert_close(acqf(X_ARMS.unsqueeze(-2)), scores, rtol=1e-9, atol=1e-9)
    bandit.tell(selection, torch.tensor([5.0], dtype=torch.float64))
    old = PolicyAcquisition(model, bandit.policy)
    torch.testing.assert_close(old(X_ARMS.unsqueeze(-2)), scores, rtol=1e-9, atol=1e-9)
    model.covar_module.lengthscale = 3.0
    torch.testing.assert_close(acquisition(bandit)(X_ARMS.unsqueeze(-2)), ranked(bandit), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", [tb.gp_ucb, tb.bkb])
def test_conditioning_goes_on_with_the_run(make):
    policy = make(rbf(), width=tb.widths.IGP(0.1, 1.0, 0.1, 0.01), regularization=0.01, **COMMON)
    bandit = tb.Bandit(policy, X_ARMS)
    proceed(bandit, 8)
    model, selection = bandit.model(), bandit.ask(limit=1)
    reward = torch.tensor([0.4], dtype=torch.float64)
    model = model.condition_on_observations(selection.points, reward.unsqueeze(-1))
    if make is tb.bkb:  # only the policy redraws the dictionary; a model keeps the one it has
        assert float(PolicyAcquisition(model, policy).width) > float(bandit.width)
        return
    bandit.tell(selection, reward)
    acqf = PolicyAcquisition(model, policy)
    torch.testing.assert_close(acqf.width, bandit.width, rtol=1e-9, atol=0)
    torch.testing.assert_close(acqf(X_ARMS.unsqueeze(-2)), ranked(bandit), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("noise", [False, True])
def test_law_6_after_a_fit(noise):
    policy = tb.igp_ucb(kernel_pair("scaled")[0], **BOUNDED)
    bandit = tb.Bandit(policy, X_ARMS)
    proceed(bandit, 20)
    bandit.fit_kernel_(noise=noise)
    torch.testing.assert_close(acquisition(bandit)(X_ARMS.unsqueeze(-2)), ranked(bandit), rtol=1e-7, atol=1e-7)
    assert any(p.requires_grad for p in bandit.model().covar_module.parameters())


def with_random_effects() -> tb.Bandit:
    """A bandit whose features tell half of the variance between its arms."""
    x, draw = torch.rand(60, 3, generator=generator(3), dtype=torch.float64), generator(4)
    f = torch.sin(4 * x[:, 0]) + x[:, 1] + 0.6 * torch.randn(60, generator=draw, dtype=torch.float64)
    bandit, index = tb.Bandit(tb.auto(), x, generator=generator(1)), torch.arange(40).repeat(3)
    bandit.tell(index, f[index] + 0.1 * torch.randn(120, generator=draw, dtype=torch.float64))
    bandit.fit_kernel_()
    assert isinstance(bandit.posterior.kernel, RandomEffectKernel)
    return bandit


def test_law_6_with_random_effects():
    bandit = with_random_effects()
    acqf, arms = acquisition(bandit), bandit.arms
    torch.testing.assert_close(acqf(arms.unsqueeze(-2)), ranked(bandit), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(acqf(arms.clone().unsqueeze(-2)), ranked(bandit), rtol=1e-8, atol=1e-8)
    smooth = tb.gp_ucb(smooth_part(acqf.model.covar_module), noise_std=acqf.model.noise_std, width=tb.widths.Constant(2.0))
    marginals = acqf.model.marginals(arms)
    other = PolicyAcquisition(acqf.model, smooth)(arms.unsqueeze(-2))
    torch.testing.assert_close(other, marginals.mean + 2 * marginals.variance.sqrt(), rtol=1e-8, atol=1e-8)


def test_a_kernel_with_random_effects_has_no_paths_in_botorch():
    """BoTorch would draw them from the kernel without effects, of which this kernel is a subclass."""
    model = with_random_effects().model()
    for draw in (draw_matheron_paths, draw_kernel_feature_paths):
        with pytest.raises(UnsupportedError, match="rsample"):
            draw(model, torch.Size([2]))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("score", ["ucb", "ei", "pi"])
def test_law_6_of_batch_rows(score):
    problems = [Problem(seed=s, a=ARMS) for s in (1, 2)]
    arms = torch.stack([p.tensor for p in problems])
    for given in (arms, arms[0]):
        policy = tb.bkb(rbf(), acquisition=score, **BOUNDED)
        bandit = tb.Bandit(policy, given, generator=[generator(1), generator(2)])
        for t in range(8):  # so that the rows pull different numbers of distinct arms
            limit = torch.tensor([1, t % 2])
            selection = bandit.ask(limit=limit)
            bandit.tell(selection, torch.randn(selection.index.shape, generator=generator(t), dtype=torch.float64))
        values = acquisition(bandit)(given.expand(2, -1, -1).movedim(0, 1).unsqueeze(-2))
        assert values.shape == (ARMS, 2)
        torch.testing.assert_close(values.T, ranked(bandit), rtol=1e-7, atol=1e-7)
        waiting = bandit.ask(limit=1)
        acqf = acquisition(bandit, waiting.points)
        assert torch.equal(optimize_arms(acqf, given, 3, unique=False)[2], bandit.ask(more=3).index[:, 1:])


@pytest.mark.exhaustive
def test_law_6_on_other_arms_and_in_a_box():
    bandit = tb.Bandit(tb.bkb(rbf(), **BOUNDED), X_ARMS)
    proceed(bandit, 10)
    others = torch.rand(30, 2, generator=generator(8), dtype=torch.float64)
    bandit.set_arms_(others)
    torch.testing.assert_close(acquisition(bandit)(others.unsqueeze(-2)), ranked(bandit), rtol=1e-8, atol=1e-8)
    box = tb.Bandit(tb.bkb(rbf(), acquisition="ei", **BOUNDED), bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    for t in range(5):
        selection = box.ask()
        box.tell(selection, torch.randn(1, generator=generator(t), dtype=torch.float64))
    expected = box.policy.scores_at(box.loop.state, others)
    torch.testing.assert_close(acquisition(box)(others.unsqueeze(-2)), expected, rtol=1e-7, atol=1e-7)


def test_finite_features_are_those_of_the_bandit():
    bandit = tb.Bandit(tb.rff_ucb(rbf(), num_features=20, **BOUNDED), X_ARMS)
    proceed(bandit, 8)
    X = bandit.model().train_inputs[0]
    plain = BanditModel(X, X[:, :1], kernel=rbf(), noise_std=0.1)
    with pytest.raises(UnsupportedError, match=r"its model\(\)"):
        PolicyAcquisition(plain, bandit.policy)
    draws = tb.Bandit(tb.thompson_sampling(rbf(), embedding="rff", num_features=20, **BOUNDED), X_ARMS)
    proceed(draws, 8)
    path = PolicyAcquisition(draws.model(), draws.policy)
    x = torch.rand(4, 1, 2, generator=generator(1), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(path, x)


def test_float32_arms():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), X_ARMS.float())
    proceed(bandit, 8)
    values = acquisition(bandit)(X_ARMS.float().unsqueeze(-2))
    torch.testing.assert_close(values, ranked(bandit), rtol=1e-5, atol=1e-5, check_dtype=False)


def test_copies_keep_the_arms_and_the_progress():
    bandit = tb.Bandit(tb.igp_ucb(rbf(), **BOUNDED), X_ARMS)
    proceed(bandit, 8)
    model, expected = bandit.model(), ranked(bandit)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        acqf = PolicyAcquisition(twin, bandit.policy, num_arms=ARMS)
        torch.testing.assert_close(acqf(X_ARMS.unsqueeze(-2)), expected, rtol=1e-8, atol=1e-8)
