"""Bad input raises one error of the right class that names the given and the expected value, and changes no state."""

from __future__ import annotations

import copy
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from problems import BOUNDED, COMMON, POLICIES, Problem, generator, rbf
from test_laws import same

import torchbandits as tb
from torchbandits import errors
from torchbandits.testing.play import differences, everything

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

NAN, INF = float("nan"), float("inf")
PROBLEM = Problem(seed=1, a=20)


@pytest.fixture(params=list(POLICIES))
def bandit(request) -> tb.Bandit:
    """A bandit with some pulls told and an open batch."""
    bandit = tb.Bandit(POLICIES[request.param](rbf()), PROBLEM.tensor, generator=generator(2))
    PROBLEM.play(bandit, 12)
    bandit.ask(more=3)
    return bandit


def refuses(bandit: tb.Bandit, error: type[Exception], words: list[str], call: str, *args: Any, **kwargs: Any) -> None:
    """Assert that the call raises `error` with all the words in its message, and leaves the state unchanged, bit for bit."""
    before = copy.deepcopy(bandit.state_dict())
    with pytest.raises(error) as caught:
        getattr(bandit, call)(*args, **kwargs)
    message = str(caught.value)
    for word in words:
        assert word.lower() in message.lower(), f"{word!r} is not in the message: {message}"
    assert same(before, bandit.state_dict()), f"{call} failed and changed the state"
    assert isinstance(caught.value, errors.TorchBanditsError)


def test_points_in_place_of_indices_name_the_call_for_them():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1), PROBLEM.tensor)
    with pytest.raises(
        errors.ShapeError, match=r"arm indices must be integers, got torch.float64. Results at points.* observe"
    ):
        bandit.tell(PROBLEM.tensor[:3], torch.zeros(3, dtype=torch.float64))


# ------------------------------------------------------------------------- arms and construction


@pytest.mark.parametrize(("arms", "error", "words"), [
    (torch.zeros(0, 2), errors.ArgumentError, ["arm"]),
    (torch.zeros(3, 0, 2), errors.ArgumentError, ["arm"]),
    (torch.tensor([[0.0, NAN]]), errors.NonFiniteError, ["arm", "nan"]),
    (torch.tensor([[0.0, INF]]), errors.NonFiniteError, ["arm"]),
    (torch.zeros(5), errors.ShapeError, ["5"]),
    (torch.zeros(5, 0), errors.ShapeError, ["5"]),
    (torch.zeros(5, 2, dtype=torch.bool), errors.ShapeError, ["bool", "float"]),
    (torch.zeros(5, 2, dtype=torch.float16), errors.ShapeError, ["float16"]),
    (torch.zeros(5, 2, dtype=torch.complex64), errors.ShapeError, ["complex64"]),
])  # fmt: skip
@pytest.mark.parametrize("name", POLICIES)
def test_bad_arms(name, arms, error, words):
    with pytest.raises(error) as caught:
        tb.Bandit(POLICIES[name](rbf()), arms, generator=generator(0))
    for word in words:
        assert word in str(caught.value).lower()


def test_bad_generators():
    arms = torch.rand(3, 5, 2, generator=generator(0))
    policy = POLICIES["bkb"](rbf())
    with pytest.raises(errors.ArgumentError, match="3"):
        tb.Bandit(policy, arms, generator=[generator(0), generator(1)])
    with pytest.raises(errors.ArgumentError):
        tb.Bandit(policy, arms[0], generator=[])


def test_batch_rows_that_share_a_generator():
    """They drew the same numbers, so that three runs were one."""
    policy, shared = tb.thompson_sampling(rbf(), **COMMON), [generator(0)] * 3
    with pytest.raises(errors.ArgumentError, match=r"each batch row needs a generator of its own, .*: pass \[torch.Generator"):
        tb.Bandit(policy, Problem(1).tensor, generator=shared)
    with pytest.raises(errors.ArgumentError, match="each batch row needs a generator of its own"):
        tb.run(policy, tb.environments.Table(Problem(1).tensor, torch.zeros(80).double(), 0.1), 3, generator=shared)


def test_a_kernel_whose_batch_shape_does_not_broadcast():
    kernel = gpytorch.kernels.RBFKernel(batch_shape=torch.Size([4])).double()
    arms = torch.rand(3, 5, 2, dtype=torch.float64, generator=generator(0))
    with pytest.raises(errors.ShapeError) as caught:
        tb.Bandit(tb.bkb(kernel, oversampling=2.0, **BOUNDED), arms, generator=[generator(r) for r in range(3)])
    assert "4" in str(caught.value)
    assert "3" in str(caught.value)


