"""A scalable GP-UCB in your BoTorch loop: two lines change, and a step hardly costs more as the data grow.

    python docs/tutorials/scalable_gp_ucb.py [--figure docs/scalable_gp_ucb.png] [--evaluations 900] [--seeds 1]

Hartmann-6 on the unit cube, observed with noise of known standard deviation 0.2 (the function spans about 3.3). Two loops with
the same first points, the same kernel to begin with, fitted again by each loop's own model whenever its data have doubled, the
same confidence bound and the same optimiser:

* `SingleTaskGP` and `UpperConfidenceBound`: BoTorch's own. Every observation is a row of a covariance matrix.
* `BanditModel` and `PolicyAcquisition`: a dictionary of some of the points, drawn by leverage scores (BKB); conditioning costs
  O(m²) for m points of the dictionary. A new dictionary is drawn whenever the data have grown by a tenth.

Prints a table, and draws the CPU seconds of a step and the simple regret of what each would recommend, averaged over the seeds,
with 95 % intervals if there are ten seeds or more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import botorch
import gpytorch
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.test_functions import Hartmann
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

import torchbandits as tb
from torchbandits.botorch import BanditModel, PolicyAcquisition

NOISE_STD, WIDTH, DIM = 0.2, 2.0, 6
COLORS = {"SingleTaskGP": "#0072B2", "BanditModel": "#D55E00"}  # Okabe and Ito's
BOUNDS = torch.tensor([[0.0] * DIM, [1.0] * DIM]).double()


@dataclass
class Trace:
    """Results of a loop: CPU seconds of every step, regret of the recommendation at some of them, points of the model
    at the end."""

    seconds: list[float] = field(default_factory=list)
    checked: list[int] = field(default_factory=list)
    regret: list[float] = field(default_factory=list)
    size: int = 0


class Problem:
    """Hartmann-6, to be maximised, and its noise: one generator, so that both loops see the same noise."""

    def __init__(self, seed: int) -> None:
        self.function = Hartmann(dim=DIM, negate=True).double()
        self.generator = torch.Generator().manual_seed(seed)

    def observe(self, X: Tensor) -> Tensor:
        """`n x d -> n x 1`, with noise."""
        noise = torch.randn(len(X), 1, generator=self.generator, dtype=torch.float64)
        return self.function(X).unsqueeze(-1) + NOISE_STD * noise

    def regret(self, model: Model, X: Tensor) -> float:
        """Noise-free distance from the optimum of the observed point with the highest posterior mean."""
        with torch.no_grad():
            best = X[model.posterior(X).mean.argmax()]
        return float(self.function.optimal_value - self.function(best))


def fitted(model: Model) -> gpytorch.kernels.Kernel:
    """The kernel of a model, fitted to its data: BoTorch's way to say so, for either model."""
    model.covar_module.requires_grad_(True)
    botorch.fit_gpytorch_mll(gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model))
    return model.covar_module.requires_grad_(False)


# What follows is the part to copy. First BoTorch's own: a model of all rows, made anew when one is added.


def stock_steps(X: Tensor, Y: Tensor, kernel: gpytorch.kernels.Kernel, noise_std: float) -> Iterator[Model]:
    """A model each time that a point and its reward are sent."""
    due = 2 * len(X)
    while True:
        model = SingleTaskGP(X, Y, torch.full_like(Y, noise_std**2), covar_module=kernel, outcome_transform=None)
        if len(X) >= due:
            kernel, due = fitted(model), 2 * len(X)
            continue
        x, y = yield model.requires_grad_(False)
        X, Y = torch.cat([X, x]), torch.cat([Y, y])


def stock_acquisition(model: Model) -> AcquisitionFunction:
    """BoTorch's β multiplies the variance: it is the square of a width."""
    return UpperConfidenceBound(model, beta=WIDTH**2)


# And ours: conditioned on the new point; a new dictionary now and then.


def bandit_steps(X: Tensor, Y: Tensor, kernel: gpytorch.kernels.Kernel, noise_std: float) -> Iterator[Model]:
    """A model each time that a point and its reward are sent."""
    due = 2 * len(X)
    while True:
        drawn = len(X)
        if drawn >= due:
            kernel, due = fitted(BanditModel(X, Y, kernel=kernel, noise_std=noise_std)), 2 * drawn
        generator = torch.Generator().manual_seed(drawn)
        options = {"dictionary": "leverage", "oversampling": 8.0, "generator": generator}
        model = BanditModel(X, Y, kernel=kernel, noise_std=noise_std, **options)
        while len(X) < min(1.1 * drawn, due):
            x, y = yield model
            model = model.condition_on_observations(x, y)
            X, Y = torch.cat([X, x]), torch.cat([Y, y])


