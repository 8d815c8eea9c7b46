"""`CandidateSearchCV` compared with scikit-learn's searches, and the pool of candidates that the plug-ins share."""

from __future__ import annotations

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, ParameterGrid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import torchbandits as tb
from torchbandits.errors import ArgumentError
from torchbandits.plugins import CandidateSearchCV
from torchbandits.plugins.pool import Pool

X, Y = load_diabetes(return_X_y=True)
X, Y = X[:120], Y[:120]
GRID = {"ridge__alpha": np.logspace(-3, 4, 40).tolist(), "polynomialfeatures__interaction_only": [True, False]}


def model() -> object:
    return make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge())


def policy() -> object:
    return tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.01, width=tb.widths.Constant(2.0))


@pytest.mark.exhaustive
def test_a_few_settings_find_what_the_whole_grid_finds():
    search = CandidateSearchCV(model(), ParameterGrid(GRID), n_iter=20, batch_size=4, cv=3).fit(X, Y)
    whole = GridSearchCV(model(), GRID, cv=3).fit(X, Y)
    assert len(search.cv_results_["params"]) == 20
    assert len({str(setting) for setting in search.cv_results_["params"]}) == 20
    spread = np.ptp(whole.cv_results_["mean_test_score"])
    assert search.best_score_ >= whole.best_score_ - 0.02 * spread
    assert search.predict(X).shape == Y.shape
    assert search.best_params_ in list(ParameterGrid(GRID))


def test_it_ends_with_the_candidates_and_is_cloned():
    settings = [{"alpha": alpha} for alpha in (0.1, 1.0, 10.0)]
    search = clone(CandidateSearchCV(Ridge(), settings, n_iter=10, policy=policy(), cv=2))
    search.fit(X, Y)
    assert sorted(setting["alpha"] for setting in search.cv_results_["params"]) == [0.1, 1.0, 10.0]
    assert search.get_params()["n_iter"] == 10


def test_a_setting_is_evaluated_once_though_it_is_listed_twice_or_best_by_far():
    settings = [{"alpha": float(alpha)} for alpha in (0.1, 1.0, 10.0, 1.0)]
    search = CandidateSearchCV(Ridge(), settings, n_iter=10, policy=policy(), cv=2).fit(X, Y)
    assert sorted(setting["alpha"] for setting in search.cv_results_["params"]) == [0.1, 1.0, 10.0]
    # A noisy model would repeat its best candidate within a batch.
    noisy = tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=1.0, width=tb.widths.Constant(2.0))
    pool = Pool([{"x": float(i)} for i in range(6)], noisy, 0)
    pool.bandit.tell(torch.tensor([2]), torch.tensor([3.0], dtype=torch.float64))
    assert sorted(pool.ask(9, torch.arange(6) != 4).index.tolist()) == [0, 1, 2, 3, 5]


