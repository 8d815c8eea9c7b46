"""Numbers, words, functions, kernels and paths; keywords that a function does not take."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from torchbandits.errors import ArgumentError, KeywordError, nearest, require

ENDLESS = 2**62  # larger than any number of picks or bytes
LARGEST = 1e150  # its square, and the sum of many such squares, is finite in float64


_P = ParamSpec("_P")
_R = TypeVar("_R")
_GENERATOR = "draws come from a generator that you give: generator=torch.Generator().manual_seed(seed) of Bandit or run."
_BATCH = (
    "the policy's batch rule says how many arms are picked: ask(exactly=…) picks as many in its place, ask(limit=…) takes "
    "fewer, ask(more=…) adds as many to them. "
    "ask(8) of a campaign selects eight rows."
)
_LARGEST_IS_BEST = "rewards are maximised everywhere: tell their negatives to minimise."
# Keywords of other libraries, of one function where its name comes first, and the replacement of each.
_ELSEWHERE = {
    **dict.fromkeys(("seed", "random_seed", "random_state", "rng"), _GENERATOR),
    **dict.fromkeys(("batch_size", "q", "n", "num_picks", "n_points"), _BATCH),
    **dict.fromkeys(("maximize", "minimize", "maximise", "minimise", "direction"), _LARGEST_IS_BEST),
    "bounds": (
        "a box is for tb.Bandit(policy, bounds=…); other bandits take arms, A x d: lower + (upper - lower) * torch.rand(A, d) "
        "draws them from a box."
    ),
    **dict.fromkeys(("context", "contexts"), "contexts are those of tb.ContextualBandit(policy, arms, contexts)."),
    **dict.fromkeys(
        ("at_least", "at_most", "objectives"),
        "several outcomes and limits are those of tb.OutcomeCampaign(table, objectives, at_least={…}), or of the policies in "
        "tb.outcomes for a tb.OutcomeBandit.",
    ),
    "choices": "the candidates are the argument arms.",
    **dict.fromkeys(("X_avoid", "inequality_constraints"), "a mask takes arms off offer: available=, True for those on offer."),
    "known": "outcomes that are known for all arms are those of tb.OutcomeBandit(policy, arms, known=…).",
    "beta": "give the number that multiplies the posterior standard deviation: width=widths.Constant(math.sqrt(beta)).",
    # Arguments of BoTorch's models and acquisition functions.
    "BanditModel.likelihood": "noise is given by noise_std= (a standard deviation) or train_Yvar=, or is fitted without them.",
    "BanditModel.mean_module": 'the prior mean is a number, prior_mean=, or prior_mean="estimate" for the average outcome.',
    "BanditModel.inducing_points": 'dictionary= takes points m x d, or "leverage" or "bless", which draw them.',
    **dict.fromkeys(
        ("PolicyAcquisition.beta", "PolicyAcquisition.width"),
        "the width is that of the policy, tb.gp_ucb(model.covar_module, noise_std=model.noise_std, "
        "width=tb.widths.Constant(2.0)), which is the square root of beta.",
    ),
    **dict.fromkeys(
        ("PolicyAcquisition.maximize", "PolicyAcquisition.minimize"),
        "posterior_transform=ScalarizedPosteriorTransform(torch.tensor([-1.0])) minimises.",
    ),
    **dict.fromkeys(
        ("ax_generator_spec.width", "ax_generator_spec.acquisition"),
        "it is an option of the policy: policy_options={…}. beta=4.0 is a width of two deviations.",
    ),
    **dict.fromkeys(
        ("ax_generator_spec.kernel", "ax_generator_spec.dictionary", "ax_generator_spec.noise_std"),
        "it is an option of the model: model_options={…}.",
    ),
    "PolicyAcquisition.best_f": (
        "EI and PI improve on the highest posterior mean at the tabulated arms or observations. BoTorch's "
        "LogExpectedImprovement(model, best_f) takes another value."
    ),
    **dict.fromkeys(
        ("PolicyAcquisition.objective", "PolicyAcquisition.constraints", "PolicyAcquisition.sampler"),
        "a policy scores one outcome, without samples. BoTorch's qLogNoisyExpectedImprovement takes it, with the same model.",
    ),
}


def explains_keywords(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a public function: a keyword that it does not take, or a further argument by position, raises `KeywordError`,
    which names what to use instead."""
    parameters = inspect.signature(function).parameters
    known = list(parameters)
    name = function.__qualname__.removesuffix(".__init__")
    kinds = [parameter.kind for parameter in parameters.values()]
    by_name = [word for word, kind in zip(known, kinds, strict=True) if kind is inspect.Parameter.KEYWORD_ONLY]
    most = sys.maxsize if inspect.Parameter.VAR_POSITIONAL in kinds else len(known) - len(by_name)

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for word in kwargs:
            if word not in known:
                instead = _ELSEWHERE.get(f"{name}.{word}", _ELSEWHERE.get(word))
                # Not where this function takes another word for the same.
                if instead is None or any(_ELSEWHERE.get(own) == instead for own in known):
                    instead = f"it takes {', '.join(known)}.{nearest(word, known)}".replace("self, ", "")
                raise KeywordError(f"{name} takes no argument {word!r}: {instead}")
        if len(args) > most:
            own = [word for word in known[:most] if word != "self"]
            limit = f"takes by position only {', '.join(own)}" if own else "takes no argument by position"
            others = (
                f"give the others by name, {', '.join(f'{word}=' for word in by_name)}" if by_name else "leave the others out"
            )
            raise KeywordError(f"{name} {limit}, got {len(args) - most + len(own)}: {others}.")
        return function(*args, **kwargs)

    # For inspect.getfullargspec, by which Ax learns the arguments of a model, and which does not look inside of a wrapper.
    called.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return called


