"""An Optuna sampler over a fixed list of candidates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchbandits.checks import check_flag
from torchbandits.errors import ArgumentError, StateError, UnsupportedError, require
from torchbandits.plugins.pool import Pool
from torchbandits.policies import Policy
from torchbandits.types import Selection

try:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.study import StudyDirection
    from optuna.trial import TrialState
except ModuleNotFoundError:  # the constructor says what to install
    optuna, BaseSampler = None, object

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


class PoolSampler(BaseSampler):
    """Suggest nothing but the settings of a fixed list: products in stock, machines of a catalogue, a table of measurements.

    Each trial is given one candidate, and every `trial.suggest_…` returns that candidate's value of the parameter. The values
    must lie in the distributions that the objective suggests from. Finished trials of the study are learned, those of other
    processes and of an earlier session included, if their parameters are those of a candidate; trials that failed or were
    pruned teach nothing. Trials that run are pending. The study has one objective, and its direction is honoured.

    Args:
        candidates: The list: dictionaries of parameters by name, or a pandas table with one candidate per row.
        policy: As for `Bandit`; `auto()` by default.
        repeats: Whether a candidate may be evaluated again, which noisy objectives are worth.
        seed: Of the policy's random numbers.

    Raises:
        UnsupportedError: If Optuna is not installed, or for a study of several objectives.
        ArgumentError: If the candidates are no list of settings, lack a parameter that is suggested, or hold a value outside
            its distribution.
        StateError: If all candidates were evaluated, and may not be again.

    Cost: one ask per trial, O(A u) for A candidates and u evaluated ones with `auto()`.
    """

    def __init__(self, candidates: Any, *, policy: Policy | None = None, repeats: bool = True, seed: int | None = None) -> None:
        require(optuna is not None, 'PoolSampler needs Optuna: pip install "torchbandits[optuna]".', UnsupportedError)
        check_flag("repeats", repeats)
        self._pool = Pool(candidates, policy, seed)
        self._repeats = repeats
        self._offered = torch.ones(len(self._pool), dtype=torch.bool)
        self._open: dict[int, Selection] = {}  # pending picks by the number of their trial
        self._told: set[int] = set()
        self._lock = threading.RLock()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """None: distributions are those that the objective suggests from."""
        return {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """Nothing, see `sample_independent`."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The value of a parameter of the trial's candidate, which the first call chooses."""
        with self._lock:
            if trial.number not in self._open:
                self._learn(study)
                self._open[trial.number] = self._choose()
            setting = self._pool.setting(int(self._open[trial.number].index[0]))
        if param_name not in setting:
            raise ArgumentError(f"the candidates have no parameter {param_name!r}, only {', '.join(self._pool.names)}.")
        value = setting[param_name]
        require(
            _holds(param_distribution, value),
            f"{param_name}: the candidate has {value!r}, which is not in {param_distribution}: suggest it from a range that "
            "holds every candidate.",
        )
        return value

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Learn the result, or give up on it."""
        with self._lock:
            self._finish(study, trial.number, trial.params, values[0] if state == TrialState.COMPLETE and values else None)

    def reseed_rng(self) -> None:
        """Nothing: threads share the sampler, whose draws differ."""

    def _choose(self) -> Selection:
        none_left = "every candidate was evaluated, or is being evaluated: end the study, or pass repeats=True."
        require(bool(self._offered.any()), none_left, StateError)
        selection = self._pool.ask(1, self._offered)
        require(bool(selection.mask.any()), none_left, StateError)
        if not self._repeats:
            self._offered[int(selection.index[-1])] = False
        return selection[-1:]

    def _learn(self, study: Study) -> None:
        """Learn what other processes and earlier sessions have finished, and count as pending what they evaluate now."""
        require(len(study.directions) == 1, "PoolSampler maximises or minimises one objective, not several.", UnsupportedError)
        finished = (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)
        for trial in study.get_trials(deepcopy=False):
            if trial.number in self._told:
                continue
            if trial.state in finished:
                self._finish(study, trial.number, trial.params, trial.value if trial.state == TrialState.COMPLETE else None)
            elif trial.state == TrialState.RUNNING and trial.number not in self._open:
                row = self._pool.row_of(trial.params)
                if row is not None:
                    self._open[trial.number] = self._pool.wait_for(row)

    def _finish(self, study: Study, number: int, params: dict[str, Any], value: float | None) -> None:
        if number in self._told:
            return
        self._told.add(number)
        pending = self._open.pop(number, None)
        if value is None:
            if pending is not None:
                self._pool.bandit.forget(pending)
            return
        row = self._pool.row_of(params) if pending is None else int(pending.index[0])
        if row is None:
            return
        sign = -1.0 if study.direction == StudyDirection.MINIMIZE else 1.0
        index = torch.tensor([row]) if pending is None else pending
        self._pool.bandit.tell(index, torch.tensor([sign * value], dtype=torch.float64))
        if not self._repeats:
            self._offered[row] = False


def _holds(distribution: BaseDistribution, value: Any) -> bool:
    """Whether a distribution has the value."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return value in distribution.choices
    return isinstance(value, (int, float)) and distribution.low <= value <= distribution.high
