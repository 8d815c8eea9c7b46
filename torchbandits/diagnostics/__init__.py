r"""Diagnostics of the model: kernel, noise, dictionary and widths compared with the data.

`diagnose` runs all that applies and prints as a report. `leave_one_out` judges intervals without held-out data, `calibration`
with it; `effective_dimension`, `dictionary_quality`, `widths` and `noise` each examine one assumption. All take a bandit that
was told rewards, change nothing, and report faults through `warnings` as `errors.DiagnosticWarning`. Where a warning depends on
chance, its probability is 0.001 per batch row when the model is right (`chance.FALSE_ALARM`).

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

from torchbandits.diagnostics.assumptions import Noise, Widths, noise, widths
from torchbandits.diagnostics.calibration import Calibration, calibration, leave_one_out
from torchbandits.diagnostics.leverages import DictionaryQuality, EffectiveDimension, dictionary_quality, effective_dimension
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
