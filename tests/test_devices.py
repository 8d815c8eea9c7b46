"""Arms on a CUDA device, emulated or real (`-m cuda`): bandits, sources, runs and models give the same results as on the
CPU."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract import PROBLEM, Case, every_policy
from emulated_device import DEVICE, DeviceError, Lane, emulated_device, on_host
from problems import generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import constraints, environments, policies, sources, stopping
from torchbandits.botorch import PolicyAcquisition
from torchbandits.checks import as_device, same_device
from torchbandits.errors import ArgumentError

NAMES = ("cuda", "cuda:0", torch.device("cuda"), DEVICE)
HOST = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)

# Programs that CUDA refuses. `x` is on the device, `HOST` is not.
WRONG = {
    "sum": lambda x: x + HOST,
    "product": lambda x: x @ HOST.mT,
    "concatenation": lambda x: torch.cat([x, HOST]),
    "mask": lambda x: torch.where(HOST > 1, x, 0.0),
    "gather": lambda x: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)),
    "index of the device into a CPU tensor": lambda x: HOST[(x[0] * 0).long()],
    "values written by an index": lambda x: x.__setitem__(torch.tensor([0, 1]), HOST[:2]),
    "result": lambda x: torch.add(x, x, out=torch.empty(3, 4, dtype=x.dtype)),
    "number written in place": lambda x: HOST.sum().add_(x.sum()),
    "equal": lambda x: torch.equal(x, HOST),
    "numpy": lambda x: x.numpy(),
    "array": lambda x: np.asarray(x),
    "generator": lambda x: torch.rand(3, device=x.device, generator=torch.Generator()),
    "parameter": lambda x: torch.nn.Linear(4, 1, dtype=torch.float64)(x),
}
RIGHT = {
    "number": lambda x: x * HOST.sum(),
    "index of the CPU": lambda x: x[torch.tensor([2, 0])],
    "list as an index": lambda x: x[:, [1, 3]],
    "written in place": lambda x: x.clone().mul_(2).masked_fill_(x > 3, HOST.max()),
    "view written to": lambda x: _doubled(x.clone()),
    "to the host and back": lambda x: (x.cpu() + HOST).to(x.device),
    "factorisation": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(3, dtype=x.dtype, device=x.device)),
    "gradient": lambda x: torch.autograd.functional.jacobian(lambda y: y.square().sum(-1), x),
    "deep copy": lambda x: copy.deepcopy([x])[0],
    "numbers of the device in a list": lambda x: torch.tensor([x.sum(), 2.0], dtype=x.dtype),
}


def _doubled(x: Tensor) -> Tensor:
    x.T[1] *= 2
    return x


@pytest.mark.parametrize("name", WRONG)
def test_the_emulation_refuses_a_wrong_program(name):
    with emulated_device(), pytest.raises((DeviceError, TypeError)):
        WRONG[name](HOST.to("cuda"))


@pytest.mark.parametrize("name", RIGHT)
def test_the_emulation_has_the_numbers_of_the_cpu(name):
    with emulated_device():
        got = on_host(RIGHT[name](HOST.to("cuda")))
    assert torch.equal(got, RIGHT[name](HOST))


def test_the_emulation_leaves_nothing_behind():
    with emulated_device():
        x = HOST.cuda()
        assert x.is_cuda
        assert x.device == DEVICE
        assert torch.cuda.is_available()
    assert not torch.ones(1).is_cuda
    with pytest.raises(RuntimeError, match="after the emulation ended"):
        x + 1


# ---------------------------------------------------------------------- one name for one device


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_cuda_is_the_current_cuda_device(lane: Lane, name):
    with lane():
        assert as_device(name) == DEVICE
        assert same_device(torch.device(name), torch.ones(1, device="cuda").device)
        assert not same_device(torch.device(name), torch.device("cpu"))


def test_a_device_that_is_not_here_is_refused():
    for name in ("cuda", "cuda:3", "mps", "vulkan"):
        with pytest.raises(ArgumentError, match=r"device must be .* here"):
            as_device(name)


def _source(kind: str, arms: Tensor, device: Any, folder: Path) -> sources.ArmSource:
    if kind == "npy":
        np.save(folder / "arms.npy", arms.numpy())
        return sources.npy(folder / "arms.npy", device=device)
    if kind == "parquet":
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        pandas.DataFrame(arms.numpy(), columns=list("ab")[: arms.shape[-1]]).to_parquet(folder / "arms.parquet")
        return sources.parquet(folder / "arms.parquet", device=device)
    if kind == "chunks":
        return sources.chunks(
            lambda start=0, stop=None: iter([arms]), len(arms), arms.shape[-1], dtype=arms.dtype, device=device
        )
    return sources.pinned(arms, device)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", ["npy", "parquet", "chunks", "pinned"])
def test_a_source_on_cuda_is_where_its_tensors_are(lane: Lane, kind, tmp_path):
    arms = torch.rand(60, 2, generator=generator(1), dtype=torch.float64)
    expected = _picks(tb.Bandit(policies.bkb(rbf()), arms, generator=generator(0)))
    with lane():
        source = _source(kind, arms, "cuda", tmp_path)
        assert source.device == DEVICE
        bandit = tb.Bandit(policies.bkb(rbf()), source, generator=generator(0))
        assert _picks(bandit) == expected
        assert bandit.to("cuda") is bandit
        assert bandit.set_arms_(source).device == DEVICE


@pytest.mark.parametrize("kind", ["npy", "parquet", "pinned", "fingerprints"])
def test_arms_of_the_host_are_sent_to_a_device_piece_by_piece(lane: Lane, kind, tmp_path):
    arms = torch.rand(103, 2, generator=generator(1), dtype=torch.float64)
    packed = (256 * torch.rand(103, 8, generator=generator(2))).to(torch.uint8).numpy()
    np.save(tmp_path / "bits.npy", packed)
    words = sources.Fingerprints(packed).words(slice(0, 103))
    with lane() as asked:
        if kind == "fingerprints":
            read = sources.Fingerprints(tmp_path / "bits.npy", device="cuda").packed
        else:
            read = _source(kind, arms, "cuda", tmp_path).chunks
        for step, start, stop in ((10, 0, None), (103, 0, None), (200, 0, None), (7, 13, 55)):
            pieces = [(part, piece.clone()) for part, piece in read(step, start, stop)]
            got = torch.cat([piece for _, piece in pieces]).cpu()
            assert torch.equal(on_host(got), (words if kind == "fingerprints" else arms)[start:stop])
            assert [part.start for part, _ in pieces] == list(range(start, stop or 103, step))
        early = next(iter(read(10)))[1]
        assert torch.equal(on_host(early.cpu()), (words if kind == "fingerprints" else arms)[:10])
        if asked is not None:
            before = asked.waits
            for _ in read(5):
                pass
            # The host does not wait for copies from pinned memory.
            assert asked.waits == before


class _Named(sources.ArmSource):
    """A user's source that names its device without a number."""

    shape, dtype, device = torch.Size([60, 2]), torch.float64, torch.device("cuda")

    def __init__(self, arms: Tensor) -> None:
        self.arms = arms.to(self.device)

    def chunk(self, part: slice) -> Tensor:
        return self.arms[part]

    def points(self, index: Tensor) -> Tensor:
        return self.arms[index]


