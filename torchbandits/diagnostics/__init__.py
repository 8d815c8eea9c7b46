r"""Does the model deserve to be believed? Kernel, noise, dictionary and widths, held against the data.

`diagnose` runs all that applies and prints as a report. `leave_one_out` judges intervals without held-out data, `calibration`
with it; `effective_dimension`, `dictionary_quality`, `widths` and `noise` look at one thing each. All take a bandit that was
told rewards, change nothing, and send what looks wrong through `warnings` as `errors.DiagnosticWarning`. Where a warning is a
matter of chance it comes once in a thousand times (`chance.FALSE_ALARM`), a batch row, when the model is right.

    import gpytorch, torch
    import torchbandits as tb

    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(200, 1, generator=generator, dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 2.0  # the rewards below change much faster
    bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1), arms)
    index = torch.randint(200, (60,), generator=generator)
    rewards = torch.sin(20 * arms[index, 0]) + 0.1 * torch.randn(60, generator=generator, dtype=torch.float64)
    bandit.tell(index[:40], rewards[:40])

    report = tb.diagnostics.diagnose(bandit, held_out=(index[40:], rewards[40:]))  # warns: the intervals are too narrow
    print(report)
    report.parts["Held-out rewards"].figure().savefig("calibration.png", dpi=110)  # if Matplotlib is installed
"""

from torchbandits.diagnostics.calibration import calibration, leave_one_out
from torchbandits.diagnostics.confidence import Widths, widths
from torchbandits.diagnostics.coverage import Calibration
from torchbandits.diagnostics.dictionary import DictionaryQuality, dictionary_quality
from torchbandits.diagnostics.dimension import EffectiveDimension, effective_dimension
from torchbandits.diagnostics.noise import Noise, noise
from torchbandits.diagnostics.report import Diagnosis, diagnose

__all__ = [
    "Calibration",
    "Diagnosis",
    "DictionaryQuality",
    "EffectiveDimension",
    "Noise",
    "Widths",
    "calibration",
    "diagnose",
    "dictionary_quality",
    "effective_dimension",
    "leave_one_out",
    "noise",
    "widths",
]