def test_a_kernel_for_other_dimensions():
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=3).double()
    with pytest.raises(errors.ShapeError) as caught:
        tb.Bandit(tb.gp_ucb(kernel, **COMMON), PROBLEM.tensor, generator=generator(0))
    assert "3" in str(caught.value)
    assert "2" in str(caught.value)


# ------------------------------------------------------------------------- policies


@pytest.mark.parametrize("make", [tb.gp_ucb, tb.igp_ucb, tb.gp_bucb, tb.bkb, tb.batch_bkb], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("name", "value"), [
    ("noise_std", -0.1), ("noise_std", NAN), ("noise_std", INF),
    ("delta", 0.0), ("delta", 1.5), ("delta", -1.0), ("delta", NAN),
    ("regularization", 0.0), ("regularization", -1.0), ("regularization", NAN),
    ("norm_bound", -1.0), ("norm_bound", NAN),
    ("oversampling", 0.5), ("oversampling", NAN),
    ("ratio_threshold", 0.9), ("ratio_threshold", NAN),
    ("max_batch_size", 0), ("max_batch_size", -3),
    ("max_pulls", 0),
])  # fmt: skip
def test_bad_hyper_parameters(make, name, value):
    takes = {
        tb.gp_ucb: COMMON,
        tb.igp_ucb: BOUNDED,
        tb.gp_bucb: BOUNDED | {"ratio_threshold": 2.0, "max_batch_size": None, "max_pulls": None},
        tb.bkb: BOUNDED | {"oversampling": 2.0},
        tb.batch_bkb: BOUNDED | {"oversampling": 2.0, "ratio_threshold": 2.0, "max_batch_size": None, "max_pulls": None},
    }[make] | {"regularization": None}
    if name not in takes:
        return
    options = {k: v for k, v in takes.items() if v is not None} | {name: value}
    with pytest.raises(errors.ArgumentError) as caught:
        make(rbf(), **options)
    assert name in str(caught.value)
    assert str(value) in str(caught.value)


def test_unknown_options_suggest_the_nearest():
    with pytest.raises(errors.ArgumentError) as caught:
        tb.batch_bkb(rbf(), batch_rule="globl", oversampling=2.0, ratio_threshold=2.0, **BOUNDED)
    assert "globl" in str(caught.value)
    assert "'global'" in str(caught.value)


def test_a_width_must_be_a_width():
    with pytest.raises(errors.ArgumentError, match="width") as caught:
        tb.bkb(rbf(), width="practical", oversampling=2.0, **BOUNDED)
    assert "str" in str(caught.value)


def test_a_kernel_must_be_a_kernel():
    for bad in (None, "rbf", torch.nn.Linear(2, 2)):
        with pytest.raises(errors.ArgumentError, match=r"(?i)kernel"):
            tb.gp_ucb(bad, **COMMON)


# ------------------------------------------------------------------------- tell


@pytest.mark.parametrize("make", [tb.gp_ucb, tb.batch_bkb, tb.igp_ucb, tb.thompson_sampling])
def test_a_kernel_of_inducing_points_is_refused_with_what_to_pass(make):
    likelihood, options = gpytorch.likelihoods.GaussianLikelihood(), BOUNDED if make is tb.igp_ucb else {"noise_std": 0.1}
    sparse = gpytorch.kernels.InducingPointKernel(rbf(), torch.rand(5, 2, dtype=torch.float64), likelihood)
    for kernel in (sparse, gpytorch.kernels.ScaleKernel(sparse), sparse.eval()):
        with pytest.raises(errors.UnsupportedError, match=r"InducingPointKernel, .*: pass the base_kernel"):
            make(kernel, **options)
    make(sparse.base_kernel, **options)


def test_rewards_that_are_not_numbers(bandit):
    selection = bandit.ask()
    for bad in (NAN, INF, -INF):
        rewards = torch.zeros(len(selection), dtype=torch.float64)
        rewards[1] = bad
        refuses(bandit, errors.NonFiniteError, ["reward"], "tell", selection, rewards)


