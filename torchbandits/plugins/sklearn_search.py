"""A hyper-parameter search over a list of settings, with the interface of scikit-learn's searches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from torchbandits.checks import check_whole, is_whole
from torchbandits.errors import UnsupportedError, require
from torchbandits.plugins.pool import Pool
from torchbandits.policies import Policy

try:
    from sklearn.exceptions import FitFailedWarning
    from sklearn.model_selection._search import BaseSearchCV  # scikit-learn's extension point: skopt and others build on it
except ModuleNotFoundError:  # the constructor says what to install
    BaseSearchCV = None

_REFIT = "with several scorings, refit must name the one that is maximised, such as 'accuracy'."
_LARGEST = np.sqrt(np.finfo(np.float64).max)


class CandidateSearchCV(object if BaseSearchCV is None else BaseSearchCV):  # type: ignore[misc]
    """Cross-validated search for the best setting of a list of 10⁴ to 10⁶, of which `n_iter` are evaluated.

    Like scikit-learn's `RandomizedSearchCV`, but settings are chosen by the scores of earlier settings. `cv_results_`,
    `best_params_`, `best_score_`, `best_estimator_` and `predict` are those of scikit-learn. A setting is evaluated once. One
    that fails (`error_score=numpy.nan`) or has an infinite score has no reward, and teaches `auto` which settings are likely to
    fail. A batch whose fits all fail is a warning, and has no rows in `cv_results_`, since scikit-learn keeps none; if no fit
    of any batch succeeds, the search ends with scikit-learn's error.

    Args:
        estimator: As for `RandomizedSearchCV`.
        candidates: The settings: a list of dictionaries, a `ParameterGrid`, or a pandas table with one setting per row.
        n_iter: Number of settings to evaluate; all of them if there are fewer.
        batch_size: Number of settings chosen at once, whose fits run in parallel by `n_jobs`.
        policy: As for `Bandit`; `auto()` by default.
        random_state: Seed of the policy, a whole number; 0 by default. Splits are drawn by `cv`.
        scoring: As for `RandomizedSearchCV`.
        n_jobs: As for `RandomizedSearchCV`: fits that run in parallel.
        refit: As for `RandomizedSearchCV`. With several scorings it names the scoring that is maximised.
        cv: As for `RandomizedSearchCV`.
        verbose: As for `RandomizedSearchCV`.
        pre_dispatch: As for `RandomizedSearchCV`.
        error_score: As for `RandomizedSearchCV`: the score of a setting whose fit fails.
        return_train_score: As for `RandomizedSearchCV`.

    Raises:
        UnsupportedError: If scikit-learn is not installed.
        ArgumentError: In `fit`, if the candidates are not a list of settings, or there are several scorings without `refit`.

    Cost: that of the fits, and one ask per setting, O(A u) for A candidates and u evaluated ones with `auto()`.
    """

    def __init__(
        self,
        estimator: Any,
        candidates: Any,
        *,
        n_iter: int = 50,
        batch_size: int = 1,
        policy: Policy | None = None,
        random_state: int | None = None,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: int | str = "2*n_jobs",
        error_score: Any = np.nan,
        return_train_score: bool = False,
    ) -> None:
        require(
            BaseSearchCV is not None,
            'CandidateSearchCV needs scikit-learn: pip install "torchbandits[experiments]".',
            UnsupportedError,
        )
        super().__init__(
            estimator,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        # scikit-learn's clone() needs the arguments as they were given: fit() checks them.
        self.candidates = candidates
        self.n_iter = n_iter
        self.batch_size = batch_size
        self.policy = policy
        self.random_state = random_state

    def _run_search(self, evaluate_candidates: Callable[[list[dict[str, Any]]], Mapping[str, Any]]) -> None:
        """Choose, evaluate and learn, batch by batch; called by `fit`."""
        check_whole("n_iter", self.n_iter)
        check_whole("batch_size", self.batch_size)
        seed = self.random_state
        require(seed is None or is_whole(seed, 0), f"random_state must be None or a whole number ≥ 0, got {seed!r}.")
        # A callable may return one score or several: only its results tell.
        single = self.scoring is None or isinstance(self.scoring, str) or callable(self.scoring)
        require(single or isinstance(self.refit, str), _REFIT)
        pool = Pool(self.candidates, self.policy, seed)
        offered = torch.ones(len(pool), dtype=torch.bool)
        left, results, trouble = self.n_iter, None, None
        while left > 0:
            selection = pool.ask(min(self.batch_size, left), offered)
            rows = selection.index.tolist()
            if not rows:
                break
            try:
                results = evaluate_candidates([pool.setting(row) for row in rows])
                scores = np.asarray(results[self._scored(results)], np.float64)[-len(rows) :]
            except ValueError as error:
                # scikit-learn takes the batch for the whole search.
                if not str(error).startswith("\nAll the "):
                    raise
                trouble, scores = error, np.full(len(rows), self.error_score, np.float64)
                warnings.warn(str(error), FitFailedWarning, stacklevel=3)
            # Infinite scores, and those with an infinite square, are failures too.
            scores = np.where(np.abs(scores) < _LARGEST, scores, np.nan)
            pool.bandit.tell(selection, torch.from_numpy(scores), failures="forget")
            for row in rows:
                # A setting may be listed twice.
                offered &= ~pool.same(row)
            left -= len(rows)
        if results is None and trouble is not None:
            raise trouble

    def _scored(self, results: Mapping[str, Any]) -> str:
        """Name of the column of scores that is maximised."""
        if "mean_test_score" in results:
            return "mean_test_score"
        require(isinstance(self.refit, str), _REFIT)
        return f"mean_test_{self.refit}"
