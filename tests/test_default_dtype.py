"""Nothing depends on torch's default dtype: with float64 arms, float32 and float64 as the default give the same bits."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from contract import ARMS, NO_POINTS, PROBLEM, every_policy, proceed
from problems import BOUNDED, COMMON, Problem, generator, kernel_pair, rbf
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchbandits as tb
from torchbandits.botorch import BanditModel, PolicyAcquisition
from torchbandits.errors import DiagnosticWarning
from torchbandits.experiments.kernels import KernelConfig, build_kernel
from torchbandits.linalg.roots import append_row, inverse_root
from torchbandits.testing.play import differences, everything, proceed_rows

KERNEL = kernel_pair("matern32", 0.3)[0]
BOX = [[-0.3, 0.1], [0.7, 1.3]]  # numbers that are not exact in float32
POINTS = [[0.1, 0.2], [0.3, 0.7], [0.9, 0.6]]
REWARDS = [0.1, -0.3, 0.7]


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class NothingInSinglePrecision(TorchDispatchMode):
    """A mode that refuses operations with a float32 result and no float32 input, such as int64 tensor + 1e-9."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:  # an explicit conversion, such as .float()
            return out
        literal = func is torch.ops.aten.lift_fresh.default  # a literal such as torch.tensor(0.5)
        given = () if literal else tree_leaves((args, kwargs))
        if any(is_single(t) for t in tree_leaves(out)) and not any(is_single(t) for t in given) and not in_a_library():
            raise AssertionError(f"{func} took its dtype from torch's default.")
        return out


def in_a_library() -> bool:
    """Whether the operation is one of GPyTorch, BoTorch or torch's Sobol engine: those are judged by their results."""
    torch_itself = str(Path(torch.__file__).parent)
    frame = sys._getframe(2)
    while (name := frame.f_code.co_filename).startswith(torch_itself) and name != torch.quasirandom.__file__:
        frame = frame.f_back
    return not name.startswith((str(Path(tb.__file__).parent), __file__))


