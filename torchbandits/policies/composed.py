"""The common engine: a policy that is defined by its choice of ingredients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms import ArmRows, ArmTable, Box, PosteriorDraws, Shard
from torchbandits.arms.directions import Leaders
from torchbandits.arms.leaders import pack
from torchbandits.batching import BatchRule, FixedSize, RandomizedBeliever
from torchbandits.checks import (
    check_instance,
    check_kernel_on,
    check_memory_budget,
    check_model,
    check_resolution,
    check_whole,
    non_negative,
    number,
)
from torchbandits.embeddings import FeatureMap, FiniteEmbedding, Spectrum
from torchbandits.errors import ShapeError, UnsupportedError, require
from torchbandits.fitting import advice_of_schedule, fit_kernel_
from torchbandits.gradients import without_gradients
from torchbandits.kernels import kernel_diagonal
from torchbandits.memory import KeepAll, Memory, SteadySampling
from torchbandits.policies.base import FROM_BOX, Policy
from torchbandits.policies.box_picking import check_for_box, pick_in_box
from torchbandits.policies.from_data import FromData
from torchbandits.policies.learning import learn, learn_kernel, learn_together
from torchbandits.policies.picking import Picker, first_picks, on_offer, room_for, scorer, upper_bounds, with_first
from torchbandits.policies.repeats import known_arms, warn_of_repeats
from torchbandits.policies.reweighting import Reweighting
from torchbandits.policies.state import BoxState, TableState
from torchbandits.posteriors import GaussianProcess
from torchbandits.scores import UCB, MostProbable, PerCost, PosteriorDraw, Score, base_of
from torchbandits.sources import ArmSet, ArmSource
from torchbandits.starts import Start
from torchbandits.streams import copies_of, only_advancing
from torchbandits.transfers import to_device, to_host
from torchbandits.types import Evidence, FitReport, Generators, Points, Pulls, Selection
from torchbandits.widths import Width
from torchbandits.widths.base import check_rows
from torchbandits.widths.randomized import draw_width, is_random


@dataclass(frozen=True, repr=False)
class Composed(Policy[TableState | BoxState]):
    """A policy that combines an embedding, a memory, a score, a width and a batch rule.

    Args:
        kernel: Any GPyTorch kernel; its batch shape becomes batch rows.
        noise_std: Sub-Gaussian constant of the noise, reward units.
        confidence: Multiplier of the posterior standard deviation.
        regularization: λ, reward units squared.
        memory: Part of the data that the posterior keeps: everything (exact), informative pulls, a sampled dictionary
            (Nyström), or a sketch.
        features: Finite features that approximate the kernel; None for the kernel itself.
        score: Acquisition value of an arm.
        batch_rule: Rule that ends a batch.
        prior_mean: Mean of the rewards before data: a number, or `"estimate"` for the average of the rewards told so far.
        initial: Rule for the first picks; None for the argmax of the prior.
        memory_budget: Bytes that cached kernel columns may take; None for 2 GiB, or half of the free memory of a GPU.
        refit_every: Refit the kernel each time the number of pulls passes a multiple of this number; None for never, because
            the theory assumes a known kernel.
        from_data: Estimator that replaces `kernel`, `noise_std` and the units of rewards by estimates from the data; None to
            use the given values.
    """

    kernel: gpytorch.kernels.Kernel
    noise_std: float
    confidence: Width
    regularization: float
    memory: Memory = field(default_factory=KeepAll)
    features: FeatureMap | None = None
    score: Score | PosteriorDraw = field(default_factory=UCB)
    batch_rule: BatchRule = field(default_factory=FixedSize)
    prior_mean: float | str = 0.0
    initial: Start | None = None
    memory_budget: int | None = None
    refit_every: int | None = None
    from_data: FromData | None = None

    def __post_init__(self) -> None:
        # Numbers of a fitted model may be tensors with a gradient.
        for name in ("noise_std", "regularization", "prior_mean"):
            object.__setattr__(self, name, number(getattr(self, name)))
        check_model(self.kernel, self.regularization, self.prior_mean)
        wanted = "a torchbandits.widths.Width, such as widths.Constant(2.0)"
        check_instance("width (confidence of Composed)", self.confidence, Width, wanted)
        non_negative("noise_std", self.noise_std)
        check_instance("initial", self.initial, Start | None, "a torchbandits.starts.Start, such as starts.uniform(1), or None")
        ingredients = (("memory", Memory), ("score", Score | PosteriorDraw), ("batch_rule", BatchRule))
        optional = (("features", FeatureMap | None), ("from_data", FromData | None))
        for name, kind in (*ingredients, *optional):
            given = getattr(self, name)
            require(isinstance(given, kind), f"{name} must be one of torchbandits.ingredients, got {given!r}.")
        _check_score(base_of(self.score), self.batch_rule)
        message = "auto weights rewards by its own rules: take gp_ucb, gp_bucb or thompson_sampling for robust or forgetting."
        require(self.from_data is None or self.reweighting is None, message, UnsupportedError)
        check_memory_budget(self.memory_budget)
        check_whole("refit_every", self.refit_every, otherwise="to keep the kernel as it is")
        fits = self.refit_every is None or any(parameter.requires_grad for parameter in self.kernel.parameters())
        message = (
            f"refit_every: the kernel ({type(self.kernel).__name__}) has no parameter that requires a gradient: there is "
            "nothing to fit. Leave out refit_every, or call kernel.requires_grad_(True)."
        )
        require(fits, message)

    # ------------------------------------------------------------------ the contract

    @property
    def reweighting(self) -> Reweighting | None:
        """The memory, if it changes the weights of what it keeps."""
        return self.memory if isinstance(self.memory, Reweighting) else None

    @property
    def draws_on_update(self) -> bool:
        """Whether `update` may advance the generators: True if the dictionary is sampled, or if the model is estimated from the
        data."""
        return self.memory.sparse or self.from_data is not None

    @property
    def most_picks(self) -> int | None:
        """The maximum number of picks that the batch rule allows; None if first picks may come as one batch."""
        return None if self.initial is not None else self.batch_rule.max_batch_size

    @property
    def full_batch(self) -> int:
        """The maximum number of picks that the batch rule allows; 1 if it sets none."""
        return self.batch_rule.max_batch_size or 1

    @property
    def needs_costs(self) -> bool:
        """Whether the score is divided by costs."""
        return isinstance(self.score, PerCost)

    @property
    def learns_failures(self) -> bool:
        """Whether arms that are likely to fail are left out: True if the kernel is estimated, and there is no guarantee."""
        return self.from_data is not None or self.refit_every is not None

    @property
    def memory_of_failures(self) -> int | None:
        """Bytes that the model of failures may take: the memory budget."""
        return self.memory_budget

    @property
    def streams(self) -> bool:
        """Whether arms may be read piece by piece: True unless the finite features of all arms are stored."""
        return self.features is None

    @property
    def shards(self) -> bool:
        """Whether arms may be distributed over ranks. This requires a sampled dictionary, upper bounds as scores, a batch rule
        that depends on the picks alone, and no first picks."""
        plain = self.initial is None and self.refit_every is None and self.features is None
        return self.memory.sparse and plain and isinstance(self.score, UCB) and self.batch_rule.budget is not None

    @without_gradients
    def init(self, arms: ArmSet, generators: Generators, batch_shape: torch.Size) -> TableState:
        """Make a fresh state; the kernel is deep-copied into its posterior. Cost O(A (d + log A)), and O(A m d) for
        features."""
        if isinstance(arms, Shard):
            kernel = {name: value.tolist() for name, value in self.kernel.state_dict().items()}
            described = {f.name: repr(getattr(self, f.name)) for f in fields(self) if f.name != "memory_budget"}
            states = [generator.get_state().tolist() for generator in generators]
            arms.across.check_same("policy, kernel and generators", (described, kernel, states))
        posterior = self._posterior(arms, generators, batch_shape)
        state = self._state(ArmRows(arms, batch_shape), posterior, generators)
        if self.reweighting is not None:
            self.reweighting.begin_(state)
        return state

    @without_gradients
    def init_box(self, box: Tensor, generators: Generators, batch_shape: torch.Size) -> BoxState:
        """Make a fresh state on a box. Its arms are the picked points; arm 0 is the centre, which is the first pick if the
        prior is constant. In a box, EI and PI are relative to the highest mean of the pulled points.

        Raises:
            UnsupportedError: For a score per cost, a width that depends on the number of arms, a batch rule that depends on all
                arms, draws of the posterior under a kernel without known spectrum, and first picks that depend on all arms.
        """
        message = "auto measures features over given arms: pass arms=, such as points of the box, or take gp_ucb with a kernel."
        require(self.from_data is None, message, UnsupportedError)
        require(
            not self._draws_width, "random widths are drawn for given arms: pass arms, or another width=.", UnsupportedError
        )
        check_for_box(self.score, self.confidence, self.batch_rule, Spectrum.of(self.kernel), self.features)
        # Raise the errors of the first call of `select` here, when the bandit is made.
        if self.initial is not None:
            none = torch.zeros(batch_shape, dtype=torch.int64, device=box.device)
            self.initial.points(box.expand(*batch_shape, -1, -1), none, none, generators)
        posterior = self._posterior(box, generators, batch_shape)
        rows = Box.centre(box, batch_shape)
        state = BoxState(Box(rows, posterior, box), generators, counts_batches="batches" in self.confidence.reads)
        if self.reweighting is not None:
            self.reweighting.begin_(state)
        return state

    def _posterior(self, arms: ArmSet, generators: Generators, batch_shape: torch.Size) -> GaussianProcess:
        """The prior, for arms or the corners of a box. Random features are drawn here."""
        kernel, units = (self.kernel, None) if self.from_data is None else self.from_data.prior(arms, batch_shape)
        check_kernel_on(_first(arms), kernel, batch_shape, kernel_diagonal)
        check_rows(self.confidence, batch_shape)
        if self.memory.sparse:
            check_resolution(_first(arms), kernel, self.regularization, kernel_diagonal)
        finite = None
        if self.features is not None:
            assert isinstance(arms, Tensor)
            finite = self.features.build(self.kernel, arms, generators, batch_shape)
            _check_features(type(self.features).__name__, finite, arms)
        return GaussianProcess(
            kernel,
            self.regularization,
            dim=arms.shape[-1],
            batch_shape=batch_shape,
            sparse=self.memory.sparse,
            prior_mean=self.prior_mean,
            finite=finite,
            units=units,
            sketch=self.memory.sketch(finite, batch_shape, arms.device),
            device=arms.device,
        )

    def _state(self, rows: ArmRows, posterior: GaussianProcess, generators: Generators) -> TableState:
        """Make a state of this posterior on these arms."""
        table = ArmTable(rows, posterior, self.memory_budget)
        base = base_of(self.score)
        draws = PosteriorDraws(table, base.num_features) if isinstance(base, PosteriorDraw) else None
        return TableState(table, generators, draws=draws, counts_batches="batches" in self.confidence.reads)

    @without_gradients
    def set_arms(self, state: TableState | BoxState, arms: ArmSet) -> TableState:
        """Return a state of the same posterior on other arms. Cost O(A u (u + d)) for an exact posterior, O(A m (m + d)) for a
        sparse one."""
        require(isinstance(state, TableState), FROM_BOX, UnsupportedError)
        message = "arms on several ranks can't be replaced: make a new Bandit on the new Shard, and observe() the data."
        require(not state.rows.sharded and not isinstance(arms, Shard), message, UnsupportedError)
        check_kernel_on(_first(arms), state.posterior.kernel, state.rows.batch_shape, kernel_diagonal)
        finite = state.posterior.finite
        if finite is not None and isinstance(arms, Tensor) and not finite.holds_at(arms):
            raise UnsupportedError(
                "quadrature features are valid in the box of the first arms, and these arms leave it: start with arms "
                "at its corners, or use embedding='rff'."
            )
        posterior = state.posterior
        moved = self._state(state.rows.moved(arms, posterior.statistics), posterior, state.generators)
        warm = posterior.factorised
        moved.table.sweep_()
        if not warm and not posterior.sparse and posterior.finite is None:
            posterior.invalidate_()
        moved.continuing_(state)
        if self.reweighting is not None:
            self.reweighting.carry_(state, moved)
        if self.from_data is not None:
            self.from_data.follow(moved, state.rows.source)
        return moved

    @without_gradients
    def select(
        self,
        state: TableState | BoxState,
        *,
        limit: Tensor | None = None,
        available: Tensor | None = None,
        exactly: int | None = None,
    ) -> tuple[Selection, Evidence]:
        """Select arms by the score until the batch rule ends the batch; the first picks come from `initial`. Cost O(A) per
        round and O(1) per further pick; in a box one maximisation per pick, see `pick_in_box`."""
        rule: BatchRule = self.batch_rule if exactly is None else self.batch_rule.exactly(exactly)
        if isinstance(state, BoxState):
            require(available is None, "available= names arms, and a box has none: leave it out.", UnsupportedError)
            return self._in_box(state, rule, limit)
        rows = state.rows
        width = self.width(state)
        offered = on_offer(rows, available)
        remaining = room_for(state, rule.max_batch_size, limit)
        twins = copies_of(state.generators) if state.opening or self._draws_picks else ()
        fill = exactly is not None and self.from_data is not None
        opened = first_picks(state, self.initial, remaining, offered, twins, fill) if state.opening else None
        if opened is not None:
            remaining = remaining.masked_fill(opened[1], 0)
        if self._draws_width:
            width = self._drawn_width(state, remaining, twins)
        picker = Picker(state, self.score, rule, width)
        due = None if self.from_data is None or self._draws_picks else self.from_data.replicates(state, remaining, offered)
        again = None if due is None else picker.recommended(offered, due)
        if again is not None:
            remaining = remaining - (again >= 0).sum(dim=-1).cpu()
        index, values = picker.pick(offered, remaining, twins)
        if again is not None:
            index = pack(torch.cat([index, again], dim=-1))
        if opened is not None:
            index, values = with_first(*opened, index), None
        slot = index.clamp_min(0)
        leverage, values = picker.evidence(index, slot, values)
        states = tuple(twin.get_state() for twin in twins) if twins else ()
        return Selection(rows.at(slot), index, index >= 0), Evidence(values, leverage, width, states)

    def _in_box(self, state: BoxState, rule: BatchRule, limit: Tensor | None) -> tuple[Selection, Evidence]:
        """Call `pick_in_box` on the host copy of the state if there is one, and return the picks on the device of the box."""
        searched = state.here()
        picks, evidence = pick_in_box(searched, self.score, rule, self.width(searched), self.initial, limit)
        if searched is state:
            return picks, evidence
        tensors = (picks.points, picks.index, picks.mask, evidence.score, evidence.leverage, evidence.width)
        there = to_device(state.pending_index.device, *tensors)
        return Selection(*there[:3]), Evidence(there[3], there[4], there[5], evidence.generator_states)

    @cached_property
    def _draws_picks(self) -> bool:
        """Whether picks after the first picks are random: by a draw of the posterior, a random width, or drawn rewards."""
        base = base_of(self.score)
        drawn = isinstance(base, PosteriorDraw | MostProbable) or isinstance(self.batch_rule, RandomizedBeliever)
        return drawn or self._draws_width

    @cached_property
    def _draws_width(self) -> bool:
        """Whether the width is drawn for every ask."""
        return is_random(self.confidence)

    def _drawn_width(self, state: TableState, remaining: Tensor, twins: Generators) -> Tensor:
        """The width of this ask, `batch_shape`: a draw in rows that pick, and the root mean square, without a draw, in
        others."""
        picks, width = remaining > 0, self.width(state)
        with only_advancing(twins, picks):
            drawn = draw_width(self.confidence, state.progress(self.confidence.reads), twins)
        return torch.where(to_device(width.device, picks)[0], to_device(width.device, drawn)[0], width)

    @without_gradients
    def update(self, state: TableState | BoxState, pulls: Pulls) -> TableState | BoxState:
        """Add the pulls, choose a new dictionary, and update means and leverages; see `learn` for the cost."""
        reweighting = self.memory if isinstance(self.memory, Reweighting) else None
        plain = self.refit_every is None and reweighting is None
        if isinstance(state, BoxState) and plain and (copy := state.host_copy) is not None:
            state.forget_derived_()
            on_host = pulls.here()
            copy.change_(lambda own: self.update(own, on_host))
            return state
        if reweighting is not None:
            pulls = reweighting.before_(state, pulls, self._noise_of_model(state))
        upper = state.derived.upper
        leaders = None if upper is None else lambda count: upper.topk(min(count, upper.shape[-1]), dim=-1).indices
        state.forget_derived_()
        if self.from_data is None:
            learn(state, pulls, self.memory, leaders)
        else:
            self._learn_from_data(self.from_data, state, pulls, leaders)
        if self.refit_every is not None:
            grown = state.told_with(pulls) // self.refit_every > state.sum_on_host("told") // self.refit_every
            if bool(grown.any()):
                rows = to_device(state.rows.source.device, grown)[0]
                self.refit(state, rows=rows, advice=advice_of_schedule(self.refit_every))
        table = state.table if isinstance(state, TableState) else None
        if state.scale.due(state.rows.arm_of_row.shape[-1], self.refit_every):
            share = noise_share(self.noise_std, self.regularization)
            state.scale.look(state.posterior, table, share, _weight_of_rows(state))
        # The warning is only for estimated kernels: with a kernel chosen by the user, a converged run may repeat its best arm.
        if self.from_data is not None:
            state.remember_(pulls)
            warn_of_repeats(state, self.confidence, self._noise_of_model(state))
        if reweighting is not None:
            reweighting.after_(state, pulls)
        return state

    def _learn_from_data(
        self, from_data: FromData, state: TableState | BoxState, pulls: Pulls, leaders: Leaders | None
    ) -> None:
        """Learn pulls in the units of the model, and refit what is due."""
        pulls = from_data.in_dtype_of_arms(state, pulls)
        from_data.record_forecasts_(state, pulls)
        from_data.make_room(state, pulls)
        # A posterior that exceeded its memory budget keeps a dictionary.
        memory = SteadySampling() if state.posterior.sparse and not self.memory.sparse else self.memory
        due = from_data.due(state, pulls)
        # A refit of all batch rows sweeps the arms, so updating the arms before it would be wasted work.
        learn(state, from_data.in_model_units(state, pulls), memory, leaders, swept_next=bool(due.all()))
        from_data.learn(state, pulls, due)

    def draws_on_select(self, state: TableState | BoxState) -> bool:
        """Whether `select` may advance the generators: for draws of the posterior, and until the first picks are over."""
        drawn = self._draws_picks if isinstance(state, TableState) else False
        return drawn or (self.initial is not None and state.opening)

    def opens(self, state: TableState | BoxState) -> bool:
        """Whether there may be further first picks, which end a batch."""
        return self.initial is not None and state.opening

    def learns_together(self, state: TableState | BoxState) -> bool:
        """Whether several tells may be learned at once: True for an exact posterior or finite features with a fixed kernel on
        given arms, because the result then depends on the summed observations alone."""
        whole = not self.memory.sparse and not self.memory.selective and self.refit_every is None and self.reweighting is None
        plain = self.from_data is None and isinstance(state, TableState)
        return whole and plain and state.posterior.sketch is None

    @without_gradients
    def update_together(self, state: TableState | BoxState, pulls: Pulls, sizes: Sequence[int]) -> TableState | BoxState:
        """Learn several tells by one update; see `learn_together`."""
        if not (self.learns_together(state) and isinstance(state, TableState)):
            return super().update_together(state, pulls, sizes)
        state.forget_derived_()
        learn_together(state, pulls, sizes)
        state.add_told_(pulls.num_rewards)
        return state

    def noise_variance(self, state: TableState | BoxState) -> float | None:
        """The noise variance of a reward of weight 1: noise_std², or its fitted value. None if the noise is estimated from
        data, if the memory selects pulls by their number, or if a sketch has one row per tell."""
        if self.from_data is not None or self.memory.selective or state.posterior.sketch is not None:
            return None
        return self._noise_of_model(state)

    def _noise_of_model(self, state: TableState | BoxState) -> float:
        """The noise variance of a reward of weight 1, in the units of the model."""
        return noise_share(self.noise_std, self.regularization) * state.posterior.regularization

    @property
    def pulls_once(self) -> bool:
        """Whether the batch rule allows one pull of an arm at a time."""
        return self.batch_rule.max_pulls == 1

    @property
    def takes_blocks(self) -> bool:
        """Whether the shifts of blocks can be estimated, which needs a kernel that is estimated, too."""
        return self.from_data is not None

    def known_arms(self, state: TableState | BoxState) -> Tensor | None:
        """Arms of which another pull would teach little, `batch_shape x A` booleans, if the kernel is estimated; None if there
        are none. Cost O(A + u)."""
        if not self.learns_failures or not isinstance(state, TableState) or not state.statistics.size:
            return None
        known = known_arms(state, self._noise_of_model(state))
        return known if bool(known.any()) else None

    def scores_at(self, state: TableState | BoxState, points: Points) -> Tensor:
        """The scores of any points, `batch_shape x n`, differentiable: UCB, EI or PI. Cost O(n m (m + d)).

        Raises:
            UnsupportedError: For a policy with random picks, and for a policy that divides scores by costs.
        """
        if not isinstance(self.score, Score) or isinstance(self.score, PerCost):
            raise UnsupportedError(
                "a draw of the posterior, and a score per cost, are of arms only: use gp_ucb, bkb or batch_bkb."
            )
        posterior = state.posterior
        pending = posterior.hallucinated(posterior.pending_points, posterior.pending)
        return scorer(state, self.score, self.width(state), pending)(points)

    @without_gradients
    def refit(
        self, state: TableState | BoxState, *, noise: bool = False, rows: Tensor | None = None, **options: Any
    ) -> FitReport:
        """Fit the kernel, and with `noise` the noise variance and λ in a fixed ratio; see `fit_kernel_` and `learn_kernel`."""
        require(
            not (noise and self.memory.selective),
            "the entropy threshold belongs to its λ: pass the noise_std that you know to compressed_gp, and noise=False.",
            UnsupportedError,
        )
        require(
            not (noise and state.posterior.weighted),
            "the noise variances that were told with noise_var= are relative to the policy's noise, which therefore is not "
            "fitted: leave noise=False.",
            UnsupportedError,
        )
        message = "a kernel is fitted by one rank: start every rank with the fitted kernel, and observe() the data."
        require(not state.rows.sharded, message, UnsupportedError)
        if self.from_data is not None:
            require(not options, f"auto fits by its own rules: leave out {', '.join(options)}.", UnsupportedError)
            return self.from_data.refit(state, torch.ones_like(state.told, dtype=torch.bool) if rows is None else rows)
        share = noise_share(self.noise_std, self.regularization)
        weight = _weight_of_rows(state)
        report = fit_kernel_(state.posterior, noise=noise, noise_share=share, weight=weight, rows=rows, **options)
        learn_kernel(state, report.accepted)
        return report

    def width(self, state: TableState | BoxState) -> Tensor:
        """The confidence width for the next pick, `batch_shape`."""
        if state.derived.width is None:
            confidence = self.confidence if self.from_data is None else self.from_data.width(state, self.confidence)
            progress, device = state.progress(confidence.reads), state.pending_index.device
            width = confidence(progress)
            if not isinstance(width, Tensor) or width.shape != progress.pulls.shape:
                got = tuple(width.shape) if isinstance(width, Tensor) else type(width).__name__
                raise ShapeError(
                    f"the width {type(confidence).__name__} must give a tensor with one number per batch row, of the shape "
                    f"{tuple(progress.pulls.shape)}, got {got}."
                )
            state.derived.width_on_host = state.derived.width = width
            if width.device != device:
                state.derived.width = to_device(device, width)[0]
            elif device.type != "cpu":
                state.derived.width_on_host = None
        return state.derived.width

    def width_on_host(self, state: TableState | BoxState) -> Tensor:
        """The width on the host."""
        width = self.width(state)
        return width if state.derived.width_on_host is None else state.derived.width_on_host

    def bounds(self, state: TableState | BoxState) -> tuple[Tensor, Tensor] | None:
        """The largest upper and the largest lower confidence bound over the arms, reward units, copied to the host unless the
        units are estimated from data. None in a box, where the largest upper bound is unknown; there `NumericalError` is raised
        if the posterior is not finite."""
        if isinstance(state, BoxState):
            state.here().box.check_finite()
            return None
        across, width, derived = state.rows.across, self.width(state), state.derived
        compiled = state.posterior.sparse and state.posterior.units is None and derived.upper is None
        if compiled and (found := state.table.bounds(width)) is not None:
            derived.upper, derived.highest, lower, derived.best = found
            derived.upper_of = width
            return derived.highest, lower
        upper = upper_bounds(state, width)
        # After a compiled pass no other marginals are known.
        mean = state.table.mean() if derived.marginals is None else derived.marginals[0]
        largest, lower = across.amax(upper), across.amin(torch.sub(upper, mean, alpha=2))
        if largest.device.type != "cpu" and state.posterior.units is None:
            # One copy for all three, because each copy waits for the device.
            known = derived.width_on_host
            largest, lower, *own = to_host(largest, lower, *([] if known is not None else [width]))
            derived.width_on_host = own[0] if own else known
        if largest.device.type == "cpu":
            derived.highest = largest
        lower = -lower
        if (units := state.posterior.units) is not None:
            largest, lower = units.to_rewards(torch.stack([largest, lower], dim=-1)).unbind(dim=-1)
        return largest, lower


def _check_score(score: Score | PosteriorDraw, rule: BatchRule) -> None:
    """Refuse a score that policies would not call, and a batch rule that does not end batches of this score."""
    name = type(score).__name__
    for kind in (UCB, PosteriorDraw, MostProbable):
        message = f"{name} derives from {kind.__name__}, which policies compute without a call: use Score."
        require(not isinstance(score, kind) or type(score) is kind, message, UnsupportedError)
    if isinstance(score, UCB):
        return
    # Draws are made in batches of a known size. Other scores are evaluated anew after each pick.
    draws = isinstance(score, PosteriorDraw | MostProbable)
    ends = (rule.max_batch_size if draws else rule.budget) is not None
    message = (
        f"the rule {type(rule).__name__} ends batches of upper confidence bounds, and the score is {name}: use "
        f"{'FixedSize' if draws else 'Global, Product or FixedSize'}."
    )
    require(ends, message, UnsupportedError)


def _check_features(name: str, finite: Any, arms: Tensor) -> None:
    """Refuse what a user's `FeatureMap` builds if it is no embedding, or its features have another shape or type."""
    known = isinstance(finite, FiniteEmbedding)
    require(known, f"build of the features {name} must return a FiniteEmbedding, got {type(finite).__name__}.")
    z, size = finite(arms[..., :1, :]), finite.num_features
    got = f"{tuple(z.shape)} of {z.dtype}" if isinstance(z, Tensor) else type(z).__name__
    fits = isinstance(z, Tensor) and z.dtype == torch.float64 and z.shape[-2:] == (size, 1)
    message = f"the features {name} of one point must be float64 numbers of the shape batch_shape x {size} x 1, got {got}."
    require(fits, message, ShapeError)


def _first(arms: ArmSet) -> Tensor:
    """The first arm, `... x 1 x d`."""
    return arms.chunk(slice(0, 1)) if isinstance(arms, ArmSource) else arms[..., :1, :]


def _weight_of_rows(state: TableState | BoxState) -> Tensor | None:
    """The weight of a pull in each batch row; None if it is 1."""
    return None if state.pull_weight is None else state.pull_weight.squeeze(-1)


def noise_share(noise_std: float, regularization: float) -> float:
    """The ratio noise_std² / λ, which fits do not change. If noise_std is 0, the noise variance is taken to be λ."""
    return noise_std**2 / regularization or 1.0