def test_a_users_source_may_name_its_device_without_a_number(lane: Lane):
    arms = torch.rand(60, 2, generator=generator(1), dtype=torch.float64)
    expected = _picks(tb.Bandit(policies.bkb(rbf()), arms, generator=generator(0)))
    with lane():
        source = _Named(arms)
        bandit = tb.Bandit(policies.bkb(rbf()), source, generator=generator(0))
        assert _picks(bandit) == expected
        bandit.to("cuda:0").set_arms_(_Named(arms))
        table = environments.Table(source, arms.sum(dim=-1).cuda(), 0.1)
        assert tb.run(policies.bkb(rbf()), table, 3).num_pulls.tolist() == [3]


def _picks(bandit: tb.Bandit, steps: int = 4) -> list[int]:
    picks: list[int] = []
    for _ in range(steps):
        selection = bandit.ask(limit=3)
        bandit.tell(selection, selection.points.double().sin().sum(dim=-1))
        picks += selection.index.tolist()
    return picks


# ---------------------------------------------------------------------- moved, saved and loaded


def _proceed(bandit: tb.Bandit, steps: int, most: int = 4) -> list[int]:
    """Ask and tell on the bandit's device, with the rewards of `PROBLEM`, and return the picks."""
    picks: list[int] = []
    for _ in range(steps):
        told, selection = int(bandit.pulls), bandit.ask(limit=most)
        assert selection.index.device == selection.points.device == bandit.device
        index = selection.index.cpu()
        bandit.tell(selection, PROBLEM.rewards(told, index).to(bandit.device))
        picks += index.tolist()
    return picks