@pytest.mark.parametrize(
    "only", [[{"alpha": 1.0}], [{"alpha": 1.0, "max_iter": None, "solver": "cholesky"}] * 2, pd.DataFrame({"alpha": [1.0]})]
)
def test_a_single_setting_is_evaluated(only: object):
    search = CandidateSearchCV(Ridge(), only, n_iter=3, cv=2).fit(X, Y)
    assert [setting["alpha"] for setting in search.cv_results_["params"]] == [1.0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.FitFailedWarning", "ignore:One or more of the test scores:UserWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract:RuntimeWarning")
def test_settings_that_fail_teach_nothing():
    settings = [{"alpha": alpha} for alpha in (-5.0, 0.1, 1.0, 10.0)]  # Ridge raises an error for a negative penalty
    search = CandidateSearchCV(Ridge(), settings, n_iter=4, batch_size=4, policy=policy(), cv=2).fit(X, Y)
    assert np.isnan(search.cv_results_["mean_test_score"]).sum() == 1
    assert search.best_params_["alpha"] > 0
    # A score may be infinite, such as a logarithm of a probability.
    infinite = lambda model, *_: {0.1: -np.inf, 1.0: -1e200}.get(model.alpha, -model.alpha)  # noqa: E731
    search = CandidateSearchCV(Ridge(), settings[1:], n_iter=3, policy=policy(), scoring=infinite, cv=2).fit(X, Y)
    assert search.best_params_["alpha"] == 10.0


def test_a_batch_that_fails_as_a_whole_does_not_end_the_search():
    alphas = [*np.linspace(-5, -1, 10), *np.linspace(1, 5, 10)]
    settings = [{"alpha": float(alpha)} for alpha in alphas]
    search = CandidateSearchCV(Ridge(), settings, n_iter=12, policy=policy(), cv=2)
    with pytest.warns(FitFailedWarning, match="All the 2 fits failed"):
        search.fit(X, Y)
    tried = [setting["alpha"] for setting in search.cv_results_["params"]]
    assert len(tried) >= 2
    assert min(tried) > 0
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    # A failure is worth its `error_score`, as in a batch in which other settings work.
    with pytest.warns(FitFailedWarning):
        search = CandidateSearchCV(Ridge(), settings, n_iter=20, policy=policy(), cv=2, error_score=-1.0).fit(X, Y)
    assert len(search.cv_results_["params"]) == 10
    with pytest.warns(FitFailedWarning), pytest.raises(ValueError, match="All the 2 fits failed"):
        CandidateSearchCV(Ridge(), settings[:10], n_iter=3, policy=policy(), cv=2).fit(X, Y)
    with pytest.raises(ValueError, match="must be a float"):
        CandidateSearchCV(Ridge(), settings[:10], policy=policy(), cv=2, error_score="raise").fit(X, Y)
    with pytest.raises(ValueError, match="Invalid parameter 'beta'"):
        CandidateSearchCV(Ridge(), [{"beta": 1.0}, {"beta": 2.0}], policy=policy(), cv=2).fit(X, Y)


def test_several_scorings_maximise_the_one_that_refit_names():
    settings = [{"alpha": float(alpha)} for alpha in np.logspace(-2, 3, 30)]
    scoring = {"fit": "r2", "error": "neg_mean_absolute_error"}
    search = CandidateSearchCV(Ridge(), settings, n_iter=5, policy=policy(), scoring=scoring, refit="error", cv=2).fit(X, Y)
    assert search.best_score_ == search.cv_results_["mean_test_error"].max()
    # Before the first fit, which would fail: Ridge has no parameter of that name.
    with pytest.raises(ArgumentError, match="refit must name"):
        CandidateSearchCV(Ridge(), [{"beta": 1.0}, {"beta": 2.0}], scoring=scoring, refit=False, cv=2).fit(X, Y)
    both = lambda model, X, y: {"fit": model.score(X, y), "size": 1.0}  # noqa: E731
    with pytest.raises(ArgumentError, match="refit must name"):
        CandidateSearchCV(Ridge(), settings, scoring=both, refit=False, cv=2).fit(X, Y)


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize(
    ("name", "wrong", "named"),
    [
        ("policy", "gp", "policy must"),
        ("n_iter", 0, "n_iter"),
        ("batch_size", 0.5, "batch_size"),
        ("random_state", -1, "random_state must"),
    ],
)
def test_fit_refuses_wrong_arguments(name: str, wrong: object, named: str):
    with pytest.raises(ArgumentError, match=named):
        CandidateSearchCV(Ridge(), [{"alpha": 1.0}, {"alpha": 2.0}], **{name: wrong}).fit(X, Y)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_a_seed_may_be_an_integer_of_numpy():
    settings = [{"alpha": float(alpha)} for alpha in np.logspace(-2, 2, 20)]
    tried = [
        CandidateSearchCV(Ridge(), settings, n_iter=4, random_state=seed, cv=2).fit(X, Y).cv_results_["params"]
        for seed in (3, np.int64(3))
    ]
    assert tried[0] == tried[1]


def test_a_pool_takes_values_of_any_kind():
    settings = [
        {"alpha": 0.1 * (i + 1), "hidden": shape, "flag": i % 2 == 0} for i, shape in enumerate([(8,), (8, 8), None] * 5)
    ]
    pool = Pool(settings, policy(), 0)
    assert pool.setting(4) == settings[4]
    assert [pool.row_of(setting) for setting in settings] == list(range(15))
    assert pool.row_of({"alpha": 7.0, "hidden": None, "flag": True}) is None
    assert pool.bandit.arms.shape[0] == 15
    frame = pd.DataFrame({"a": np.arange(4), "b": ["x", "y", "x", "y"]})
    assert Pool(frame, policy(), 0).setting(2) == {"a": 2, "b": "x"}


def test_an_empty_cell_of_a_table_of_texts_is_none_as_in_class_weight():
    frame = pd.DataFrame({"a": [1.0, 2.0, np.nan, 4.0], "class_weight": ["balanced", None, "balanced", None]})
    for own in (frame, frame.astype({"class_weight": object}), frame.astype({"class_weight": "category"})):
        pool = Pool(own, policy(), 0)
        assert [pool.setting(row)["class_weight"] for row in range(4)] == ["balanced", None, "balanced", None]
        assert np.isnan(pool.setting(2)["a"])
        assert [pool.row_of(pool.setting(row)) for row in range(4)] == list(range(4))
        assert pool.agrees(1, {"class_weight": None})
        assert pool.having({"class_weight": None}).tolist() == [False, True, False, True]
        # A parameter that a setting lacks, as under a condition of the objective.
        assert pool.row_of({"a": 2.0}) == 1


@pytest.mark.parametrize(
    "candidates",
    [
        [{"kernel": "rbf", "C": 1.0}, {"kernel": "poly", "C": 2.0}, {"kernel": "linear", "C": 3.0}],
        [{"kernel": kernel} for kernel in ("rbf", "poly", "linear")],
        [{"layers": (10,), "rate": 1.0}, {"layers": (20, 10), "rate": 0.1}, {"layers": (5, 5, 5), "rate": 0.2}],
        [{"id": 1, "C": 1.0}, {"id": 1, "C": 2.0}],
        [{"row": 1, "C": 1.0}, {"row": 2, "C": 2.0}],
        # Texts that could be SMILES.
        [{"grade": "C", "x": 1.0}, {"grade": "N", "x": 2.0}, {"grade": "O", "x": 4.0}],
        [{"kernel": "linear"}, {"kernel": "rbf", "gamma": 1.0}, {"kernel": None}],
        pd.concat([pd.DataFrame({"a": [1.0, 2.0]}), pd.DataFrame({"a": [3.0, 4.0]})]),
        pd.DataFrame({"size": pd.Categorical([1, 2, 3]), "year": pd.period_range("2024", "2026", freq="Y")}),
    ],
)
def test_a_pool_takes_lists_that_are_no_table_of_a_campaign(candidates: object):
    pool = Pool(candidates, policy(), 0)
    assert [pool.row_of(pool.setting(row)) for row in range(len(pool))] == list(range(len(pool)))
    distinct = {tuple(point) for point in pool.bandit.arms.tolist()}
    assert len(distinct) == len(pool)
    with pytest.raises(ArgumentError, match="'a' is given twice"):
        Pool(pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]), policy(), 0)


