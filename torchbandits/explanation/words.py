"""The words of an explanation, and the sentences that are said of one reward and of several outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchbandits.display import count

_SHOWN = 5  # features that are named
# Number of distinct arms, and of those per name of features, below which the order of features often changes with more rewards.
_SETTLED, _SETTLED_EACH = 24, 3
_UNEXPLAINED = 0.25  # fraction of the variance between arms that is worth a sentence
# Fraction of the variance between arms, each predicted from the others, up to which campaigns found no better rows than random
# ones: where nothing was predicted beforehand, and where no predictions were made.
_LITTLE, _LITTLE_ALONE = 0.2, 0.1
# Number of distinct arms, and of predictions made beforehand, from which these fractions are known well enough.
_TOLD, _FORECASTS = 16, 10


@dataclass(frozen=True)
class Words:
    """Words in the text of an explanation.

    Attributes:
        arm, feature, pull: Nouns; for a campaign "row", "column" and "measurement".
        pulled: Participle of `pull`.
        given: Noun for an observed reward.
        attempt: Noun for a pull that may have failed.
        reward: The quantity that is learned, with its article.
        above: Where values better than the average lie.
        names: Names of arms by their index; an arm without a name is called by the index.
        other: Noun for a point that is none of the arms.
    """

    arm: str = "arm"
    feature: str = "feature"
    pull: str = "pull"
    pulled: str = "pulled"
    given: str = "reward"
    attempt: str = "pull"
    reward: str = "the reward"
    above: str = "above"
    names: Mapping[int, str] = field(default_factory=dict)
    other: str = "other point"

    def called(self, arm: int) -> str:
        """The name of an arm in quotes, or its index; −1 is a point that is none of the arms."""
        if arm < 0:
            return f"a point that is none of the {self.arm}s"
        return repr(self.names[arm]) if arm in self.names else f"{self.arm} {arm}"

    def points(self, distinct: int, elsewhere: int, num_arms: int) -> str:
        """The number of distinct points, of which some may be none of the arms."""
        others = f" and {count(elsewhere, self.other)}" if elsewhere else ""
        return f"{distinct - elsewhere:,} of {num_arms:,} {self.arm}s{others}"


def failures_in_words(failed: int, avoided: int, said: Words) -> str:
    """A sentence on pulls that failed and arms that are left out therefore; an empty text if none failed."""
    if not failed:
        return ""
    found = f"{count(failed, said.attempt)} failed"
    return (
        f"{found}; {count(avoided, said.arm)} that the model expects to fail will not be selected for now."
        if avoided
        else f"{found}."
    )


def percent(share: float) -> str:
    """A fraction as a percentage, which is 0% for 0 alone."""
    return "less than 1%" if 0 < share < 0.005 else f"{share:.0%}"


def source_of_noise(two_values: bool, repeated: bool, said: Words) -> str:
    """How the noise is known: by repeated pulls, as the largest of rewards of two values, or else by the model."""
    if repeated:
        return f"by repeated {said.pull}s"
    return "as large as two values allow" if two_values else "by the model"


def by_rank(ranked: bool) -> str:
    """The words after a share of the variance where the model knows the rewards by their ranks, as that of `auto` does."""
    return ", by rank" if ranked else ""


def unknown_in_words(said: Words) -> str:
    """What is said of a quantity that cannot be learned as long as all rewards are equal."""
    return f"nothing is known until two {said.given}s differ"


def unexplained_in_words(unexplained: float, ranked: bool, said: Words) -> str:
    """A sentence on the variance that does not follow the features, after a space; an empty text if it is little."""
    if not unexplained >= _UNEXPLAINED:
        return ""
    between = f"{said.arm}s, by rank," if ranked else f"{said.arm}s"
    return f" About {unexplained:.0%} of the variance between {between} does not follow the {said.feature}s."


def predicted_in_words(r2: float, distinct: int, forecast_r2: float, forecasts: int, said: Words) -> str:
    """A sentence on features that predict little, beforehand and of each arm from the others; an empty text if they predict
    more, or it is not known."""
    foretold = forecasts >= _FORECASTS
    if distinct < _TOLD or not r2 <= (_LITTLE if foretold else _LITTLE_ALONE) or (foretold and forecast_r2 > 0):
        return ""
    share = f"only {r2:.0%}" if r2 >= 0.005 else "nothing"
    return (
        f"So far the {said.feature}s predict little: each {said.arm} predicted from the others, {share} of the variance "
        f"between {said.arm}s is predicted, and {said.arm}s chosen at random may do as well."
    )


def forecast_in_words(forecast_r2: float, forecasts: int, said: Words) -> str:
    """A sentence on how much was predicted before it was told; an empty text if it is not known."""
    if forecasts < _FORECASTS or math.isnan(forecast_r2):
        return ""
    share = percent(forecast_r2) if forecast_r2 > 0 else "none"
    return f"Predictions made beforehand explained {share} of the variance of the {said.given}s, by rank."


def shifts_in_words(shifts: Sequence[float], said: Words) -> str:
    """A sentence on the shifts of blocks, after a space; an empty text if none was estimated."""
    if not any(shifts):
        return ""
    size = math.sqrt(sum(shift**2 for shift in shifts) / len(shifts))
    return f" The {said.given}s of a block are shifted together, by about {size:.2g} over {len(shifts):,} blocks."


def by_name(relevance: Tensor, names: Sequence[str]) -> tuple[Tensor, list[str]]:
    """The relevances of features with equal names, such as the coordinates of one substance, added up."""
    different = list(dict.fromkeys(names))
    place = torch.tensor([different.index(name) for name in names])
    return torch.zeros(len(different), dtype=relevance.dtype).index_add(0, place, relevance.cpu()), different


def fastest(relevance: Tensor, names: Sequence[str]) -> str:
    """The features of the largest relevance with their percentages, in words; at most five, without those of relevance 0."""
    relevance, names = by_name(relevance, names)
    order = relevance.argsort(descending=True).tolist()[:_SHOWN]
    order = [j for j in order if float(relevance[j]) > 0] or order
    return ", ".join(f"{names[j]} ({float(relevance[j]):.0%})" for j in order)


def in_common(relevance: Tensor, names: Sequence[str], said: Words) -> str:
    """A sentence on the features of relevance 0, of which an estimated kernel knows nothing, after a space; an empty text if
    there are none."""
    relevance, names = by_name(relevance, names)
    same = [name for name, own in zip(names, relevance.tolist(), strict=True) if own == 0]
    if not same:
        return ""
    others = f" and {count(len(same) - _SHOWN, 'other')}" if len(same) > _SHOWN else ""
    return f" Nothing is known of {', '.join(same[:_SHOWN])}{others}, in which the {said.arm}s {said.pulled} do not differ."


def unsettled(distinct: int, names: Sequence[str], said: Words) -> str:
    """A sentence if so few distinct arms were pulled that the order of fitted relevances often changes; else an empty text.
    Features with equal names count as one, as in `by_name`."""
    named = len(set(names))
    needed = max(_SETTLED, _SETTLED_EACH * named)
    if distinct >= needed or named < 2:
        return ""
    return f" With fewer than {needed} distinct {said.arm}s this order often changes."
