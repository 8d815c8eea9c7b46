"""Ask and tell, and `run` written on them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchbandits.environments.base import Environment
from torchbandits.errors import ArgumentError, ArmIndexError, NonFiniteError, NumericalError, ShapeError, StateError, require
from torchbandits.history import History
from torchbandits.policies import Policy
from torchbandits.posteriors import GaussianProcess, aggregate
from torchbandits.types import Pulls, Recommendation, Report, Selection


class Bandit:
    """Chooses which arms to evaluate next, and learns from the rewards.

    Args:
        policy: What chooses; frozen and reusable. Its kernel is deep-copied.
        arms: `A x d`, or `batch_shape x A x d`, floating point and finite; float64 is the accurate lane.
        generator: One CPU `torch.Generator`, or a list of one a batch row (`batch_shape` is then its length, broadcast
            with the kernel's and the arms'). Held, and advanced by draws. A fresh one with seed 0 by default.

    Raises:
        ShapeError: If the arms are empty, of the wrong dtype or shape, or batch shapes do not broadcast.
        NonFiniteError: If an arm has a NaN or an infinite feature.
    """

    def __init__(
        self, policy: Policy, arms: Tensor, *, generator: torch.Generator | Sequence[torch.Generator] | None = None
    ) -> None:
        require(isinstance(policy, Policy), f"policy must be a torchbandits policy, got {type(policy).__name__}.")
        _check_arms(arms)
        generators, batch_shape = _generators(generator, arms, getattr(policy, "kernel", None))
        self.policy = policy
        self._state = policy.init(arms, generators, batch_shape)
        self._open: Selection | None = None

    # ------------------------------------------------------------------ ask and tell

    def ask(
        self, limit: int | Tensor | None = None, *, more: int | None = None, available: Tensor | None = None
    ) -> Selection:
        """The picks to evaluate next: the open selection, as long as there is one.

        Args:
            limit: Most picks, one number or one a batch row (`batch_shape`). Only a new batch heeds it.
            more: Extend the open selection by this many picks a row, whatever the batch rule says, treating all that is
                untold as pending. The whole open selection is returned, earlier picks first.
            available: `A` or `batch_shape x A` booleans, arms on offer; all of them by default.

        Returns:
            The open selection: picks asked for and neither told nor forgotten.

        Raises:
            ArgumentError: If a limit is negative, or no arm is on offer; nothing has changed then.
        """
        if self._open is not None and more is None:
            return self._open
        selection, evidence = self.policy.select(
            self._state, limit=self._limit(limit), available=self._available(available), exactly=self._more(more)
        )
        for generator, state in zip(self._state.generators, evidence.generator_states, strict=False):
            generator.set_state(state)
        if not bool(selection.mask.any()):
            return selection if self._open is None else self._open
        self._set_open(selection if self._open is None else _joined(self._open, selection))
        assert self._open is not None
        return self._open

    def tell(self, selection: Selection | Tensor, rewards: Tensor) -> Report:
        """Learn the rewards of picks, in any order, of a whole batch or a part of it.

        Args:
            selection: What `ask` returned, or a part of it (`selection[:3]`), or plain arm indices `batch_shape x q`.
                Picks that were never asked for are welcome (history from elsewhere): `Report.unasked` counts them.
            rewards: `batch_shape x q`, reward units; masked places are ignored.

        Returns:
            The report after the update.

        Raises:
            ShapeError, NonFiniteError, ArmIndexError: On bad input, before anything is learned.
            NumericalError: If the posterior broke down; the state is as before the call.
        """
        index, mask = self._picks(selection)
        y = self._rewards(rewards, index, mask)
        ones = mask.to(torch.float64)
        pulls = Pulls(counts=ones, sums=torch.where(mask, y, 0.0), squares=torch.where(mask, y * y, 0.0), index=index, mask=mask)
        remaining, unasked = self._without(self._state.rows.entry(index), mask)
        return self._learn(pulls, remaining, unasked)

    def observe(
        self, points_or_index: Tensor, counts: Tensor, sums: Tensor, squares: Tensor | None = None
    ) -> Report:
        """Learn from history that is already summed.

        Args:
            points_or_index: Arm indices `batch_shape x h` (integers), or points `batch_shape x h x d` that need not be arms.
            counts: `batch_shape x h`, positive numbers of pulls (or weights).
            sums: `batch_shape x h`, sums of rewards.
            squares: `batch_shape x h`, sums of squared rewards; sums²/counts where not given.

        Returns:
            The report after the update. Cost: a refit, and a sweep over the arms.
        """
        where = torch.as_tensor(points_or_index)
        is_index = not where.is_floating_point()
        require(where.dim() >= (1 if is_index else 2), f"expected indices `batch_shape x h` or points `batch_shape x h x d`, got shape {tuple(where.shape)}.", ShapeError)
        shape = where.shape if is_index else where.shape[:-1]
        expected = torch.Size([*self.batch_shape, shape[-1]])
        columns = {"counts": counts, "sums": sums, "squares": squares if squares is not None else sums}
        for name, value in columns.items():
            value = torch.as_tensor(value)
            require(tuple(value.shape) == tuple(shape), f"{name} must be shaped like the history, {tuple(shape)}, got {tuple(value.shape)}.", ShapeError)
            require(bool(torch.isfinite(value.double()).all()), f"{name} has a NaN or infinite value: leave failed evaluations out.", NonFiniteError)
            columns[name] = value.double().to(self.device).expand(expected)
        n, s = columns["counts"], columns["sums"]
        require(bool((n > 0).all()), "counts must be positive.")
        q = columns["squares"] if squares is not None else s * s / n
        if is_index:
            index, mask = self._picks(where.expand(expected))
            require(bool(mask.all()), "history has an index of −1.", ArmIndexError)
            pulls = Pulls(counts=n, sums=s, squares=q, index=index, mask=mask)
        else:
            dim = self.arms.shape[-1]
            require(where.shape[-1] == dim, f"points must have {dim} features like the arms, got {where.shape[-1]}.", ShapeError)
            require(bool(torch.isfinite(where).all()), "points have a NaN or infinite feature.", NonFiniteError)
            pulls = Pulls(counts=n, sums=s, squares=q, points=where.to(self.device).expand(*expected, dim))
        return self._learn(pulls, self._open, n.sum(dim=-1))

    def forget(self, selection: Selection | Tensor) -> None:
        """Give up on picks that were asked for and will never be told; their hallucination is undone.

        Raises:
            StateError: If one of them is not pending; nothing has changed then.
        """
        index, mask = self._picks(selection)
        remaining, unasked = self._without(self._state.rows.entry(index), mask)
        require(not bool((unasked > 0).any()), "some of these picks are not pending: forget only what ask() returned and "
                "neither tell nor forget has settled.", StateError)
        self._set_open(remaining)

    # ------------------------------------------------------------------ what was learned

    @torch.no_grad()
    def best(self, k: int = 1) -> Recommendation:
        """The k arms with the highest posterior mean among those pulled, best first. Cost O(u)."""
        require(k >= 1, f"k must be at least 1, got {k}.")
        state, statistics = self._state, self._state.statistics
        nan = torch.full((*self.batch_shape, k), torch.nan, dtype=torch.float64, device=self.device)
        if statistics.size == 0:
            empty = self.arms.new_full((*self.batch_shape, k, self.arms.shape[-1]), torch.nan)
            return Recommendation(empty, torch.full(nan.shape, -1, device=self.device), nan, nan.clone())
        pulled = statistics.mask & (statistics.weights > 0)
        arm = state.rows.arm_of_row
        if state.table is not None:
            mean = state.table.mean().gather(-1, arm.clamp_min(0))
            if bool(((arm < 0) & pulled).any()):
                mean = torch.where(arm < 0, state.posterior(statistics.points).mean, mean)
            variance = state.posterior.regularization * state.row_leverage()
        else:
            mean = statistics.sums / statistics.weights
            variance = torch.full_like(mean, torch.nan)
        k_here = min(k, mean.shape[-1])
        top = mean.masked_fill(~pulled, -torch.inf).topk(k_here, dim=-1).indices
        valid = pulled.gather(-1, top)
        pad = (0, k - k_here)
        grow = torch.nn.functional.pad
        points = statistics.points.gather(-2, top.unsqueeze(-1).expand(*top.shape, statistics.points.shape[-1]))
        return Recommendation(
            grow(torch.where(valid.unsqueeze(-1), points, torch.nan), (0, 0, *pad), value=torch.nan).to(self.arms.dtype),
            grow(torch.where(valid, arm.gather(-1, top), -1), pad, value=-1),
            grow(torch.where(valid, mean.gather(-1, top), torch.nan), pad, value=torch.nan),
            grow(torch.where(valid, variance.gather(-1, top), torch.nan), pad, value=torch.nan),
        )

    @property
    def posterior(self) -> GaussianProcess:
        """Callable on any points: `Marginals(mean, variance)` in reward units; pending picks shrink variances only."""
        return self._state.posterior

    @property
    def arms(self) -> Tensor:
        """The arms, `A x d` or `batch_shape x A x d`."""
        return self._state.rows.arms

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of everything that is asked and told."""
        return self._state.rows.batch_shape

    @property
    def device(self) -> torch.device:
        """Where arms and posterior live."""
        return self.arms.device

    @property
    def counts(self) -> Tensor:
        """Pulls told of each arm, `batch_shape x A`; exact duplicates share those of their entry."""
        return self._state.rows.counts(self._state.statistics.weights)

    @property
    def pulls(self) -> Tensor:
        """Pulls told in all, `batch_shape`."""
        return self._state.statistics.pulls

    @property
    def dictionary(self) -> Tensor:
        """Arms in the dictionary S in order of first pull, `batch_shape x m`, −1 where padded or from outside the arms."""
        rows, mask = self.posterior.dictionary_rows()
        arm = self._state.rows.arm_of_row
        return torch.where(mask, arm.gather(-1, rows) if arm.shape[-1] else rows, -1)

    @property
    def width(self) -> Tensor:
        """What multiplies the posterior standard deviation now, `batch_shape`."""
        return self.policy.width(self._state)

    # ------------------------------------------------------------------ saving and moving

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly, the open selection and the generators included: tensors and numbers."""
        saved: dict[str, Any] = {"state": self._state.state_dict(), "open": None}
        if self._open is not None:
            saved["open"] = {"index": self._open.index, "mask": self._open.mask}
        return copy.deepcopy(saved)

    def load_state_dict(self, state_dict: dict[str, Any]) -> Bandit:
        """Resume from a `state_dict` of a bandit with the same policy and arms. Returns self."""
        state = state_dict["state"]
        shape = tuple(state["rows.row_of_arm"].shape)
        own = tuple(self._state.rows.row_of_arm.shape)
        require(shape == own, f"the saved state is of arms and rows {shape}, this bandit of {own}.", ShapeError)
        self._state.load_state_dict(copy.deepcopy(state))
        opened = state_dict["open"]
        if opened is None:
            self._open = None
        else:
            index = opened["index"].to(self.device)
            self._open = Selection(self._state.rows.points(index), index, opened["mask"].to(self.device))
        return self

    def to(self, device: torch.device | str) -> Bandit:
        """Move arms and posterior; factors stay float64. Returns self."""
        self._state.to(device)
        if self._open is not None:
            o = self._open
            self._open = Selection(o.points.to(device), o.index.to(device), o.mask.to(device))
        return self

    # ------------------------------------------------------------------ inside

    def _learn(self, pulls: Pulls, remaining: Selection | None, unasked: Tensor) -> Report:
        """Update the state or leave it as it was."""
        snapshot, opened, done = self._state.snapshot(), self._open, False
        try:
            self._state = self.policy.update(self._state, pulls)
            self._set_open(remaining)
            report = self._report(pulls, unasked)
            done = True
        finally:
            if not done:
                self._state.restore_(snapshot)
                self._open = opened
        return report

    @torch.no_grad()
    def _report(self, pulls: Pulls, unasked: Tensor) -> Report:
        state = self._state
        bounds = self.policy.bounds(state)
        certificate = torch.full_like(state.log_det, torch.nan) if bounds is None else bounds[0] - bounds[1]
        broken = torch.isnan(certificate)
        if bounds is not None and bool(broken.any()):
            raise NumericalError(
                f"the posterior became NaN in batch rows {broken.reshape(-1).nonzero().reshape(-1).tolist()}; the pulls were "
                "not learned. Check the kernel's hyper-parameters, or use a larger regularization."
            )
        told = pulls.counts.sum(dim=-1)
        size = state.posterior.dictionary_size if state.table is not None else torch.zeros_like(state.statistics.num_rows)
        return Report(
            pulls=self.pulls,
            batch_size=told,
            distinct_arms=state.statistics.num_rows,
            dictionary_size=size,
            width=self.width,
            information_gain=0.5 * state.log_det if state.table is not None else torch.full_like(told, torch.nan),
            certificate=certificate,
            unasked=unasked,
        )

    def _set_open(self, selection: Selection | None) -> None:
        if selection is None and self._open is None:
            return
        self._open = selection
        if selection is None:
            none = torch.zeros(*self.batch_shape, 0, dtype=torch.int64, device=self.device)
            self._state.set_pending_(none, none.bool())
        else:
            self._state.set_pending_(selection.index, selection.mask)

    def _without(self, index: Tensor, mask: Tensor) -> tuple[Selection | None, Tensor]:
        """The open selection less the given picks, and how many of those were not open in each row."""
        told = mask.sum(dim=-1).double()
        if self._open is None:
            return None, told
        opened = self._open
        if opened.index.shape == index.shape and bool(((opened.index == index) & (opened.mask == mask)).all()):
            return None, torch.zeros_like(told)
        distinct, counts = aggregate(index, mask)
        same = (opened.index.unsqueeze(-1) == distinct.unsqueeze(-2)) & opened.mask.unsqueeze(-1)
        removed = (same & (same.long().cumsum(dim=-2) <= counts.unsqueeze(-2))).any(dim=-1)
        unasked = told - removed.sum(dim=-1)
        kept = opened.mask & ~removed
        if not bool(kept.any()):
            return None, unasked
        order = (~kept).byte().argsort(dim=-1, stable=True)[..., : int(kept.sum(dim=-1).max())]
        left = kept.gather(-1, order)
        index = torch.where(left, opened.index.gather(-1, order), -1)
        return Selection(self._state.rows.points(index), index, left), unasked

    def _picks(self, selection: Selection | Tensor) -> tuple[Tensor, Tensor]:
        """Arm indices and mask of a selection, checked."""
        index = torch.as_tensor(selection.index if isinstance(selection, Selection) else selection)
        require(not index.is_floating_point() and index.dtype != torch.bool, f"arm indices must be integers, got {index.dtype}.", ShapeError)
        require(index.device == self.device, f"indices are on {index.device}, the arms on {self.device}: move one of them.", ShapeError)
        require(
            index.dim() == len(self.batch_shape) + 1 and index.shape[:-1] == self.batch_shape,
            f"expected indices of shape batch_shape x q = {(*self.batch_shape, 'q')}, got {tuple(index.shape)}.",
            ShapeError,
        )
        mask = selection.mask if isinstance(selection, Selection) else index >= 0
        bad = mask & ((index < 0) | (index >= self.arms.shape[-2]))
        if bool(bad.any()):
            raise ArmIndexError(f"arm index {index[bad][0].item()} is outside 0 … {self.arms.shape[-2] - 1}.")
        return index.long(), mask

    def _rewards(self, rewards: Tensor, index: Tensor, mask: Tensor) -> Tensor:
        y = torch.as_tensor(rewards)
        require(y.dtype != torch.bool and not y.is_complex(), f"rewards must be real numbers, got {y.dtype}.", ShapeError)
        require(y.shape == index.shape, f"rewards must be shaped like the selection's index, {tuple(index.shape)}, got {tuple(y.shape)}.", ShapeError)
        require(y.device == self.device, f"rewards are on {y.device}, the arms on {self.device}: move one of them.", ShapeError)
        y = y.double()
        bad = mask & ~torch.isfinite(y)
        if bool(bad.any()):
            raise NonFiniteError(f"{int(bad.sum())} rewards are NaN or infinite, the first {y[bad][0].item()}: tell finite "
                                 "rewards, and forget(selection) evaluations that failed.")
        return y

    def _limit(self, limit: int | Tensor | None) -> Tensor | None:
        if limit is None:
            return None
        value = torch.as_tensor(limit, device=self.device)
        require(not value.is_floating_point() and bool((value >= 0).all()), f"limit must be an integer ≥ 0, got {limit}.")
        try:
            return value.expand(self.batch_shape)
        except RuntimeError as error:
            raise ShapeError(f"limit must be a number or shaped {tuple(self.batch_shape)}, got {tuple(value.shape)}.") from error

    def _more(self, more: int | None) -> int | None:
        require(more is None or (isinstance(more, int) and more >= 1), f"more must be an integer ≥ 1, got {more}.")
        return more

    def _available(self, available: Tensor | None) -> Tensor | None:
        if available is None:
            return None
        mask = torch.as_tensor(available, device=self.device)
        A = self.arms.shape[-2]
        if mask.dtype != torch.bool or mask.shape not in {torch.Size([A]), torch.Size([*self.batch_shape, A])}:
            raise ShapeError(f"available must be booleans of shape ({A},) or {(*self.batch_shape, A)}, got {mask.dtype} of shape {tuple(mask.shape)}.")
        return mask.expand(*self.batch_shape, A)


def run(
    policy: Policy,
    environment: Environment,
    num_rounds: int,
    *,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    callbacks: Iterable[Callable[[Bandit, Selection, Tensor, Report], bool | None]] = (),
) -> History:
    """Play a policy in an environment for a number of pulls, on ask and tell.

    Args:
        policy: What chooses.
        environment: What answers; its arms are the bandit's.
        num_rounds: Pulls of each batch row; it caps the last batch.
        generator: As for `Bandit`. The noise of each row is drawn from a generator seeded by that row's.
        callbacks: Called after each tell with the bandit, the selection, the rewards and the report; a True ends the run.

    Returns:
        The history. `history.batches["seconds"]` is the time of ask and tell, without the environment's.
    """
    require(isinstance(num_rounds, int) and num_rounds >= 1, f"num_rounds must be an integer ≥ 1, got {num_rounds}.")
    callbacks = tuple(callbacks)
    bandit = Bandit(policy, environment.arms, generator=generator)
    seeds = [int(torch.randint(2**62, (), generator=g)) for g in bandit._state.generators]
    noise = [torch.Generator().manual_seed(seed) for seed in seeds]
    rows = bandit.batch_shape.numel()
    history = History(rows)
    while True:
        began = time.perf_counter()
        left = num_rounds - bandit.pulls.long()
        if not bool((left > 0).any()):
            return history
        selection = bandit.ask(limit=left)
        asked = time.perf_counter() - began
        rewards = environment.sample(selection.index, noise)
        began = time.perf_counter()
        report = bandit.tell(selection, rewards)
        seconds = asked + time.perf_counter() - began
        recommended = bandit.best().index
        history.record(
            index=selection.index.reshape(rows, -1),
            rewards=rewards.reshape(rows, -1),
            regret=environment.regret(selection.index).reshape(rows, -1),
            report=report,
            recommended=recommended.reshape(rows),
            simple_regret=environment.regret(recommended).reshape(rows),
            seconds=seconds,
        )
        if any([callback(bandit, selection, rewards, report) for callback in callbacks]):
            return history


def _check_arms(arms: Tensor) -> None:
    require(isinstance(arms, Tensor), f"arms must be a torch tensor A x d, got {type(arms).__name__}.", ShapeError)
    require(arms.dim() >= 2, f"arms must be A x d or batch_shape x A x d, got shape {tuple(arms.shape)}.", ShapeError)
    require(arms.shape[-1] > 0 and arms.numel() > 0, f"there are no arms: got shape {tuple(arms.shape)}.", ShapeError)
    require(
        arms.dtype in (torch.float32, torch.float64),
        f"arms must be float64 (accurate) or float32 (fast), got {arms.dtype}: convert with arms.double().",
        ShapeError,
    )
    finite = torch.isfinite(arms).all(dim=-1)
    if not bool(finite.all()):
        raise NonFiniteError(f"arm {(~finite).reshape(-1).nonzero()[0].item() % arms.shape[-2]} has a NaN or infinite feature.")


def _generators(
    generator: torch.Generator | Sequence[torch.Generator] | None, arms: Tensor, kernel: Any
) -> tuple[tuple[torch.Generator, ...], torch.Size]:
    """One generator a batch row, and the batch shape."""
    single = generator is None or isinstance(generator, torch.Generator)
    generators = (generator or torch.Generator().manual_seed(0),) if single else tuple(generator)  # type: ignore[arg-type]
    require(all(isinstance(g, torch.Generator) for g in generators), "generator must be a torch.Generator or a list of them.")
    own = torch.Size() if single else torch.Size([len(generators)])
    try:
        shape = torch.broadcast_shapes(arms.shape[:-2], own, getattr(kernel, "batch_shape", torch.Size()))
    except RuntimeError as error:
        raise ShapeError(
            f"batch shapes do not broadcast: arms {tuple(arms.shape[:-2])}, {len(generators)} generators, kernel "
            f"{tuple(getattr(kernel, 'batch_shape', ()))}."
        ) from error
    if len(generators) != shape.numel():
        raise ArgumentError(f"batch shape {tuple(shape)} needs {shape.numel()} generators, one a row, got {len(generators)}.")
    return generators, shape  # type: ignore[return-value]


def _joined(first: Selection, second: Selection) -> Selection:
    """Both selections in one, masked places last."""
    index = torch.cat([first.index, second.index], dim=-1)
    mask = torch.cat([first.mask, second.mask], dim=-1)
    order = (~mask).byte().argsort(dim=-1, stable=True)[..., : int(mask.sum(dim=-1).max())]
    points = torch.cat([first.points, second.points], dim=-2)
    points = points.gather(-2, order.unsqueeze(-1).expand(*order.shape, points.shape[-1]))
    return Selection(points, index.gather(-1, order), mask.gather(-1, order))
