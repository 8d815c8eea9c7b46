"""A bandit policy in Ax: a noisy simulator, three workers, arms that are worth a second look.

    python docs/tutorials/ax_loop.py            needs pip install "torchbandits[ax]"

Ax keeps the trials, the search space and the storage; the policy proposes. Six things to know:

- In a space of whole numbers and choices Ax's own optimisers never return to a combination that was tried or is under way
  (`X_avoid`). With noise that is wrong: one lucky trial can't be checked. `ax_generation_strategy` scores every combination,
  tried or not, unless told otherwise (`every_arm=False`). A node that deduplicates (`should_deduplicate=True`, as in the
  strategies that Ax chooses by itself) would replace a second pull by a random point.
- Above 10,000 combinations Ax searches locally. `ax_generation_strategy` scores all of them up to `max_arms` (10⁶).
- Where an evaluation fails, call `client.mark_trial_abandoned(index)`: the arm is not tried again while there are others. After
  `mark_trial_failed` Ax knows nothing of the trial, and the same arm is proposed again at once, for ever if it always fails.
  Neither teaches the model which other arms are likely to fail: lists of arms have `torchbandits.Bandit` and `auto` for that.
- Ax makes its arms as products of parameters and fits its model anew at every step. For a list of arms (molecules, networks),
  and for more than some 10⁴ arms or a few hundred trials, use `torchbandits.Bandit` with `ask` and `tell` instead.
- Ax fits the kernel, so that no theorem holds for the width of a policy. `beta=4.0`, two deviations, explores far less: in
  thirty trials of this program, with two seeds, it had less than half of the regret.
- A new process calls `torchbandits.botorch.register_with_ax()` before it loads an experiment.
"""

from __future__ import annotations

import argparse
import collections
import math
import tempfile
from pathlib import Path

import torch
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

from torchbandits.botorch import ax_generation_strategy

NOISE_STD = 0.3


def simulate(parameters: dict[str, float], generator: torch.Generator) -> float:
    """A noisy response, 2.0 at best: five blades at a pitch of 14."""
    pitch, blades = parameters["pitch"], parameters["blades"]
    quality = 2 * math.exp(-(((pitch - 14) / 6) ** 2) - ((blades - 5) / 2) ** 2)
    return quality + NOISE_STD * float(torch.randn((), generator=generator))


def main(rounds: int) -> None:
    """Run so many rounds of three trials, say what was found, stop, and go on from the file."""
    client = Client(random_seed=0)
    client.configure_experiment(
        name="turbine",
        parameters=[
            RangeParameterConfig("pitch", (0, 30), "int"),
            ChoiceParameterConfig("blades", [2.0, 3.0, 4.0, 5.0, 6.0], "float", is_ordered=True),
        ],
    )
    client.configure_optimization(objective="response")
    client.set_generation_strategy(ax_generation_strategy("gp_bucb", beta=4.0, num_initial=6, seed=0))
    noise, pulls = torch.Generator().manual_seed(0), collections.Counter()
    for _ in range(rounds):
        for index, parameters in client.get_next_trials(max_trials=3).items():  # each knows of the ones before it
            client.complete_trial(index, raw_data={"response": simulate(parameters, noise)})
            pulls[parameters["pitch"], parameters["blades"]] += 1
    best, prediction, _, _ = client.get_best_parameterization()
    mean = float(prediction["response"][0])
    again = sum(count > 1 for count in pulls.values())
    print(f"{3 * rounds} trials of {31 * 5} arms, {again} arms pulled again, the most pulled {max(pulls.values())} times")
    print(f"best: {best}, predicted {mean:.2f}")

    with tempfile.TemporaryDirectory() as folder:  # policy and model are stored by name, and go on after a restart
        client.save_to_json_file(str(Path(folder) / "turbine.json"))
        client = Client.load_from_json_file(str(Path(folder) / "turbine.json"))
    print(f"next, after a restart: {next(iter(client.get_next_trials(max_trials=1).values()))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="of three trials each")
    main(parser.parse_args().rounds)