def is_single(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32


def same_under_both(make: Callable[[], Any], work: Callable[[Any], Any], guard: bool = True) -> None:
    """Assert that the work gives the same result under both default dtypes, and that none of its steps uses the default."""
    results = []
    for dtype in (torch.float32, torch.float64):
        with default_dtype(dtype), warnings.catch_warnings():
            warnings.simplefilter("ignore", DiagnosticWarning)
            made = make()
            with NothingInSinglePrecision() if guard and dtype == torch.float32 else contextlib.nullcontext():
                results.append(plain(work(made)))
    assert differences(*results) == []


def plain(value: Any) -> Any:
    """Records and modules as dictionaries, to be compared bit for bit."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, torch.nn.Module):
        return dict(value.state_dict())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


@pytest.fixture(autouse=True)
def _the_default_is_restored() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    assert torch.get_default_dtype() == before


def test_the_guard_notices_what_takes_the_default():
    whole = torch.arange(3)
    for work in (
        lambda: whole + 1e-9,
        lambda: whole / 2,
        lambda: torch.rand(2),
        lambda: torch.tensor(0.5),
        lambda: whole.sqrt(),
    ):
        with default_dtype(torch.float32), NothingInSinglePrecision(), pytest.raises(AssertionError, match="torch's default"):
            work()
    with NothingInSinglePrecision():
        assert is_single(whole.float() + 1)


# ------------------------------------------------------------------------------------------- every policy


@pytest.mark.sweep(2)
@every_policy
def test_picks_widths_and_saved_states_are_the_same(case):
    def work(policy: Any) -> list[Any]:
        bandit = tb.Bandit(policy, PROBLEM.tensor, generator=generator(5))
        picks = proceed(bandit, 7)
        if case.name not in NO_POINTS:
            bandit.observe(torch.tensor([3, 4]), torch.tensor([2, 1]), torch.tensor(REWARDS[:2], dtype=torch.float64))
        more = proceed(bandit, 3)
        posterior = [bandit.posterior(PROBLEM.tensor[:7]), bandit.best(3), bandit.width] if case.keeps_posterior else []
        return [picks, more, posterior, everything(bandit)]

    same_under_both(case.policy, work)


@pytest.mark.sweep(7)
@every_policy
def test_picks_of_batch_rows_are_the_same(case):
    problems = [Problem(seed=s, a=ARMS) for s in (3, 4)]

    def work(policy: Any) -> list[Any]:
        bandit = tb.Bandit(policy, torch.stack([p.tensor for p in problems]), generator=[generator(1), generator(2)])
        picks = proceed_rows(bandit, problems, torch.tensor([1, 2]), 2)
        return [picks, everything(bandit)]

    same_under_both(case.policy, work)


# ------------------------------------------------------------------------------------------- boxes, sources, fits


def played(bandit: tb.Bandit, steps: int = 6) -> list[Any]:
    """Picks, reports and the complete state of a run on a smooth function."""
    seen: list[Any] = []
    for _ in range(steps):
        selection = bandit.ask(limit=2)
        rewards = torch.sin(5 * selection.points.double()).sum(dim=-1)
        report = bandit.tell(selection, rewards)
        seen += [selection.index, selection.points, report.width, report.certificate]
    return [seen, bandit.best(), everything(bandit)]


BOXES: dict[str, Callable[[], Any]] = {
    "ada_bkb": lambda: tb.ada_bkb(KERNEL, horizon=20, **BOUNDED),
    "gp_ucb": lambda: tb.gp_ucb(KERNEL, width=tb.widths.Constant(2.0), **COMMON),
    "batch_bkb": lambda: tb.batch_bkb(KERNEL, **BOUNDED),
    "thompson_sampling": lambda: tb.thompson_sampling(KERNEL, num_features=32, **BOUNDED),
    "uniform": lambda: tb.uniform(),
}


@pytest.mark.sweep(1)
@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize("name", BOXES)
def test_boxes_of_python_numbers_are_the_same(name):
    same_under_both(lambda: tb.Bandit(BOXES[name](), bounds=BOX, generator=generator(0)), lambda bandit: played(bandit, 2))


SOURCES: dict[str, Callable[[Tensor], Any]] = {
    "grid": lambda arms: tb.sources.grid([torch.linspace(0.1, 0.7, 9, dtype=torch.float64)] * 2),
    "chunks": lambda arms: tb.sources.chunks(lambda: iter(arms.split(17)), *arms.shape),
    "in memory": lambda arms: tb.sources.InMemory(arms, distinct=True),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("policy", [tb.bkb, tb.batch_bkb, tb.gp_ucb], ids=lambda policy: policy.__name__)
def test_sources_are_the_same(name, policy):
    made = lambda: policy(KERNEL, **(COMMON if policy is tb.gp_ucb else BOUNDED))  # noqa: E731
    same_under_both(made, lambda p: played(tb.Bandit(p, SOURCES[name](PROBLEM.tensor), generator=generator(0))))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("noise", [False, True])
def test_fits_are_the_same(noise):
    kernel = gpytorch.kernels.ScaleKernel(rbf())
    kernel = kernel.double()

    def work(policy: Any) -> list[Any]:
        bandit = tb.Bandit(policy, PROBLEM.tensor, generator=generator(0))
        proceed(bandit, 20)
        return [bandit.fit_kernel_(noise=noise, max_iterations=20), proceed(bandit, 5), everything(bandit)]

    same_under_both(lambda: tb.batch_bkb(kernel, **BOUNDED), work)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_contextual_bandits_are_the_same():
    contexts = torch.tensor([[0.1], [0.7]], dtype=torch.float64)

    def work(policy: Any) -> list[Any]:
        bandit, seen = tb.ContextualBandit(policy, PROBLEM.tensor, contexts, generator=generator(0)), []
        for step in range(6):
            selection = bandit.ask(context=[0.1] if step % 2 else [0.7])
            bandit.tell(selection, PROBLEM.rewards(step, selection.index))
            seen.append(selection.index)
        return [seen, bandit.state_dict()]

    same_under_both(lambda: tb.gp_ucb(rbf(), **COMMON), work)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_numbers_in_lists_are_not_rounded():
    policy, arms = tb.gp_ucb(KERNEL, **COMMON), torch.tensor(POINTS, dtype=torch.float64)

    def work(_: Any) -> list[Any]:
        lists, tensors = (tb.Bandit(policy, arms, generator=generator(0)) for _ in range(2))
        lists.tell([0, 1, 2], REWARDS)
        tensors.tell(torch.tensor([0, 1, 2]), torch.tensor(REWARDS, dtype=torch.float64))
        lists.observe([[0.1, 0.3]], [2.0], [0.3], [0.7])
        one = {"dtype": torch.float64}
        tensors.observe(*(torch.tensor(v, **one) for v in ([[0.1, 0.3]], [2.0], [0.3], [0.7])))
        assert differences(everything(lists), everything(tensors)) == []
        return [everything(lists)]

    same_under_both(lambda: None, work, guard=False)  # Python numbers are read once to check that they are no integers
    corners = [[0.12345678901234, -0.3], [0.7, 1.1]]
    with default_dtype(torch.float32):
        made = tb.pi_gp_ucb(KERNEL, nu=1.5, horizon=10, bounds=corners)
    assert [list(corner) for corner in made.box] == corners


def test_floors_of_factors_are_not_rounded():
    floor, one = 0.1, torch.ones((), dtype=torch.float64)
    with default_dtype(torch.float32):
        kept = inverse_root(torch.diag(torch.tensor([1.0, np.nextafter(floor, 1)], dtype=torch.float64)), floor)
        _, grown = append_row(one.reshape(1, 1), one.new_zeros(1), one * floor, floor)
    assert bool((kept.factor.diagonal() > 0).all())
    assert not bool(grown)


# ------------------------------------------------------------------------------------------- BoTorch, diagnostics, problems


def test_botorch_models_are_the_same():
    X, Y = PROBLEM.tensor, torch.sin(4 * PROBLEM.tensor.sum(dim=-1, keepdim=True))

    policy = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)

    def work(model: BanditModel) -> list[Any]:
        model.eval()
        posterior = model.posterior(X[:5] + 0.01)
        acqf = PolicyAcquisition(model, policy)
        further = model.condition_on_observations(X[:2] + 0.1, Y[:2])
        return [
            dict(model.state_dict()),
            posterior.mean,
            posterior.variance,
            acqf(X[:5].unsqueeze(-2)),
            further.posterior(X).mean,
        ]

    same_under_both(lambda: BanditModel(X, Y, noise_std=0.1), work)
    same_under_both(lambda: BanditModel(X, Y, dictionary="leverage", prior_mean="estimate", generator=generator(0)), work)


def test_models_of_bandits_are_the_same():
    def work(policy: Any) -> list[Any]:
        bandit = tb.Bandit(policy, PROBLEM.tensor, generator=generator(0))
        proceed(bandit, 12)
        acqf = PolicyAcquisition(bandit.model(), bandit.policy)
        return [acqf(PROBLEM.tensor.unsqueeze(-2)), acqf.width]

    same_under_both(lambda: tb.bkb(rbf(), **BOUNDED), work)


@pytest.mark.parametrize("name", ["batch_bkb", "pi_gp_ucb"])
def test_diagnostics_are_the_same(name):
    options = {"batch_bkb": BOUNDED, "pi_gp_ucb": BOUNDED | {"nu": 1.5, "horizon": 100}}[name]

    def work(policy: Any) -> list[Any]:
        bandit = tb.Bandit(policy, PROBLEM.tensor, generator=generator(0))
        index = torch.arange(30) % 11
        bandit.tell(index, PROBLEM.rewards(0, index))
        d, others = tb.diagnostics, torch.arange(20, 30)
        held_out = d.calibration(bandit, others, PROBLEM.rewards(40, others))
        if name == "pi_gp_ucb":
            return [held_out, d.noise(bandit)]
        quality = d.dictionary_quality(bandit, size=20, generator=generator(1))
        return [held_out, d.noise(bandit), d.leave_one_out(bandit), d.effective_dimension(bandit), d.widths(bandit), quality]

    same_under_both(lambda: getattr(tb, name)(KERNEL, **options), work)


PROBLEMS: dict[str, Callable[[], Any]] = {
    "rkhs": lambda: tb.environments.rkhs(dim=2, points_per_dim=7, generator=generator(0)),
    "branin": lambda: tb.environments.synthetic("branin", num_arms=49),
    "hartmann": lambda: tb.environments.synthetic("hartmann", num_arms=50),
    "ackley": lambda: tb.environments.synthetic("ackley", num_arms=50),
    "sin and cos": lambda: tb.environments.sin_cos(num_arms=40),
    "rosenbrock": lambda: tb.environments.rosenbrock(points_per_dim=6),
    "logistic regression": lambda: tb.environments.logistic_regression(num_train=40, epochs=1, records=1),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_environments_are_the_same(name):
    def work(environment: Any) -> list[Any]:
        index = torch.arange(8)
        draws = environment.sample(index, [generator(3)])
        return [environment.arms, environment.means, environment.norm_bound if name == "rkhs" else None, draws]

    same_under_both(PROBLEMS[name], work, guard=name != "logistic regression")  # logistic regression trains in float32


def test_kernels_of_experiments_are_the_same():
    arms = PROBLEM.tensor

    def values(config: KernelConfig) -> Tensor:
        return build_kernel([config], arms)(arms).to_dense()

    for config in (KernelConfig(lengthscale=0.3, outputscale=0.7), KernelConfig(name="matern", nu=1.5, lengthscale=[0.1, 0.3])):
        same_under_both(lambda config=config: values(config), lambda made: made)