@pytest.mark.sweep(2)
@every_policy
def test_a_bandit_moves_between_devices_and_picks_what_it_picked(lane: Lane, case: Case):
    expected = _proceed(case.bandit(), 5)
    with lane():
        bandit = case.bandit()
        picks = _proceed(bandit, 1)
        bandit.ask(limit=4)  # the bandit moves in the middle of a batch
        picks += _proceed(bandit.to("cuda"), 2)
        bandit.ask(limit=4)
        for value in (bandit.best().index, bandit.best_arm(), bandit.counts, bandit.pulls):
            assert value.device == bandit.device == DEVICE
        loaded = case.bandit(seed=9).load_state_dict(bandit.state_dict())
        rest = _proceed(bandit.to("cpu"), 2)
        assert _proceed(loaded, 2) == rest  # a state that was saved on the device can be continued anywhere
    assert picks + rest == expected


# ---------------------------------------------------------------------- whatever else has tensors


def _arms(device: str, seed: int = 3) -> Tensor:
    return torch.rand(40, 2, generator=generator(seed), dtype=torch.float64).to(device)


def _value(x: Tensor) -> Tensor:
    return x.double().sin().sum(dim=-1)


def _learned(device: str, policy: policies.Policy | None = None, **options: Any) -> tb.Bandit:
    """A bandit that was told some batches, with one open."""
    bandit = tb.Bandit(policy or policies.batch_bkb(rbf()), _arms(device), generator=generator(0), **options)
    for _ in range(3):
        selection = bandit.ask(limit=4)
        bandit.tell(selection, _value(selection.points))
    bandit.ask(limit=3)
    return bandit


def _boxed(policy: policies.Policy, device: str) -> list[Tensor]:
    box = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64).to(device)
    bandit = tb.Bandit(policy, bounds=box, generator=generator(0))
    for _ in range(3):
        selection = bandit.ask(limit=2)
        bandit.tell(selection, _value(selection.points))
    bandit.ask(limit=2)
    found = [bandit.best(2).points, bandit.counts, bandit.arms]
    bandit.load_state_dict(bandit.state_dict())
    return [*found, bandit.to("cpu").ask().points]


def _contextual(device: str) -> list[Tensor]:
    contexts = _arms(device, seed=4)[:3]
    bandit = tb.ContextualBandit(
        policies.bkb(rbf()), _arms(device), contexts[:2], max_contexts=2, generator=generator(0), costs=1 + _arms(device)[:, 0]
    )
    for context in contexts[[0, 2, 1, 2]]:
        selection = bandit.ask(context=context)
        bandit.tell(selection, _value(selection.points), context=context)
    bandit.observe(
        torch.tensor([1, 2], device=bandit.device),
        context=contexts[0],
        counts=torch.ones(2, device=bandit.device),
        sums=torch.ones(2, device=bandit.device),
    )
    bandit.load_state_dict(bandit.state_dict())
    return [bandit.best(2, context=contexts[1]).index, bandit.counts, bandit.width]


def _work(device: str, folder: Path) -> list[Tensor]:
    arms, store = _arms(device), folder / f"{device}.sqlite"
    first, second = (tb.Worker(policies.batch_bkb(rbf()), arms, store=store, generator=generator(0), every=2) for _ in range(2))
    for _ in range(3):
        leases = [first.ask(), second.ask()]
        for worker, lease in zip((second, first), reversed(leases), strict=True):
            worker.tell(lease, float(_value(lease.points)))
    late = tb.Worker(policies.batch_bkb(rbf()), arms, store=store)
    return [lease.index, late.ask().index, late.bandit.best().index]