def test_rewards_of_another_shape_or_type(bandit):
    selection = bandit.ask()
    q = len(selection)
    for bad in (torch.zeros(q + 1), torch.zeros(q - 1), torch.zeros(q, 1), torch.zeros(()), torch.zeros(2, q)):
        refuses(bandit, errors.ShapeError, ["reward", str(q)], "tell", selection, bad.double())
    refuses(bandit, errors.ShapeError, ["reward", "complex128"], "tell", selection, torch.zeros(q, dtype=torch.complex128))
    refuses(bandit, errors.ArgumentError, ["reward"], "tell", selection, [0.0] * (q + 1))
    refuses(bandit, errors.ArgumentError, ["selection"], "tell", "nonsense", torch.zeros(q))
    refuses(bandit, errors.ShapeError, ["meta", "cpu"], "tell", selection, torch.zeros(q, device="meta"))


def test_complex_numbers_are_refused_and_not_cut_to_their_real_parts(tmp_path):
    kernel = gpytorch.kernels.RBFKernel().double()
    arms = torch.rand(20, 2, dtype=torch.float64)
    worker = tb.Worker(tb.gp_ucb(kernel, noise_std=0.1), arms, store=tmp_path / "run.db")
    lease = worker.ask()
    for bad in (1j, np.array(1j), torch.tensor(1j)):
        with pytest.raises(errors.ShapeError, match="reward must be real numbers, got complex"):
            worker.tell(lease, bad)
    assert worker.told == 0
    with pytest.raises(errors.ShapeError, match="costs must be real numbers"):
        tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1), arms, costs=torch.ones(20, dtype=torch.complex128))


def test_a_text_in_place_of_a_number_is_seen_to_be_one(tmp_path):
    with pytest.raises(errors.ArgumentError, match=r"lease must be a finite number > 0, .*, got '10'"):
        tb.Worker(tb.uniform(), torch.rand(20, 2), store=tmp_path / "run.db", lease="10")


def test_selections_that_point_nowhere(bandit):
    good = bandit.ask()
    for bad in (20, 1000, -2):
        index = good.index.clone()
        index[0] = bad
        selection = tb.Selection(good.points, index, good.mask)
        refuses(
            bandit,
            errors.ArmIndexError,
            [str(bad), "19"],
            "tell",
            selection,
            torch.zeros(len(good), dtype=torch.float64),
        )
    floats = tb.Selection(good.points, good.index.double(), good.mask)
    refuses(bandit, errors.ShapeError, ["float64"], "tell", floats, torch.zeros(len(good), dtype=torch.float64))


def test_a_reward_of_no_arm_is_refused_and_not_dropped(bandit):
    """−1 pads batch rows; without them it is a failed look-up of the caller."""
    for index in ([-1], [3, -1]):
        refuses(bandit, errors.ArmIndexError, ["-1", "19"], "tell", torch.tensor(index), torch.zeros(len(index)).double())


def test_told_rewards_that_were_never_asked_for_are_history(bandit):
    """History from another source is allowed. Pending picks stay pending."""
    pending = sorted(bandit.ask().index.tolist())
    outside = next(i for i in range(20) if i not in pending)
    index = torch.tensor([outside])
    selection = tb.Selection(PROBLEM.tensor[index], index, torch.ones(1, dtype=torch.bool))
    count = float(bandit.counts[outside])
    with pytest.warns(errors.DiagnosticWarning, match="1 of the 1 pick of this selection"):
        report = bandit.tell(selection, torch.tensor([0.3], dtype=torch.float64))
    assert float(bandit.counts[outside]) == count + 1
    assert int(report.pulls) == 13
    assert int(bandit.tell(index, torch.tensor([0.3], dtype=torch.float64)).pulls) == 14, (
        "indices are history without a warning"
    )
    assert sorted(bandit.ask().index.tolist()) == pending