def test_a_pool_finds_settings_by_some_of_their_values():
    settings = [{"kernel": "linear"}, {"kernel": "rbf", "gamma": 1.0}, {"kernel": "rbf", "gamma": 2.0}, {"kernel": "linear"}]
    pool = Pool(settings, policy(), 0)
    assert pool.row_of({"kernel": "linear"}) == 0
    assert pool.row_of({"gamma": 2.0, "folds": 5}) == 2
    assert pool.row_of({"kernel": "rbf"}) is None
    assert pool.having({"kernel": "rbf"}).tolist() == [False, True, True, False]
    assert pool.same(3).tolist() == [True, False, False, True]


def test_a_pool_waits_for_what_is_evaluated_elsewhere():
    pool = Pool([{"x": i / 20} for i in range(20)], policy(), 0)
    assert pool.wait_for(7).index.tolist() == [7]
    more = pool.ask(3, torch.arange(20) != 7)
    assert len(more) == 3
    assert 7 not in more.index.tolist()
    assert pool.bandit.ask().index.tolist()[0] == 7


@pytest.mark.parametrize("candidates", ["x", [1, 2], 3, [], [{}]])
def test_what_is_no_list_of_settings_is_refused(candidates: object):
    with pytest.raises(ArgumentError, match="candidates must"):
        Pool(candidates, None, 0)
