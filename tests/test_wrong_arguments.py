"""Every argument of all public functions, replaced by a wrong value, raises at once an error of this package that names it."""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import right_arguments as right

import torchbandits as tb
from torchbandits.errors import ArgumentError, TorchBanditsError

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import public_api

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")


class Wrong:
    """A value of a type that no argument accepts."""

    def __repr__(self) -> str:
        return "Wrong()"


REASONS: dict[str, tuple[str, ...]] = {
    "a record that this package makes: it holds what it is given": (
        *("Evidence", "Explanation", "FitReport", "Lease", "Marginals", "Progress", "Recommendation", "Rehearsal", "Report"),
        "Selection",
        *("environments.Archive", "environments.DataSet", "experiments.Record", "experiments.Reproduced"),
        *("OutcomeExplanation", "stopping.Decision", "LevelSet", "TopK", "Front", "ParetoSet"),
        *(f"diagnostics.{kind}" for kind in ("Calibration", "Diagnosis", "DictionaryQuality", "EffectiveDimension")),
        *("diagnostics.Noise", "diagnostics.Widths"),
    ),
    "called by policies and bandits with what they know": (
        *("starts.Start.picks", "starts.Start.points", "starts.Uniform.picks", "starts.Uniform.points"),
        *("starts.Spread.picks", "starts.Spread.points"),
        *("starts.Uncertainty.picks", "starts.Uncertainty.points", "botorch.BanditModel.progress"),
        *(
            f"ingredients.{name}.__call__"
            for name in ("UCB", "LogEI", "LogPI", "PerCost", "Score", "Straddle", "TopBoundary", "MostProbable")
        ),
        *(f"constraints.{name}.{method}" for name in tb.constraints.__all__ for method in ("allowed", "for_batch", "instead")),
        *("widths.RandomWidth.draw", "widths.ShiftedExponential.draw", "widths.Explored.draw"),
        *(f"stopping.{name}.{call}" for name in tb.stopping.__all__ if name != "Decision" for call in ("decide", "see")),
        *(f"widths.{name}.__call__" for name in tb.widths.__all__ if name not in ("matern_regularization", "RandomWidth")),
    ),
    "the bandit's side of a journal, called by Bandit and run": tuple(
        f"Journal.{name}" for name in ("agreed", "append", "begin", "checkpoint", "replay", "resume_from", "rewind_", "ride")
    ),
    "abstract: its subclasses are looked at": (
        *(f"sources.ArmSource.{name}" for name in ("chunk", "chunks", "points")),
        *(f"environments.Environment.{name}" for name in ("expected", "regret", "sample", "tasks")),
    ),
    "written by a user, called by a suite": (
        *("testing.PolicyContract.policy", "testing.PosteriorContract.posterior", "testing.PosteriorContract.learn"),
    ),
    "torch's and BoTorch's own, with their errors": tuple(
        f"botorch.BanditModel.{name}" for name in ("custom_fit", "load_state_dict", "train")
    ),
    "GPyTorch's own arguments, with its errors": (
        *("TanimotoKernel", "TanimotoKernel.forward", "TaskKernel.forward", "SphericalLinearKernel.forward"),
    ),
    "Pydantic checks it and names the key; load_config makes that a ConfigError": (
        *("experiments.ExperimentConfig", "experiments.ReproductionConfig", "experiments.ExperimentConfig.fingerprint_of"),
        *("experiments.ReproductionConfig.measures_of", "experiments.ReproductionConfig.times_of"),
    ),
    "called by the package that it plugs into": (
        *(f"plugins.PoolSampler.{name}" for name in ("after_trial", "infer_relative_search_space")),
        *(f"plugins.PoolSampler.{name}" for name in ("sample_independent", "sample_relative")),
        "plugins.BanditRecommender.recommend",
    ),
    "needs a package that may be missing: its tests are in test_plugin_optuna.py and test_plugin_baybe.py": (
        *("plugins.PoolSampler", "plugins.BanditRecommender"),
    ),
    "scikit-learn clones estimators with their arguments as given; fit checks them, in test_plugin_sklearn.py": (
        "plugins.CandidateSearchCV",
    ),
    "not looked at: BoTorch's lists of models pass indices of their own": ("botorch.BanditModel.posterior.output_indices",),
}
LEFT_OUT = {name for names in REASONS.values() for name in names}
FINE: dict[str, tuple[Any, ...]] = {  # values among those tried below that are valid
    "History.record.seconds": (math.nan,),
    "Campaign.correct.value": (math.nan,),  # a failed evaluation
    # the name of a column
    **dict.fromkeys((f"constraints.{name}.labels" for name in ("AtMost", "Groups", "Same")), ("nonsense",)),
    "constraints.Total.values": ("nonsense",),
    "environments.BlackBox.noise_std": (math.nan,),
}
NEGATIVE = {
    "Campaign.correct.value",
    "Campaign.correct.was",
    "constraints.Total.at_most",
    "History.record.seconds",
    "baseline",
    "environments.rosenbrock.a",
    "prior_mean",
    "reward",
    "entropy_threshold",
    "level",
    "threshold",
}
MORE = {  # arguments that are passed on
    "Bandit.fit_kernel_": ("misfit", "noise_prior", "max_exact", "dictionary_size", "restarts", "max_iterations"),
}
FILES = {"abalone", "cadata", "fcnet", "nas_bench_101", "nas_bench_201", "logistic_regression"}  # need a file, or minutes
INSTEAD = {"bounds": "arms"}  # only one of the two may be given