def number(value: Any) -> Any:
    """The number in a tensor of one, such as the noise of a fitted model, without its gradient; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 and value.device.type != "meta" else value


def is_finite(value: Any) -> bool:
    """Whether this is one finite real number: not a boolean, a text, or several."""
    value = number(value)
    if isinstance(value, Integral):
        return not isinstance(value, bool) and abs(int(value)) <= sys.float_info.max
    return isinstance(value, Real) and abs(float(value)) < math.inf


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether this is a whole number from `least` to 2⁶²."""
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= ENDLESS


# The checks below raise ArgumentError: it names the argument, what is wanted and what came.


def non_negative(name: str, value: Any) -> Any:
    """The value, if it is one number from 0 to 1e150."""
    good = is_finite(value) and 0 <= value <= LARGEST
    require(good, f"{name} must be a finite number ≥ 0, and at most {LARGEST:g}, got {value!r:.60}.")
    return value


def positive(name: str, value: Any) -> Any:
    """The value, if it is one number above 0, up to 1e150."""
    good = is_finite(value) and 0 < value <= LARGEST
    require(good, f"{name} must be a finite number > 0, and at most {LARGEST:g}, got {value!r:.60}.")
    return value


def at_least_one(name: str, value: Any) -> Any:
    """The value, if it is one finite number ≥ 1."""
    require(is_finite(value) and value >= 1, f"{name} must be a finite number of at least 1, got {value!r:.60}.")
    return value


def check_whole(name: str, value: Any, least: int = 1, otherwise: str = "") -> None:
    """Refuse anything but a whole number ≥ `least`, or None if `otherwise` says what None means."""
    require(
        is_whole(value, least) or (bool(otherwise) and value is None),
        f"{name} must be a whole number ≥ {least}{f', or None {otherwise}' if otherwise else ''}, got {value!r}.",
    )


def check_even(name: str, value: Any) -> None:
    """Refuse anything but an even number ≥ 2."""
    require(is_whole(value, 2) and value % 2 == 0, f"{name} must be an even number of at least 2, got {value}.")


def check_flag(name: str, value: Any, *, optional: bool = False) -> None:
    """Refuse anything but True and False, and None if it is `optional`."""
    require(isinstance(value, bool) or (optional and value is None), f"{name} must be True or False, got {value!r}.")


def check_text(name: str, value: Any, *, optional: bool = False) -> None:
    """Refuse anything but a text, and None if it is `optional`."""
    require(isinstance(value, str) or (optional and value is None), f"{name} must be a text, got {type(value).__name__}.")


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Refuse anything but one of these words; the error names the nearest one."""
    known = tuple(known)
    if not (isinstance(value, str) and value in known):
        raise ArgumentError(f"{name} must be one of {', '.join(known)}, got {value!r}.{nearest(str(value), known)}")


def check_instance(name: str, value: Any, kind: Any, wanted: str) -> None:
    """Refuse an object that is not an instance of a class; `wanted` describes one that is."""
    require(isinstance(value, kind), f"{name} must be {wanted}, got {type(value).__name__}.")


def check_function(name: str, value: Any) -> None:
    """Refuse an object that cannot be called."""
    require(callable(value), f"{name} must be a function, got {type(value).__name__}.")


def check_named(what: str, given: Iterable[Any], names: Sequence[str], those: str = "outcomes") -> None:
    """Refuse a name that is not one of the outcomes."""
    for name in given:
        if name not in names:
            raise ArgumentError(
                f"{what} names {name!r}, which is not one of the {those}, {', '.join(names)}.{nearest(str(name), names)}"
            )


def numbers_of(what: str, given: Any, names: Sequence[str], needed: Sequence[str]) -> tuple[float, ...]:
    """The numbers of outcomes, in their order, from finite numbers by name; 0 for one that needs none and has none."""
    require(isinstance(given, Mapping), f"{what} must be numbers by outcome, got {given!r:.60}.")
    check_named(what, given, names)
    missing = [name for name in needed if name not in given]
    require(not missing, f"{what} has no number for {', '.join(missing)}.")
    require(all(is_finite(value) for value in given.values()), f"{what} must be finite numbers, got {dict(given)}.")
    return tuple(float(given.get(name, 0.0)) for name in names)


def check_generator(value: Any) -> None:
    """Refuse anything but a generator on the CPU."""
    good = isinstance(value, torch.Generator) and value.device.type == "cpu"
    got = f"one on {value.device}" if isinstance(value, torch.Generator) else type(value).__name__
    require(good, f"generator must be a torch.Generator on the CPU, such as torch.Generator().manual_seed(0), got {got}.")


def as_path(name: str, value: Any) -> Path:
    """A path, from one or its text."""
    try:
        return Path(value)
    except TypeError as error:
        raise ArgumentError(f"{name} must be a path or its text, got {type(value).__name__}.") from error
