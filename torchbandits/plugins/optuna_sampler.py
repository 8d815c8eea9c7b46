"""An Optuna sampler over a fixed list of candidates."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchbandits.campaigns.offer import FAILURES
from torchbandits.checks import check_flag
from torchbandits.errors import ArgumentError, StateError, UnsupportedError, require
from torchbandits.plugins.pending import least_pending
from torchbandits.plugins.pool import Pool
from torchbandits.policies import Policy
from torchbandits.types import Selection

try:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.study import StudyDirection
    from optuna.trial import TrialState
except ModuleNotFoundError:  # the constructor names the package to install
    optuna, BaseSampler = None, object

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


_ROUNDING = 1e-8  # of a number of steps, as in Optuna


class PoolSampler(BaseSampler):
    """Suggest only settings of a fixed list, such as products in stock, machines of a catalogue or rows of a table of
    measurements.

    Each trial gets one candidate, and every `trial.suggest_…` returns the value of the parameter in this candidate. The values
    must lie in the distributions that the objective suggests. Parameters that were fixed (`study.enqueue_trial`,
    `PartialFixedSampler`) keep their values, and the candidate is chosen among those with these values. The sampler learns from
    finished trials of the study, those of other processes and of earlier sessions included, if their parameters are those of a
    candidate. Trials that failed, or returned a value whose square is infinite, teach `auto` which candidates are likely to
    fail; pruned ones teach nothing. Running trials are pending. Objectives are minimised or maximised as the study says; of
    several, trade-offs are sought (`outcomes.pareto`).

    Args:
        candidates: The list: dictionaries of parameters by name, or a pandas table with one candidate per row.
        policy: As for `Bandit`; `auto()` by default. For a study of several objectives it is the model of each.
        repeats: Whether a candidate may be evaluated again, which is useful for noisy objectives, except one of which two
            trials failed or were pruned and none has a result. By default, under a policy whose kernel is estimated, such as
            `auto`, while that teaches something, see `Campaign.ask`. If False, a candidate whose trial failed is not evaluated
            again either.
        seed: Seed of the policy's random numbers.

    Raises:
        UnsupportedError: If Optuna is not installed, or if the policy is no model of one of several objectives.
        ArgumentError: If the candidates are not a list of settings, lack a suggested parameter, or have a value outside its
            distribution; or if no candidate has the fixed values.
        StateError: If all candidates were evaluated and `repeats` is False; or in another study than before, whose trials have
            the same numbers.

    Cost: one ask per trial, O(A u) for A candidates and u evaluated ones with `auto()`.
    """

    def __init__(
        self, candidates: Any, *, policy: Policy | None = None, repeats: bool | None = None, seed: int | None = None
    ) -> None:
        require(optuna is not None, 'PoolSampler needs Optuna: pip install "torchbandits[optuna]".', UnsupportedError)
        check_flag("repeats", repeats, optional=True)
        self._pool = Pool(candidates, policy, seed)
        self._repeats = repeats
        # Which candidates were evaluated.
        self._seen = torch.zeros(len(self._pool), dtype=torch.bool)
        # Which candidates have a result, and how many trials of each had none.
        self._measured, self._lost = torch.zeros_like(self._seen), torch.zeros(len(self._pool), dtype=torch.int64)
        self._open: dict[int, Selection] = {}  # pending picks by the number of their trial
        self._told: set[int] = set()
        self._study: str | None = None  # name of the study
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """No distributions, since those of the objective are used."""
        return {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """No values; see `sample_independent`."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The value of a parameter of the trial's candidate, which the first call chooses."""
        if param_name not in self._pool.names:
            raise ArgumentError(f"the candidates have no parameter {param_name!r}, only {', '.join(self._pool.names)}.")
        fixed = {**_fixed_by(study.sampler), **trial.system_attrs.get("fixed_params", {}), **trial.params}
        with self._lock:
            ended = (
                f"trial {trial.number} of the study {study.study_name!r} has ended, or this PoolSampler has learned another "
                "study of that name: make another PoolSampler."
            )
            require(trial.number not in self._told, ended, StateError)
            picked = self._open.get(trial.number)
            # A parameter may have been fixed to another value after the candidate was chosen.
            if picked is not None and not self._pool.agrees(int(picked.index[0]), fixed):
                self._give_up(trial.number)
            if trial.number not in self._open:
                self._learn(study, but=trial.number)
                self._open[trial.number] = self._choose(fixed)
            setting = self._pool.setting(int(self._open[trial.number].index[0]))
        if param_name not in setting:
            raise ArgumentError(f"the candidate {setting} has no parameter {param_name!r}, which the objective suggests.")
        value = setting[param_name]
        require(
            _holds(param_distribution, value),
            f"{param_name}: the candidate has {value!r}, which is not in {param_distribution}: suggest it from a range that "
            "holds every candidate.",
        )
        # The distribution's own type: an empty cell makes floats of a table's integers.
        return param_distribution.to_external_repr(param_distribution.to_internal_repr(value))

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Learn the result, or give up the trial."""
        with self._lock:
            own = values if state == TrialState.COMPLETE and values else None
            self._finish(study, trial.number, trial.params, own, state == TrialState.PRUNED)

    def reseed_rng(self) -> None:
        """Do nothing: threads share the sampler, whose draws differ."""

    def _choose(self, fixed: dict[str, Any]) -> Selection:
        """Choose a candidate with the values that were fixed."""
        having = self._pool.having(fixed)
        own = {name: value for name, value in fixed.items() if name in self._pool.names}
        require(bool(having.any()), f"no candidate has {own}, which the trial was given: fix parameters to values of one.")
        offered = having & ~self._seen if self._repeats is False else having
        hopeful = offered & (self._measured | (self._lost < FAILURES))
        offered = hopeful if bool(hopeful.any()) else offered
        loop = self._pool.bandit.loop
        if self._repeats is None and (known := loop.policy.known_arms(loop.state)) is not None:
            offered = offered & ~known if bool((offered & ~known).any()) else offered
        if self._repeats is False:
            for picked in self._open.values():
                offered &= ~self._pool.same(int(picked.index[0]))
        selection = self._pool.ask(1, offered)
        with_these = f" with {own}" if own else ""
        none_left = f"every candidate{with_these} was evaluated, or is being evaluated: end the study, or pass repeats=True."
        require(bool(offered.any()), none_left, StateError)
        # A policy such as `auto` pulls an arm once at a time, and there may be more trials at a time than candidates.
        return selection if len(selection) else self._pool.wait_for(least_pending(self._pool.bandit, offered))

    def _learn(self, study: Study, but: int | None = None) -> None:
        """Learn the trials that other processes and earlier sessions have finished, and count their running trials as pending,
        except for one given trial."""
        self._check_study(study)
        finished = (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)
        for trial in study.get_trials(deepcopy=False):
            if trial.number in self._told or trial.number == but:
                continue
            if trial.state in finished:
                values = trial.values if trial.state == TrialState.COMPLETE else None
                self._finish(study, trial.number, trial.params, values, trial.state == TrialState.PRUNED)
            elif trial.state == TrialState.RUNNING and trial.number not in self._open:
                row = self._pool.row_of(trial.params)
                if row is not None:
                    self._open[trial.number] = self._pool.wait_for(row)

    def _finish(self, study: Study, number: int, params: dict[str, Any], values: Sequence[float] | None, pruned: bool) -> None:
        """Learn a finished trial; without finite values it has failed, unless it was pruned."""
        self._check_study(study)
        if number in self._told:
            return
        picked = self._open.get(number)
        if picked is not None and not self._pool.agrees(int(picked.index[0]), params):
            self._give_up(number)
            picked = None
        row = self._pool.row_of(params) if picked is None else int(picked.index[0])
        # The square belongs to what is learned.
        if values is None or not all(math.isfinite(value * value) for value in values):
            if row is None or pruned:
                self._give_up(number)
            else:
                self._pool.tell(torch.tensor([row]) if picked is None else picked, [math.nan] * len(study.directions))
                self._open.pop(number, None)
            if row is not None:
                self._lost[self._pool.same(row)] += 1
        elif row is not None:
            # Of several objectives the policy knows the directions.
            alone = study.directions == [StudyDirection.MINIMIZE]
            self._pool.tell(torch.tensor([row]) if picked is None else picked, [-v if alone else v for v in values])
            self._open.pop(number, None)
            self._measured |= self._pool.same(row)
        # Last, so that the next call learns a trial that could not be told.
        self._told.add(number)
        if row is not None and self._repeats is False:
            self._seen |= self._pool.same(row)

    def _check_study(self, study: Study) -> None:
        """Refuse another study than before."""
        name = study.study_name
        if self._study is None and len(study.directions) > 1:
            self._pool.with_objectives([direction == StudyDirection.MINIMIZE for direction in study.directions])
        self._study = name if self._study is None else self._study
        message = f"this PoolSampler has learned the study {self._study!r}: make another one for the study {name!r}."
        require(name == self._study, message, StateError)

    def _give_up(self, number: int) -> None:
        """Forget the pick of a trial, if it has one."""
        picked = self._open.pop(number, None)
        if picked is not None:
            self._pool.bandit.forget(picked)


def _fixed_by(sampler: BaseSampler) -> dict[str, Any]:
    """The parameters that Optuna's `PartialFixedSampler` fixes, which may wrap this sampler and does not pass them on."""
    fixed: dict[str, Any] = {}
    while isinstance(sampler, optuna.samplers.PartialFixedSampler):
        held = vars(sampler)
        fixed, sampler = {**held["_fixed_params"], **fixed}, held["_base_sampler"]
    return fixed


def _holds(distribution: BaseDistribution, value: Any) -> bool:
    """Whether a distribution has the value."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return value in distribution.choices
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    number = whole if isinstance(distribution, optuna.distributions.IntDistribution) else isinstance(value, (int, float))
    if not number or not distribution.low <= value <= distribution.high:
        return False
    steps = 0.0 if distribution.step is None else (value - distribution.low) / distribution.step
    return abs(steps - round(steps)) < _ROUNDING