def _moved_arms(device: str) -> list[Tensor]:
    bandit = _learned(device)
    bandit.tell(bandit.ask(), _value(bandit.ask().points))
    more = torch.cat([_arms(device), _arms(device, seed=5)])
    bandit.set_arms_(more)
    first = bandit.ask(limit=4, available=torch.arange(80) < 60)
    bandit.forget(first)
    bandit.observe(more[3:5], torch.ones(2, device=bandit.device), torch.ones(2, device=bandit.device))
    return [first.index, bandit.ask(limit=torch.tensor(2)).index, bandit.counts]


def _fitted(device: str) -> list[Tensor]:
    bandit = _learned(device, policies.gp_ucb(rbf()))
    bandit.fit_kernel_(noise=True)
    return [bandit.ask().index, bandit.posterior(_arms(device)).mean]


def _priced(device: str) -> list[Tensor]:
    policy = tb.per_cost(policies.batch_bkb(rbf()))
    return [_learned(device, policy, costs=1 + _arms(device)[:, 0]).ask().index]


def _diagnosed(device: str) -> list[Tensor]:
    bandit, index = _learned(device), torch.arange(5, 15).to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tb.errors.DiagnosticWarning)
        report = tb.diagnostics.diagnose(bandit, held_out=(index, _value(bandit.arms[index])))
        print(report)
        left = tb.diagnostics.leave_one_out(bandit)
        quality = tb.diagnostics.dictionary_quality(bandit)
    return [left.coverage, quality.largest if hasattr(quality, "largest") else left.coverage]


def _modelled(device: str) -> list[Tensor]:
    found = []
    for policy in (policies.batch_bkb(rbf()), policies.rff_ucb(rbf(), num_features=20)):
        bandit = _learned(device, policy)
        model, points = bandit.model(), _arms(device).unsqueeze(-2)
        moved = copy.deepcopy(model).to("cpu")
        found += [PolicyAcquisition(model, policy)(points), PolicyAcquisition(moved, policy)(points.cpu())]
        bandit.to("cpu")  # models must not move with the bandit
        assert model.arms.device == points.device
        assert model.posterior(points[:5]).rsample(torch.Size([2])).device == points.device
        found += [model.posterior(points).variance, bandit.model().to(device).posterior(points).mean]
    return found


def _played(device: str, folder: Path, **options: Any) -> list[Tensor]:
    """A run that is cut short and resumed, twice: on its device, then on the CPU."""

    def play(where: str, stop: int | None) -> tb.History:
        table = environments.Table(_arms(where), _value(_arms(where)), 0.1, costs=1 + _arms(where)[:, 0])
        calls = iter(range(1000))
        return tb.run(
            policies.batch_bkb(rbf()),
            table,
            20,
            generator=generator(1),
            journal=folder / device,
            callbacks=[lambda *_: next(calls) == stop],
            **options,
        )

    play(device, 1), play(device, 1)
    history = play("cpu", None)
    return [torch.tensor(history.pulls["arm"]), torch.tensor(history.pulls["regret"])]


def _rows(device: str) -> list[Tensor]:
    bandit = tb.Bandit(policies.batch_bkb(rbf()), _arms(device), generator=[generator(0), generator(1)])
    for _ in range(3):
        selection = bandit.ask(limit=torch.tensor([3, 2]))
        bandit.tell(selection, torch.where(selection.mask, _value(selection.points), torch.nan))
    return [bandit.ask().index, bandit.best(2).mean, bandit.dictionary, bandit.width]


RULES = (
    stopping.EpsilonOptimal(0.5),
    stopping.ProbableRegret(0.1, 0.3, max_draws=512),
    stopping.ImprovementPerCost(0.01),
    stopping.SameArm(3),
    stopping.TopKKnown(2, 0.5),
    stopping.LevelSetKnown(0.2, 0.5),
    stopping.Budget(pulls=14),
)