def bandit_acquisition(model: Model) -> AcquisitionFunction:
    """Any policy that scores points; a policy with its own width (`norm_bound=`, `delta=`) has the theory's."""
    policy = tb.bkb(model.covar_module, noise_std=float(model.noise_std), width=tb.widths.Constant(WIDTH))
    return PolicyAcquisition(model, policy)


LOOPS = {"SingleTaskGP": (stock_steps, stock_acquisition), "BanditModel": (bandit_steps, bandit_acquisition)}


def run(name: str, evaluations: int, initial: int, seed: int) -> Trace:
    """One loop; the clock, of the processor, runs from a reward to the next candidate."""
    problem, trace = Problem(seed), Trace()
    X = torch.quasirandom.SobolEngine(DIM, scramble=True, seed=seed).draw(initial, dtype=torch.float64)
    Y = problem.observe(X)
    mean, std = Y.mean(), Y.std()
    noise_std = NOISE_STD / float(std)
    kernel = fitted(SingleTaskGP(X, (Y - mean) / std, torch.full_like(Y, noise_std**2), outcome_transform=None))
    steps, acquisition_of = LOOPS[name]
    models = steps(X, (Y - mean) / std, kernel, noise_std)
    begun = time.process_time()
    model = next(models)
    for t in range(initial, evaluations):
        options = {"maxiter": 20, "seed": seed + t}
        x, _ = optimize_acqf(acquisition_of(model), BOUNDS, 1, num_restarts=2, raw_samples=64, options=options)
        trace.seconds.append(time.process_time() - begun)
        y = problem.observe(x)
        X = torch.cat([X, x])
        begun = time.process_time()
        model = models.send((x, (y - mean) / std))
        begun_check = time.process_time()
        if (t + 1 - initial) % max(1, (evaluations - initial) // 60) == 0:
            trace.checked.append(t + 1)
            trace.regret.append(problem.regret(model, X))
        begun += time.process_time() - begun_check  # what is only for the figure is no part of a step
    trace.size = int(model.process().dictionary.sum()) if isinstance(model, BanditModel) else len(X)
    return trace


def draw(traces: dict[str, list[Trace]], initial: int, path: Path) -> None:
    """Seconds a step (median), and regret of the recommendation (mean over the seeds)."""
    figure = Figure(figsize=(9.2, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for name, runs in traces.items():
        seconds = torch.tensor([trace.seconds for trace in runs])
        window = max(1, seconds.shape[-1] // 40)
        blocks = seconds[:, : seconds.shape[-1] // window * window].reshape(len(runs), -1, window)
        at = initial + window * (torch.arange(blocks.shape[1]) + 0.5)
        left.plot(at.numpy(), blocks.transpose(0, 1).flatten(1).median(dim=-1).values.numpy(), color=COLORS[name], label=name)
        mean, half = averaged(torch.tensor([trace.regret for trace in runs], dtype=torch.float64))
        right.plot(runs[0].checked, mean.numpy(), color=COLORS[name], label=name)
        if len(runs) >= 10:
            lower, upper = (mean - half).clamp_min(0), mean + half
            right.fill_between(runs[0].checked, lower.numpy(), upper.numpy(), color=COLORS[name], alpha=0.2, linewidth=0)
    left.set(xlabel="evaluations", ylabel="CPU seconds a step (median)", ylim=(0, None))
    right.set(xlabel="evaluations", ylabel="simple regret of the recommendation", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.9", linewidth=0.6)
    right.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def averaged(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the first dimension, and half of its 95 % interval."""
    return values.mean(dim=0), 1.96 * values.std(dim=0, correction=min(1, len(values) - 1)) / len(values) ** 0.5


def main(arguments: list[str] | None = None) -> dict[str, list[Trace]]:
    """Run both loops for each seed, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, default=Path("docs/scalable_gp_ucb.png"))
    parser.add_argument("--evaluations", type=int, default=900)
    parser.add_argument("--initial", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args(arguments)
    traces: dict[str, list[Trace]] = {name: [] for name in LOOPS}
    for seed in range(options.seeds):
        for name in LOOPS:
            trace = run(name, options.evaluations, options.initial, seed)
            traces[name].append(trace)
            seconds, last = torch.tensor(trace.seconds), min(100, len(trace.seconds))
            print(
                f"seed {seed}, {name:<13} first {last} steps {seconds[:last].median():.3f} CPU s each, "
                f"last {last} {seconds[-last:].median():.3f} s, all {seconds.sum():.0f} s; "
                f"{trace.size} points in the model; simple regret {trace.regret[-1]:.4f}",
                flush=True,
            )
    for name, runs in traces.items():
        mean, half = averaged(torch.tensor([trace.regret[-1] for trace in runs]))
        print(f"{name:<13} simple regret {mean:.4f} ± {half:.4f} ({len(runs)} seeds)")
    draw(traces, options.initial, options.figure)
    return traces


if __name__ == "__main__":
    main()