def test_a_selection_that_is_told_again_warns(bandit):
    selection = bandit.ask()
    rewards = torch.full((len(selection),), 0.3, dtype=torch.float64)
    bandit.tell(selection, rewards)
    before, size = everything(bandit), len(selection)
    with pytest.raises(errors.DiagnosticWarning, match=rf"{size} of the {size} pick.* tell arm indices"):
        bandit.tell(selection, rewards)
    assert differences(everything(bandit), before) == [], "a warning that is an error undoes the tell"
    with pytest.warns(errors.DiagnosticWarning, match="told or forgotten before"):
        report = bandit.tell(selection, rewards)
    assert int(report.unasked) == size
    bandit.tell(selection.index, rewards)
    # Of an open batch, a part was told and another one forgotten.
    longer = bandit.ask(more=4)
    bandit.tell(longer[:1], torch.zeros(1, dtype=torch.float64))
    bandit.forget(longer[1:2])
    with pytest.warns(errors.DiagnosticWarning, match=rf"2 of the {len(longer)} picks"):
        bandit.tell(longer, torch.zeros(len(longer), dtype=torch.float64))
    # A failed evaluation that is told again teaches nothing.
    lost = bandit.ask()
    for _ in range(2):
        bandit.tell(lost, torch.full((len(lost),), torch.nan, dtype=torch.float64), failures="forget")


# ------------------------------------------------------------------------- ask, forget, observe, posterior, state


def test_bad_asks(bandit):
    for option, value in (("limit", -1), ("more", 0), ("more", -2), ("limit", 2.5), ("more", "many")):
        refuses(bandit, errors.ArgumentError, [option, str(value)], "ask", **{option: value})
    whole = torch.ones(1, dtype=torch.int64)
    for hollow in (whole.to("meta"), whole.to_sparse()):
        refuses(bandit, errors.ShapeError, ["limit"], "ask", limit=hollow)
    q = len(bandit.ask())
    bandit.forget(bandit.ask())
    for bad, error in (
        (torch.ones(19, dtype=torch.bool), errors.ShapeError),
        (torch.ones(20, dtype=torch.float64), errors.ShapeError),
        (torch.ones(3, 20, dtype=torch.bool), errors.ShapeError),
        (torch.zeros(20, dtype=torch.bool), errors.ArgumentError),
    ):
        refuses(bandit, error, ["available"], "ask", available=bad)
    assert q >= 3


def test_bad_forgets(bandit):
    selection = bandit.ask()
    bandit.forget(selection)
    refuses(bandit, errors.StateError, ["pending"], "forget", selection)
    refuses(bandit, errors.ArgumentError, ["selection"], "forget", "nonsense")


def test_bad_observations(bandit):
    index, ones = torch.tensor([1, 2]), torch.ones(2, dtype=torch.float64)
    refuses(bandit, errors.ArmIndexError, ["20", "19"], "observe", torch.tensor([1, 20]), ones, ones)
    refuses(bandit, errors.ArmIndexError, ["-1", "19"], "observe", torch.tensor([1, -1]), ones, ones)
    refuses(bandit, errors.ShapeError, ["counts"], "observe", index, torch.ones(3, dtype=torch.float64), ones)
    refuses(bandit, errors.ShapeError, ["sums"], "observe", index, ones, torch.ones(3, dtype=torch.float64))
    refuses(bandit, errors.ArgumentError, ["counts"], "observe", index, torch.tensor([1.0, -1.0]).double(), ones)
    refuses(bandit, errors.ArgumentError, ["counts"], "observe", index, torch.tensor([1.0, 0.0]).double(), ones)
    refuses(bandit, errors.NonFiniteError, ["counts"], "observe", index, torch.tensor([1.0, NAN]).double(), ones)
    refuses(bandit, errors.NonFiniteError, ["sums"], "observe", index, ones, torch.tensor([1.0, INF]).double())
    refuses(bandit, errors.NonFiniteError, ["squares"], "observe", index, ones, ones, torch.tensor([NAN, 1.0]).double())
    # Variances in place of sums of squares are refused, and sums that float32 has rounded are not.
    five, sums, variances = torch.tensor([[5.0, 5.0], [1.0, 0.0], [0.04, 0.04]], dtype=torch.float64)
    refuses(bandit, errors.ArgumentError, ["squares", "0.04", "0.2"], "observe", index, five, sums, variances)
    copy.deepcopy(bandit).observe(index, five, sums, torch.tensor([0.19999, 0.2]).double())
    refuses(bandit, errors.ShapeError, ["3"], "observe", torch.zeros(2, 3, dtype=torch.float64), ones, ones)
    refuses(bandit, errors.NonFiniteError, ["point"], "observe", torch.tensor([[0.0, NAN], [0.0, 0.0]]).double(), ones, ones)