def _stopped(device: str, folder: Path) -> list[Tensor]:
    """Decisions of every stopping rule for a bandit, batch rows, a run and a worker."""
    bandit, decided = _learned(device, policies.gp_ucb(rbf(), noise_std=0.1)), []
    for _ in range(6):
        bandit.tell(bandit.ask(), _value(bandit.ask().points))
        for rule in RULES:
            decision = bandit.should_stop(rule)
            assert decision.stop.device == decision.value.device == decision.arm.device == bandit.device
            decided += [decision.stop, decision.value, decision.arm]
    rows = tb.Bandit(policies.gp_ucb(rbf(), noise_std=0.1), _arms(device), generator=[generator(0), generator(1)])
    for _ in range(4):
        rows.tell(rows.ask(), _value(rows.ask().points))
    table = environments.Table(_arms(device), _value(_arms(device)), 0.1)
    history = tb.run(policies.gp_ucb(rbf(), noise_std=0.1), table, 30, generator=generator(1), stop=list(RULES))
    worker = tb.Worker(policies.gp_ucb(rbf(), noise_std=0.1), _arms(device), store=folder / f"{device}.sqlite")
    while not worker.should_stop(*RULES):
        lease = worker.ask()
        worker.tell(lease, float(_value(lease.points)))
    return [
        *decided,
        *(rows.should_stop(rule).value for rule in RULES),
        torch.as_tensor(history.num_pulls),
        worker.bandit.pulls,
    ]


def _sorted(device: str) -> list[Tensor]:
    """Sets of arms, of a bandit and of batch rows."""
    found = []
    for given in (generator(0), [generator(0), generator(1)]):
        bandit = tb.Bandit(policies.lucb(rbf(), k=3, noise_std=0.1), _arms(device), generator=given)
        for _ in range(4):
            bandit.tell(bandit.ask(), _value(bandit.ask().points))
        top, sets = bandit.top_k(3, draws=500), bandit.level_set(0.3)
        for value in (top.index, top.probability, sets.above, sets.below, sets.undecided):
            assert value.device == bandit.device
            found.append(value)
    return found


def _weighted(device: str) -> list[Tensor]:
    """Known and fitted noise variances of rewards and of history, and rewards that are forgotten or implausible."""
    arms, found = _arms(device), []
    names = ["a" if place % 2 else "b" for place in range(20)]
    index = torch.arange(20, device=arms.device)
    # In float64: a sine in float32 differs between devices by 1e-7, and the fitted variances with it.
    scattered = _value(arms[index]) + 0.2 * torch.sin(37.0 * index.double())
    noise = tb.GroupNoise.fit(rbf(), arms[index], scattered, names)
    base = policies.gp_ucb(rbf(), noise_std=0.1)
    bandit = tb.Bandit(base, arms, generator=generator(0))
    bandit.tell(index, _value(arms[index]), noise_var=noise(names))
    bandit.observe(index[:2], torch.ones_like(arms[:2, 0]), torch.ones_like(arms[:2, 0]), noise_var=0.04)
    bandits = [
        bandit,
        tb.Bandit(tb.robust(base), arms, generator=generator(0)),
        tb.Bandit(tb.forgetting.window(base, pulls=4), arms, generator=generator(0)),
        tb.Bandit(tb.forgetting.discount(base, factor=0.8), arms, generator=generator(0)),
        tb.Bandit(tb.forgetting.restart(base, every=4), arms, generator=generator(0)),
    ]
    for place, one in enumerate(bandits):
        for _ in range(6):
            one.tell(one.ask(), _value(one.ask().points), **({} if place else {"noise_var": 0.09}))
        found += [one.ask().index, one.counts, one.posterior(arms).mean]
    return [*found, *(torch.as_tensor(noise.variances[name]) for name in "ab")]