def short(path: str, name: str) -> str:
    return f"{path}.{name}".removeprefix("torchbandits.")


def public() -> Iterator[tuple[str, Any]]:
    """Everything that can be called with arguments: functions, classes, and the methods of classes."""
    for path in public_api.MODULES:
        module = importlib.import_module(path)
        for name in public_api.public_names(module):
            value = getattr(module, name)
            if not (inspect.isclass(value) or inspect.isroutine(value)) or _plain(value):
                continue
            if not inspect.isabstract(value) and parameters(value):
                yield short(path, name), value
            for member in (
                [*public_api.members(value), *(["__call__"] if "__call__" in vars(value) else [])]
                if inspect.isclass(value)
                else ()
            ):
                method = inspect.getattr_static(value, member)
                method = method.__func__ if isinstance(method, classmethod | staticmethod) else method
                if inspect.isfunction(method) and len(parameters(method)) > 1:
                    yield f"{short(path, name)}.{member}", method


def members(value: Any) -> list[str]:
    own = public_api.members(value) if inspect.isclass(value) else []
    return [*own, "__call__"] if inspect.isclass(value) and "__call__" in vars(value) else own


def _plain(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def parameters(called: Any) -> dict[str, inspect.Parameter]:
    found = inspect.signature(called).parameters
    return {name: p for name, p in found.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


PUBLIC = dict(public())


def called(name: str, folder: Path) -> tuple[Callable[..., Any], dict[str, inspect.Parameter]]:
    """The function, or a method of a fresh object, and its arguments."""
    owner, _, method = name.rpartition(".")
    if owner not in PUBLIC and owner not in right.OBJECTS:
        return PUBLIC[name], parameters(PUBLIC[name])
    named = parameters(PUBLIC[name])
    named.pop("self", None)
    named.pop("cls", None)
    held = right.OBJECTS[owner](folder)
    return partial(getattr(held, method), *right.WITHOUT_NAMES.get(name, ())), named


def arguments(name: str, named: dict[str, inspect.Parameter], folder: Path) -> dict[str, Any]:
    """Valid arguments: the required ones, and further ones of `right_arguments`."""
    own = right.BY_FUNCTION.get(name, {})
    needed = [key for key, p in named.items() if p.default is p.empty and key not in own]
    return {key: (own.get(key) or right.BY_NAME[key])(folder) for key in [*needed, *own]}


def wrong_values(name: str, key: str, annotation: str) -> Iterator[Any]:
    """Values that are invalid for an argument with this annotation."""
    yield Wrong()
    kinds = set(re.findall(r"\w+", annotation))
    if kinds & {"int", "float"}:
        yield math.nan
        if not {key, f"{name}.{key}"} & NEGATIVE:
            yield -3
    if "int" in kinds and "float" not in kinds:
        yield 2.5
    if "bool" in kinds or kinds & {"int", "float", "Tensor", "dtype", "device", "Generator"}:
        yield "nonsense"


def done(result: Any) -> None:
    """Run the first step of a generator, where it checks its arguments."""
    if isinstance(result, Iterator):
        next(result)


@pytest.mark.sweep(25)
@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in LEFT_OUT])
def test_wrong_arguments_are_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    call, named = called(name, tmp_path)
    fine = arguments(name, named, tmp_path)
    found = []
    tried = {key: str(p.annotation) for key, p in named.items()} | dict.fromkeys(MORE.get(name, ()), "Any")
    for key, annotation in tried.items():
        if f"{name}.{key}" in LEFT_OUT:
            continue
        others = {k: v for k, v in fine.items() if k != INSTEAD.get(key)}
        for value in wrong_values(name, key, annotation):
            if any(value is v for v in FINE.get(f"{name}.{key}", ())):
                continue
            try:
                done(call(**others | {key: value}))
                found.append(f"{key}={value!r} is taken")
            except TorchBanditsError as error:
                if not re.search(rf"\b{key}\b", str(error)):
                    found.append(f"{key}={value!r} is not named: {error}")
            except Exception as error:
                found.append(f"{key}={value!r} raises {type(error).__name__}: {error}")
    assert not found, "\n".join(found)
    if name.rpartition(".")[2] not in FILES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done(call(**fine))  # valid except for the one argument


def test_nothing_else_is_left_out():
    """Every public name not on the list is in the test above, which fails if there are no valid arguments for it."""
    known = {*PUBLIC, *(f"{name}.{key}" for name, value in PUBLIC.items() for key in parameters(value))}
    assert known >= LEFT_OUT, f"left out, but not there: {LEFT_OUT - known}"


@pytest.mark.parametrize("where", [Wrong(), "nonsense", {}])
def test_a_table_goes_nowhere_else(where: Any):
    with pytest.raises(ArgumentError, match=r"to\(\) takes"):
        right.table().to(where)