def test_bad_points():
    bandit = tb.Bandit(POLICIES["bkb"](rbf()), PROBLEM.tensor, generator=generator(0))
    PROBLEM.play(bandit, 5)
    for bad in (torch.zeros(4, 3).double(), torch.zeros(4).double(), torch.zeros(4, 2, dtype=torch.int64)):
        with pytest.raises(errors.ShapeError):
            bandit.posterior(bad)
    with pytest.raises(errors.NonFiniteError):
        bandit.posterior(torch.tensor([[0.0, NAN]]).double())


def test_states_of_other_bandits(bandit):
    other = tb.Bandit(POLICIES["gp_ucb"](rbf()), torch.rand(7, 3, dtype=torch.float64), generator=generator(0))
    foreign = copy.deepcopy(other.state_dict())
    before = copy.deepcopy(bandit.state_dict())
    with pytest.raises(errors.TorchBanditsError):
        bandit.load_state_dict(foreign)
    assert same(before, bandit.state_dict())
    with pytest.raises(errors.TorchBanditsError):
        bandit.load_state_dict({})
    assert same(before, bandit.state_dict())


def test_best_before_any_pull():
    for name in POLICIES:
        bandit = tb.Bandit(POLICIES[name](rbf()), PROBLEM.tensor, generator=generator(0))
        with pytest.raises(errors.TorchBanditsError):
            bandit.best(0)


# ------------------------------------------------------------------------- run


def test_bad_runs():
    environment = tb.environments.Table(PROBLEM.tensor, torch.as_tensor(PROBLEM.f), noise_std=0.1)
    policy = POLICIES["bkb"](rbf())
    for bad in (0, -5, 2.5):
        with pytest.raises(errors.ArgumentError, match="num_rounds"):
            tb.run(policy, environment, num_rounds=bad, generator=generator(0))
    with pytest.raises(errors.ArgumentError, match=r"got function\. Pass BlackBox\(function, arms\)"):
        tb.run(policy, lambda point: 0.0, num_rounds=3)
    with pytest.raises(errors.ArgumentError, match=r"got int\.$"):
        tb.run(policy, 3, num_rounds=3)


def test_a_saved_state_with_a_number_for_its_rows_is_refused():
    bandit = tb.Bandit(tb.uniform(), torch.rand(5, 2, dtype=torch.float64))
    state = bandit.state_dict()
    state["state"]["rows.row_of_arm"] = torch.tensor(3)
    with pytest.raises(errors.ShapeError, match="without a row"):
        bandit.load_state_dict(state)


class OwnEnvironment(tb.environments.Environment):
    """An environment of a user."""

    name, noise_std, arms = "own", 0.1, torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
    means = arms[:, 0]
    sampled = staticmethod(lambda rewards: rewards)

    def sample(self, index, generators):
        return self.sampled(self.arms[:, 0][index])


def own_environment(**parts: Any) -> tb.environments.Environment:
    return type("Own", (OwnEnvironment,), parts)()


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(("parts", "error", "words"), [
    ({"name": None}, errors.ArgumentError, "needs a name"),
    ({"means": None}, errors.ShapeError, "means of an environment .* NaN where unknown, got NoneType"),
    ({"means": OwnEnvironment.means.numpy()}, errors.ShapeError, "got ndarray"),
    ({"sampled": lambda own, rewards: 1.0}, errors.ShapeError, r"sample must return rewards of the shape .*got \(\)"),
    ({"sampled": lambda own, rewards: rewards.unsqueeze(-1)}, errors.ShapeError, "sample must return rewards of the shape"),
    ({"sampled": lambda own, rewards: "much"}, errors.ShapeError, "rewards of the environment's sample must be"),
])  # fmt: skip
def test_a_wrong_environment_of_a_user_is_refused_at_once(parts, error, words, batch_size):
    """Regrets and rewards are recorded after many pulls, and the error was one of torch then, without a history."""
    told = []
    with pytest.raises(error, match=words):
        tb.run(tb.uniform(batch_size=batch_size), own_environment(**parts), 30, callbacks=[lambda *step: told.append(step)])
    assert not told


def test_rewards_of_an_environment_may_be_arrays():
    runs = [own_environment(), own_environment(sampled=lambda own, rewards: rewards.numpy())]
    plain, arrays = (tb.run(tb.uniform(batch_size=2), own, 6, generator=generator(0)).pulls for own in runs)
    for name, values in plain.items():
        assert values.tolist() == arrays[name].tolist() or name == "cost"