def _plated(device: str) -> list[Tensor]:
    """Batches of exactly so many picks, after first picks and under every constraint."""
    bandit = tb.Bandit(policies.gp_ucb(rbf(), noise_std=0.1), _arms(device), generator=generator(0))
    bandit.tell(bandit.ask(), _value(bandit.ask().points))
    size = bandit.arms.shape[-2]
    groups = torch.arange(size) % 4
    within = [constraints.Distinct(), constraints.Same(groups), constraints.AtMost(torch.arange(size) % 5, 2)]
    plate = bandit.ask(exactly=5, within=within)
    assert plate.index.device == bandit.device
    longer = bandit.ask(more=1, within=within)
    bandit.tell(longer, _value(longer.points))
    fours = bandit.ask(exactly=6, within=[constraints.Distinct(), constraints.Groups(groups, 3)])
    bandit.forget(fours)
    # A value that leaves too few arms is replaced by another value, and first picks are followed by the policy's own picks.
    few = [constraints.Distinct(), constraints.Same(groups), constraints.AtMost((torch.arange(size) // 4) * (groups == 1), 1)]
    other = bandit.ask(exactly=3, within=few)
    started = policies.gp_ucb(rbf(), noise_std=0.1, initial=tb.starts.uniform(2))
    first = tb.Bandit(started, _arms(device), generator=generator(0)).ask(exactly=5)
    return [plate.index, longer.index[..., -1:], fours.index, other.index, first.index]


def _explained(device: str) -> list[Tensor]:
    """Beliefs of a policy whose kernel comes from the data, about arms with features and about fingerprints."""
    bits = (torch.rand(48, 64, generator=generator(9)) < 0.3).to(torch.uint8).numpy()
    found = []
    for arms in (_arms(device), sources.Fingerprints(np.packbits(bits, axis=1), device=device)):
        bandit = tb.Bandit(tb.auto(), arms, generator=generator(0))
        for _ in range(10):
            selection = bandit.ask()
            bandit.tell(selection, (selection.index % 7).double())
        said = bandit.explain()
        assert "Best so far" in str(said)
        numbers = torch.tensor([said.noise_std, said.upper, float(said.rivals), said.pulls])
        found += [selection.index, said.relevance, said.best.mean, numbers]
    return found


def _balanced(device: str) -> list[Tensor]:
    """One candidate lengthscale of several, and picks while other picks are pending."""
    bandit = tb.Bandit(policies.lb_gp_ucb(rbf(), horizon=20, noise_std=0.1), _arms(device), generator=generator(0))
    for _ in range(3):
        bandit.ask()
        selection = bandit.ask(more=2)
        bandit.tell(selection, _value(selection.points))
    return [selection.index, bandit.ask().index, bandit.posterior(bandit.arms).mean]


PROGRAMS = {
    "box": lambda device, folder: _boxed(policies.bkb(rbf()), device),
    "box by cells": lambda device, folder: _boxed(policies.ada_bkb(rbf(), horizon=20), device),
    "box by draws": lambda device, folder: _boxed(policies.thompson_sampling(rbf(), num_features=64), device),
    "contexts": lambda device, folder: _contextual(device),
    "workers": _work,
    "arms that change": lambda device, folder: _moved_arms(device),
    "fit": lambda device, folder: _fitted(device),
    "costs": lambda device, folder: _priced(device),
    "diagnostics": lambda device, folder: _diagnosed(device),
    "model": lambda device, folder: _modelled(device),
    "batch rows": lambda device, folder: _rows(device),
    "stopping": _stopped,
    "sets": lambda device, folder: _sorted(device),
    "weights": lambda device, folder: _weighted(device),
    "beliefs": lambda device, folder: _explained(device),
    "balanced": lambda device, folder: _balanced(device),
    "plates": lambda device, folder: _plated(device),
    "resumed": _played,
    "resumed with a budget": lambda device, folder: _played(device, folder, budget=25.0),
    "resumed after failures": lambda device, folder: _played(device, folder, failures="exclude", retries=1),
}


# The location of a maximum is only determined up to the square root of the rounding error of its value, and rounding differs
# between the two devices.
MAXIMISED = {"box": 1e-7}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_on_the_device_what_it_does_on_the_cpu(lane: Lane, name, tmp_path):
    expected = PROGRAMS[name]("cpu", tmp_path)
    with lane():
        got = [value.cpu() for value in PROGRAMS[name]("cuda", tmp_path)]
    close = MAXIMISED.get(name, 1e-9)
    torch.testing.assert_close(got, expected, rtol=close, atol=close, equal_nan=True)
