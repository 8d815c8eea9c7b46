"""The posterior's view of the features, the noise and the best arm, in a few plain lines."""

from torchbandits.explanation.explaining import explain
from torchbandits.explanation.explanation import Explanation
from torchbandits.explanation.outcomes import OutcomeExplanation, explain_outcomes
from torchbandits.explanation.words import Words

__all__ = ["Explanation", "OutcomeExplanation", "Words", "explain", "explain_outcomes"]
