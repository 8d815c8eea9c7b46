"""Policies of several outcomes on one list of arms, for `OutcomeBandit`: limits, trade-offs, Pareto sets and safety.

Each takes `models`, a dictionary of policies of one Gaussian process by the name of the outcome: `{"yield": gp_ucb(kernel,
noise_std=0.1), "toxicity": gp_ucb(kernel, noise_std=0.02)}`. A model determines kernel, noise, width, memory and score of its
outcome; the policy chooses arms by all models. Use `constrained` for one objective and limits on others that may be violated
while they are learned, `safe` if they may never be, `pareto` for good trade-offs with few pulls, and `epal` to certify which
arms are Pareto optimal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchbandits.aims import Certifying, Constrained, Fidelity, Limit, Safe, Scalarized
from torchbandits.aims.scalarized import KINDS
from torchbandits.checks import (
    check_arms,
    check_choice,
    check_flag,
    check_named,
    check_whole,
    explains_keywords,
    is_finite,
    is_whole,
    non_negative,
    numbers_of,
)
from torchbandits.errors import ShapeError, UnsupportedError, require
from torchbandits.policies.base import Policy
from torchbandits.policies.composed import Composed
from torchbandits.policies.joint import Joint, joint
from torchbandits.scores import UCB, LogEI, PosteriorDraw
from torchbandits.sources.duplicates import matches
from torchbandits.widths import Scaled
from torchbandits.widths.assumptions import check_assumptions

__all__ = ["constrained", "epal", "fidelity", "pareto", "safe"]

Names = tuple[str, ...]

# Largest number of objectives for which the hypervolume improvement is the default: the region above a front of 40 arms is
# divided into 41 cells for two objectives, 93 for three, 358 for four, and 1,554 for five, which take 6 s to find.
_MOST_IMPROVED = 4


@explains_keywords
def constrained(
    models: Mapping[str, Policy],
    *,
    maximize: str | None = None,
    minimize: str | None = None,
    at_least: Mapping[str, float] | None = None,
    at_most: Mapping[str, float] | None = None,
    certainty: float = 0.95,
    optimism: float = 0.5,
    known: Sequence[str] = (),
) -> Joint:
    r"""Maximise one outcome among the arms whose other outcomes keep limits, if all outcomes are unknown beforehand.

    The score of the models determines how feasibility is treated. Upper bounds (`auto`, `gp_ucb`, `bkb`) are optimistic about
    objective and limits: the pick has the largest upper bound of the objective among the arms that may be feasible, or the
    smallest sum of violations if no arm may be feasible. Draws (`thompson_sampling`) apply the same rule to a draw of each
    posterior. The improvement (`gp_ucb(acquisition="ei")`) is multiplied by the probability of feasibility, in logarithms; no
    arm is picked again while another one is on offer.

    Args:
        models: A policy for each outcome, by name.
        maximize: Name of the objective, to be maximised.
        minimize: Name of the objective if it is to be minimised, instead of `maximize`.
        at_least: Lower limits by outcome, reward units.
        at_most: Upper limits by outcome, reward units.
        certainty: Probability of keeping all limits from which on an arm counts as feasible, in (0, 1). It determines the level
            that an improvement must exceed, and the arms of `best()`.
        optimism: Factor of the models' widths in the bounds that decide whether an arm may keep a limit, in [0, 1]: 1 is the
            rule of CONFIG; smaller values spend fewer pulls on arms that violate the limits, and 0 uses only the means. Draws
            and the improvement do not use it.
        known: Names of outcomes that are known for all arms, such as a price or a mass, and are not told:
            `OutcomeBandit(policy, arms, known={"price": prices})`. One of them may be the objective, and any may have limits.

    Guarantee: none for this implementation. With bounds that hold, Xu et al. 2023 prove regret and violations that vanish on
    average for the optimistic rule (`optimism=1`). Source: Gelbart et al. 2014 for the improvement; Xu et al. 2023 (CONFIG)
    for bounds; Eriksson and Poloczek 2021 (SCBO) for draws.

    Raises:
        UnsupportedError: For models that cannot be batch rows of one engine.
    """
    _check_certainty(certainty)
    _check_optimism(optimism)

    def aim(names: Names) -> Constrained:
        return Constrained(
            _objective(maximize, minimize, names), _limits(at_least, at_most, names), float(certainty), float(optimism)
        )

    return _scored(joint(models, aim, known=known), LogEI, "the improvement, bounds or draws")


@explains_keywords
def pareto(
    models: Mapping[str, Policy],
    *,
    minimize: Sequence[str] = (),
    scalarization: str | None = None,
    reference: Mapping[str, float] | None = None,
    objectives: Sequence[str] | None = None,
    at_least: Mapping[str, float] | None = None,
    at_most: Mapping[str, float] | None = None,
    certainty: float = 0.95,
    optimism: float = 0.5,
    known: Sequence[str] = (),
) -> Joint:
    r"""Find good trade-offs between all outcomes: each pick is the arm with the largest expected growth of the Pareto front, or
    the best arm for randomly drawn weights.

    Args:
        models: A policy for each outcome, scored by upper bounds (`auto`, `gp_ucb`, `bkb`), draws (`thompson_sampling`) or the
            improvement (`gp_ucb(acquisition="ei")`).
        minimize: Names of the outcomes to minimise.
        scalarization: `"improvement"`, the expected growth of the hypervolume above `reference`, in closed form, which uses
            mean and standard deviation but no width, and picks no arm again while another one is on offer, except as a
            replicate of `auto`. The others combine upper bounds or draws into one number, by weights that are drawn for each
            pick: `"chebyshev"`, the smallest weighted outcome plus a twentieth of the weighted sum, as in ParEGO; `"linear"`,
            the weighted sum, which misses trade-offs where the front is not convex; `"hypervolume"`, whose average over the
            weights is the hypervolume above `reference`. By default the improvement for up to four objectives, and
            `"chebyshev"` for draws and for more objectives, whose front has too many cells.
        reference: A value per outcome that every good trade-off should beat. By default it follows the front of the posterior
            means at the pulled arms: a tenth of its range below its worst values (for the improvement, a tenth of the range of
            all pulled arms). If weights are drawn, the range of the front is the unit of each outcome.
        objectives: Names of the outcomes that are objectives; all of them by default. It must be given if there are limits.
        at_least: Lower limits by outcome, reward units, of objectives or of other outcomes. Only arms that may keep all limits
            are picked; if there is none, the arm with the smallest sum of violations is picked.
        at_most: Upper limits by outcome, reward units.
        certainty: Probability of keeping all limits from which on an arm may be on the front, in (0, 1).
        optimism: As for `constrained`.
        known: As for `constrained`: an objective that is known for all arms, such as a price, costs no pulls and no model.

    Guarantee: none for the improvement. Paria et al. 2019 prove Bayes regret O(√(T γ_T)) for each Lipschitz scalarisation with
    fixed units; none is proved for units that follow the posterior, as here. Source: Emmerich et al. 2011 for the improvement,
    here over the front of the posterior means at the arms that were told or are pending; Knowles 2006 (ParEGO), Paria et al.
    2019, Zhang and Golovin 2020 for `"hypervolume"`.

    Raises:
        UnsupportedError: For models that cannot be batch rows of one engine.
    """
    if scalarization is not None:
        check_choice("scalarization", scalarization, KINDS)
    _check_certainty(certainty)
    _check_optimism(optimism)

    def aim(names: Names) -> Scalarized:
        limited = at_least is not None or at_most is not None
        limits = _limits(at_least, at_most, names) if limited else ()
        message = "with limits, pass objectives=, a list of the names of the outcomes that are objectives."
        require(objectives is not None or not limited, message)
        own = names if objectives is None else _named("objectives", objectives, names)
        require(len(own) > 0, "objectives must name at least one outcome.")
        signs = tuple(sign if name in own else 0.0 for name, sign in zip(names, _signs(minimize, names), strict=True))
        odd = [name for name in minimize if name not in own]
        require(not odd, f"minimize names {odd[:1]}, which is not among the objectives: leave it out, or add it there.")
        given = None
        if reference is not None:
            at = numbers_of("reference", reference, own, own)
            given = tuple(at[own.index(name)] if name in own else 0.0 for name in names)
        return Scalarized(signs, scalarization or "improvement", given, limits, float(certainty), float(optimism))

    policy = joint(models, aim, known=known)
    wanted, score = policy.aim, policy.engine.score
    assert isinstance(wanted, Scalarized)
    many = len(wanted.objectives) > _MOST_IMPROVED
    if scalarization is None and not isinstance(score, LogEI) and (many or isinstance(score, PosteriorDraw)):
        wanted = replace(wanted, kind="chebyshev")
    if wanted.kind == "improvement":
        return _scored(policy, LogEI, "bounds or the improvement", draws=False)
    return _scored(replace(policy, aim=wanted), UCB, "bounds or draws")


@explains_keywords
def epal(models: Mapping[str, Policy], *, epsilon: Mapping[str, float], minimize: Sequence[str] = ()) -> Joint:
    r"""ε-PAL: learn which arms are Pareto optimal, up to a difference ε in each outcome.

    Each pick is the most uncertain arm that the bounds do not exclude. `OutcomeBandit.pareto_set(epsilon)` returns the sets,
    which are complete once no arm is undecided.

    Args:
        models: A policy for each outcome, scored by upper bounds; their widths determine the confidence bounds.
        epsilon: By outcome, the difference that does not matter, reward units.
        minimize: Names of the outcomes to minimise.

    Guarantee: if the bounds of all outcomes hold, with probability at least 1 − Σ δ_j under the models' priors, the sets of
    every step are correct: see `pareto_set`. The intervals are those of the current step. The paper intersects the intervals of
    all steps, which can end earlier, and bounds the number of pulls, which is not proved here. Source: Zuluaga et al. 2016,
    Alg. 1.

    Raises:
        UnsupportedError: For models that cannot be batch rows of one engine.
    """

    def aim(names: Names) -> Certifying:
        given = numbers_of("epsilon", epsilon, names, names)
        require(all(value > 0 for value in given), f"epsilon must be > 0 for every outcome, got {dict(epsilon)}.")
        return Certifying(_signs(minimize, names), given)

    return _scored(joint(models, aim, estimated=False), UCB, "bounds", draws=False)


@explains_keywords
def safe(
    models: Mapping[str, Policy],
    *,
    start: Sequence[int],
    maximize: str | None = None,
    minimize: str | None = None,
    at_least: Mapping[str, float] | None = None,
    at_most: Mapping[str, float] | None = None,
    expand: int | None = None,
    leaders: int = 64,
) -> Joint:
    r"""SafeOpt and StageOpt: maximise one outcome, and pull only arms that are known to keep the limits.

    An arm is safe if its confidence bounds keep all limits, or if it is in `start`. `expand=None` is SafeOpt, which picks the
    most uncertain arm among the maximisers, which may be the best arm, and the expanders, whose rewards may make other arms
    safe. If `expand` is a number, the policy is StageOpt, which picks only expanders until that many pulls are told, and then
    the safe arm with the largest upper bound of the objective.

    Args:
        models: A policy for each outcome, scored by upper bounds; their widths determine the arms that are safe.
        start: Indices of arms that are known to be safe.
        maximize: Name of the objective, to be maximised.
        minimize: Name of the objective if it is to be minimised, instead of `maximize`.
        at_least: Lower limits of safety by outcome, reward units.
        at_most: Upper limits of safety by outcome, reward units.
        expand: Number of pulls of the first stage of StageOpt; None for SafeOpt.
        leaders: Largest number of arms, the most uncertain first, that are tested as expanders.

    Guarantee: if the bounds of the limited outcomes hold, with probability at least 1 − Σ δ_j under the models' priors, no
    unsafe arm is ever pulled, in batches too. Convergence is not proved: there is no Lipschitz constant, and the safe set is
    that of the current bounds. Source: Sui et al. 2015 and 2018; Berkenkamp et al. 2016 for bounds in place of a Lipschitz
    constant.

    Raises:
        ArgumentError: If `start` is empty.
        UnsupportedError: For models that cannot be batch rows of one engine, for first picks (`initial=`), which may be unsafe,
            and for a width of a limited outcome that is for another λ, or for less noise, than the model. Widths without a
            theorem, such as `Constant` and the default of `bkb`, are taken, and promise nothing; nor does an estimated prior
            mean, or a kernel that is fitted (`refit_every=`).
    """
    check_whole("expand", expand, 0, otherwise="for SafeOpt")
    check_whole("leaders", leaders)
    listed = tuple(start) if isinstance(start, Sequence) and not isinstance(start, str) else ()
    good = len(listed) > 0 and all(is_whole(arm, 0) for arm in listed)
    require(good, f"start must list the indices of arms that are safe for certain, at least one, got {start!r:.60}.")

    def aim(names: Names) -> Safe:
        limits = _limits(at_least, at_most, names)
        first = models[names[0]]
        assert isinstance(first, Composed)
        message = f"first picks, initial={first.initial!r}, may be of unsafe arms: leave initial= out."
        require(first.initial is None, message, UnsupportedError)
        for name in {names[limit.outcome] for limit in limits}:
            _check_bounds(name, models[name])
        return Safe(_objective(maximize, minimize, names), limits, tuple(int(a) for a in listed), expand, leaders)

    return _scored(joint(models, aim, estimated=False), UCB, "bounds", draws=False)


@explains_keywords
def fidelity(
    models: Mapping[str, Policy] | Joint,
    arms: Tensor,
    *,
    column: int,
    target: float,
    costs: Mapping[float, float],
    minimize: bool = False,
    exponent: float | None = None,
) -> Joint:
    r"""BOCA: maximise an outcome at its target fidelity, and evaluate arms at cheaper fidelities as long as these are
    informative.

    Each arm is a point and a fidelity, which is one of its features: a shorter simulation, fewer epochs, another laboratory.
    The kernel models the correlation between fidelities: `TaskKernel` times a kernel on the other features, or any kernel in
    which the fidelity is a number. A pick is the arm of the target fidelity with the largest upper bound, at the cheapest
    fidelity at which it is still uncertain: see `aims.Fidelity` for the rule.

    With several outcomes, `models` is another policy, which has the aim at the target fidelity:
    `fidelity(constrained(…), arms, …)` and `fidelity(pareto(…), arms, …)` pick the arm of the target fidelity that this policy
    would pick, at the cheapest fidelity at which any of its outcomes is still uncertain. `best` and `front` only consider arms
    of the target fidelity.

    Args:
        models: A policy by the name of the only outcome, scored by upper bounds, whose kernel has no batch rows; or a
            `constrained` or `pareto` policy of several outcomes, scored by upper bounds or the improvement.
        arms: `A x d`, the arms of the bandit.
        column: The index of the feature that is the fidelity.
        target: The fidelity whose outcome is maximised; every point must be among the arms at this fidelity.
        costs: Cost of a pull by fidelity, > 0.
        minimize: Whether to minimise the outcome; for one outcome only.
        exponent: q of the rule; 1/(d + 2) by default, as in the paper for a fidelity of one feature.

    Guarantee: none here. The paper bounds the regret in terms of the cost spent, for its widths, continuous fidelities and
    product kernels; it does not cover lists of arms. Source: Kandasamy et al. 2017 (BOCA).

    Raises:
        ArgumentError: If a point is not among the arms at the target fidelity, or a fidelity has no cost.
        UnsupportedError: For a dictionary of several models, or a policy made by `safe` or `epal`.
    """
    listed = check_arms(arms)
    require(listed.dim() == 2, f"arms must be A x d, got {tuple(listed.shape)}.", ShapeError)
    good = is_whole(column, 0) and column < listed.shape[-1]
    require(good, f"column must be from 0 to {listed.shape[-1] - 1}, got {column!r}.")
    require(is_finite(target), f"target must be a number, got {target!r}.")
    check_flag("minimize", minimize)
    require(isinstance(costs, Mapping) and len(costs) > 0, f"costs must be numbers by fidelity, got {costs!r:.60}.")
    q = 1 / (listed.shape[-1] + 2) if exponent is None else float(non_negative("exponent", exponent))
    levels = listed[:, column]
    price = torch.full(levels.shape, torch.nan, dtype=torch.float64)
    for level, cost in costs.items():
        require(is_finite(level) and is_finite(cost) and cost > 0, f"costs must be numbers > 0 by fidelity, got {dict(costs)}.")
        price[levels == level] = float(cost)
    free = levels[price.isnan()].unique().tolist()
    require(not free, f"costs has no number for the fidelity {free[0] if free else 0:g} of some arms.")
    own = (levels == target).nonzero().squeeze(-1)
    require(len(own) > 0, f"target: no arm has the fidelity {target:g}; there are {levels.unique().tolist()[:10]}.")
    place = matches(listed[own].double(), listed.index_fill(-1, torch.tensor([column], device=listed.device), target).double())
    lonely = (place < 0).nonzero().squeeze(-1).tolist()
    require(not lonely, f"arms: arm {lonely[0] if lonely else 0} has no counterpart at the target fidelity {target:g}: add it.")
    twin = torch.where(levels == target, torch.arange(len(listed), device=listed.device), own[place])

    if isinstance(models, Joint):
        require(
            not minimize, "minimize= here is for models of one outcome: name the outcomes to minimise in constrained or pareto."
        )
        known = isinstance(models.aim, Constrained | Scalarized)
        message = f"the policy at the target must be a constrained or a pareto policy, got {type(models.aim).__name__}."
        require(known, message, UnsupportedError)
        message = "known outcomes are of one fidelity: leave known= out of a policy of several, or model them."
        require(not models.known, message, UnsupportedError)
        policy = replace(models, aim=Fidelity(models.aim, twin, price, q))
        return _scored(policy, LogEI, "bounds or the improvement", draws=False)

    def aim(names: Names) -> Fidelity:
        message = (
            f"models must have one outcome here, got {', '.join(names)}: for several, pass constrained(models, …) or "
            "pareto(models, …) instead."
        )
        require(len(names) == 1, message, UnsupportedError)
        return Fidelity(Constrained(Limit(0, -1.0 if minimize else 1.0, 0.0), (), 0.95), twin, price, q)

    return _scored(joint(models, aim), UCB, "bounds", draws=False)


# ---------------------------------------------------------------------- checks of arguments


def _scored(policy: Joint, kind: type, wanted: str, *, draws: bool = True) -> Joint:
    """Return the policy, or raise an error if the aim does not support the score of its models."""
    score = policy.engine.score
    good = isinstance(score, (UCB, kind)) or (draws and policy.draws and not isinstance(score, LogEI))
    require(
        good,
        f"this policy needs {wanted}, and the score of the models is {type(score).__name__}: use gp_ucb"
        + (" or thompson_sampling." if draws else " with acquisition='ucb'."),
        UnsupportedError,
    )
    return policy


def _check_bounds(name: str, model: Policy) -> None:
    """Raise `UnsupportedError` for a width of another λ or noise than those of the model."""
    assert isinstance(model, Composed)
    base = model.confidence
    while isinstance(base, Scaled):
        base = base.base
    try:
        check_assumptions(base, model.noise_std, model.regularization)
    except UnsupportedError as error:
        raise UnsupportedError(f"the bounds of {name!r}, by which arms are safe, have no theorem: {error}") from error


def _place(name: Any, names: Names, where: str) -> int:
    check_named(where, [name], names)
    return names.index(name)


def _objective(maximize: str | None, minimize: str | None, names: Names) -> Limit:
    require((maximize is None) != (minimize is None), "name one objective: maximize= or minimize=, and not both.")
    if maximize is not None:
        return Limit(_place(maximize, names, "maximize"), 1.0, 0.0)
    return Limit(_place(minimize, names, "minimize"), -1.0, 0.0)


def _limits(at_least: Any, at_most: Any, names: Names) -> tuple[Limit, ...]:
    found = []
    for where, given, sign in (("at_least", at_least, 1.0), ("at_most", at_most, -1.0)):
        require(given is None or isinstance(given, Mapping), f"{where} must be numbers by outcome, got {given!r:.60}.")
        for name, value in ({} if given is None else given).items():
            require(is_finite(value), f"{where}[{name!r}] must be a finite number, got {value!r}.")
            found.append(Limit(_place(name, names, where), sign, float(value)))
    require(len(found) > 0, "there are no limits: pass at_least= or at_most=, numbers by outcome.")
    return tuple(found)


def _check_certainty(certainty: float) -> None:
    require(is_finite(certainty) and 0 < certainty < 1, f"certainty must be a probability in (0, 1), got {certainty!r}.")


def _check_optimism(optimism: float) -> None:
    require(
        is_finite(optimism) and 0 <= optimism <= 1, f"optimism must be a fraction of the width, from 0 to 1, got {optimism!r}."
    )


def _named(what: str, given: Sequence[str], names: Names) -> Names:
    """Names of outcomes, in the order of the outcomes."""
    require(not isinstance(given, str) and isinstance(given, Sequence), f"{what} must be a list of names of outcomes.")
    places = {_place(name, names, what) for name in given}
    return tuple(name for j, name in enumerate(names) if j in places)


def _signs(minimize: Sequence[str], names: Names) -> tuple[float, ...]:
    small = _named("minimize", minimize, names)
    return tuple(-1.0 if name in small else 1.0 for name in names)
