"""Golden traces: the picks of every case of the contract suite, recorded in `golden_traces.json` and replayed by the tests.

A trace records one run of a case in one variant (`VARIANTS`):

- `picks`: one string per batch row, one word per batch, one character per arm: 0-9, A-Z and a-z are the arms 0 to 61, and `.`
  is a batch in which the row picks nothing. In a box a word is one point, with coordinates rounded to four decimals;
- `widths`: per batch row the confidence width after every tenth batch and after the last, to eight digits;
- `draws`: per generator the two integers that it would draw next, as a digest of its state;
- `best`: the recommended arm of each batch row, empty in a box;
- `names`: the names in the saved state with picks open, as positions in the list `names` of the file.

The file is JSON with one line per trace, so that `git diff` shows which traces changed. `python scripts/golden_traces.py show
bkb` prints the traces of a policy, and `python scripts/golden_traces.py write` records all traces again.

The runs are the same on every machine. Arms and rewards are computed in Python's own arithmetic from its own generator, not by
vectorised functions or BLAS. The arms are in general position, so that scores differ by far more than rounding errors: with
arms and rewards perturbed by a relative 1e-11 every pick stays the same. A box is not square, and six rewards are known before
the first pick, because otherwise the scores at its corners would be equal, and rounding would decide between them.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import random
import string
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gpytorch
import torch
from contract import CASES, OPTIONS, Case
from torch import Tensor

import torchbandits as tb
from torchbandits.policies import registry

FILE = Path(__file__).with_name("golden_traces.json")
VARIANTS = (
    "single",
    "rows",  # batch rows that share the arms
    "own rows",  # batch rows, each with its own arms and lengthscale
    "float32",
    "source",
    "box",
)
# Variants that some policies, or some of their modes, do not support, because they read the arms as one tensor or only choose
# among given arms.
LACKS: dict[str, set[str | tuple[str, str]]] = {
    "source": {
        "ada_bkb", "bpe", "cbrap", "lb_gp_ucb", "lin_ucb", "pi_gp_ucb", "reds", "regularized_evolution", "rff_ucb", "soful",
        "sup_kernel_ucb",
        ("thompson_sampling", "qff"), ("thompson_sampling", "rff"),
    },
    "box": {
        "auto", "bpe", "epsilon_greedy", "irgp_ucb", "kriging_believer", "lb_gp_ucb", "lucb", "qpo", "pi_gp_ucb", "reds",
        "regularized_evolution", "sup_kernel_ucb",
        ("batch_bkb", "uncertainty start"),
    },
}  # fmt: skip
# Some default widths count the arms, which a box does not have, and the depth of a tree over a box follows from the horizon.
FOR_BOX: dict[str, dict[str, Any]] = {
    "gp_ucb": {"width": tb.widths.Constant(2.0)},
    "lse": {"width": tb.widths.Constant(2.0)},
    "compressed_gp": {"width": tb.widths.Constant(2.0)},
    "ada_bkb": {"horizon": 200},
}

# Rounding differs between machines and grows in the widths, which are sums over all pulls; picks are compared exactly. In a box
# the ascent of the score stops within a tolerance of the optimum.
WIDTH_RTOL = {variant: 1e-3 if variant == "float32" else 1e-4 if variant == "box" else 1e-6 for variant in VARIANTS}
POINT_ATOL = 1e-3

ARMS, ROWS, LIMIT, EVERY, KNOWN = 60, 3, 4, 10, 6
LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
BOX = torch.tensor([[-0.1, 0.05], [0.9, 1.2]], dtype=torch.float64)


def _arms(draw: random.Random) -> list[list[float]]:
    """Random arms, two of them exact duplicates of others."""
    arms = [[draw.random(), draw.random()] for _ in range(ARMS)]
    arms[41], arms[52] = arms[7], arms[20]
    return arms


def _noise(draw: random.Random) -> list[float]:
    """Sums of three uniforms with standard deviation 0.1. Normals would need a logarithm and a cosine, which vary by
    machine."""
    return [0.2 * sum(draw.random() - 0.5 for _ in range(3)) for _ in range(400)]


_DRAW = random.Random(19)
POINTS = [_arms(_DRAW) for _ in range(ROWS)]
NOISE = [_noise(_DRAW) for _ in range(ROWS)]


def reward(point: list[float], pull: int, row: int = 0) -> float:
    """A high and a low bump, plus the noise of that pull."""
    x, y = point
    high = 2.0 / (1.0 + 12.0 * ((x - 0.7) * (x - 0.7) + (y - 0.3) * (y - 0.3)))
    low = 1.6 / (1.0 + 25.0 * ((x - 0.2) * (x - 0.2) + (y - 0.8) * (y - 0.8)))
    return high + low - 1.0 + NOISE[row][pull]


# ------------------------------------------------------------------------- runs


def runs() -> list[tuple[Case, str]]:
    """Every case with each variant that it supports."""
    lacks = {variant: LACKS.get(variant, set()) for variant in VARIANTS}
    pairs = itertools.product(CASES, VARIANTS)
    return [(c, v) for c, v in pairs if c.name not in lacks[v] and (c.name, c.mode) not in lacks[v]]


def name_of(case: Case, variant: str) -> str:
    """The key of a trace in the file."""
    return ", ".join(filter(None, (case.name, case.mode, variant)))


def pulls_of(case: Case, variant: str) -> int:
    """The length of a trace: 200 pulls, or fewer where a pull is slow or another variant covers the same code."""
    if variant == "box" and case.name not in ("ada_bkb", "uniform"):
        return 8  # each pull maximises the score by an ascent
    if case.mode == "refit" or case.name == "auto":
        return 60 if variant == "single" else 30  # each trace includes fits of the kernel
    return {"single": 200, "rows": 200, "own rows": 60}.get(variant, 100)


def bandit_of(case: Case, variant: str) -> tb.Bandit:
    """The bandit of a run before its first pull."""
    factory, options, own = registry[case.name], OPTIONS[case.name][case.mode], variant == "own rows"
    kernel = gpytorch.kernels.RBFKernel(batch_shape=torch.Size([ROWS] if own else []))
    kernel = kernel.to(torch.float32 if variant == "float32" else torch.float64)
    kernel.lengthscale = torch.tensor([0.25, 0.4, 0.6] if own else 0.4, dtype=torch.float64).reshape(-1, 1, 1)
    given = (kernel,) if "kernel" in inspect.signature(factory).parameters else ()
    policy = factory(*given, **(options | FOR_BOX.get(case.name, {}) if variant == "box" else options))

    generators = [torch.Generator().manual_seed(5 + row) for row in range(ROWS)]
    arms = torch.tensor(POINTS if own else POINTS[0], dtype=torch.float32 if variant == "float32" else torch.float64)
    if variant == "box":
        bandit = tb.Bandit(policy, bounds=BOX, generator=generators[0])
        rewards = [reward(point, pull) for pull, point in enumerate(POINTS[0][:KNOWN])]
        bandit.observe(arms[:KNOWN], torch.ones(KNOWN), torch.tensor(rewards, dtype=torch.float64))
        return bandit
    if variant == "source":
        return tb.Bandit(policy, tb.sources.chunks(lambda: iter(arms.split(17)), *arms.shape), generator=generators[0])
    return tb.Bandit(policy, arms, generator=generators if variant in ("rows", "own rows") else generators[0])


class Run:
    """One run of a case in a variant, and its record."""

    def __init__(self, case: Case, variant: str) -> None:
        self.bandit, self.pulls, self.in_box = bandit_of(case, variant), pulls_of(case, variant), variant == "box"
        rows = self.bandit.batch_shape.numel()
        self.single = not self.bandit.batch_shape
        self.told = [0] * rows
        self.picks: list[list[str]] = [[] for _ in range(rows)]
        self.widths: list[list[float | None]] = [[] for _ in range(rows)]

    def play(self) -> dict[str, Any]:
        """Play to the end and return the trace."""
        for batch in itertools.count():
            self.step(batch)
            done = min(self.told) >= self.pulls
            if done or batch % EVERY == 0:
                for row, width in enumerate(self.bandit.width.reshape(-1).tolist()):
                    self.widths[row].append(None if math.isnan(width) else float(f"{width:.8g}"))
            if done:
                break
        draws = [torch.randint(1 << 31, (2,), generator=duplicate(g)).tolist() for g in self.bandit.generators]
        best = "" if self.in_box else "".join(LETTERS[arm] for arm in self.bandit.best_arm().reshape(-1).tolist())
        self.bandit.ask(limit=1)
        names = sorted(names_in(self.bandit.state_dict()))
        return {
            "picks": [" ".join(row) for row in self.picks],
            "widths": self.widths,
            "draws": draws,
            "best": best,
            "names": names,
        }

    def step(self, batch: int) -> None:
        """Play one batch. Some batches are extended, restricted to a part of the arms, forgotten in part, told in two parts, or
        preceded by history."""
        bandit, single = self.bandit, self.single
        # Rows have different limits: row 1 sometimes picks nothing, and a row that has made all its pulls picks nothing.
        limits = [0 if row == 1 and batch % 7 == 6 else LIMIT - row for row in range(len(self.told))]
        limits = [max(0, min(limit, self.pulls - told)) for limit, told in zip(limits, self.told, strict=True)]
        options: dict[str, Any] = {"limit": limits[0] if single else torch.tensor(limits)}
        if batch % 6 == 4 and not self.in_box:
            options["available"] = torch.arange(ARMS) % 4 != batch % 4
        if batch == 12 and single and not self.in_box:
            sums = torch.tensor([2 * reward(POINTS[0][3], 0), reward(POINTS[0][17], 0)], dtype=torch.float64)
            bandit.observe(torch.tensor([3, 17]), torch.tensor([2.0, 1.0]), sums)
        selection = bandit.ask(**options)
        if batch % 5 == 3 and min(limits) > 0:
            selection = bandit.ask(more=2)
        for row, (points, index, mask) in enumerate(self.by_row(selection)):
            words = [self.word(points[place].tolist(), int(index[place])) for place in mask.nonzero().reshape(-1).tolist()]
            self.picks[row].append((" " if self.in_box else "").join(words) or ".")
        if single and batch % 8 == 6 and len(selection) > 1:
            bandit.forget(selection[:1])
            selection = selection[1:]
        in_parts = single and batch % 3 == 1 and len(selection) > 1
        for part in (selection[1:], selection[:1]) if in_parts else (selection,):
            bandit.tell(part, self.rewards(part))

    def rewards(self, selection: tb.Selection) -> Tensor:
        """Rewards of the picks, NaN in masked places."""
        rewards = torch.full((len(self.told), len(selection)), torch.nan, dtype=torch.float64)
        for row, (points, _, mask) in enumerate(self.by_row(selection)):
            for place in mask.nonzero().reshape(-1).tolist():
                rewards[row, place] = reward(points[place].tolist(), self.told[row], row)
                self.told[row] += 1
        return rewards.reshape(selection.mask.shape)

    def by_row(self, selection: tb.Selection) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Points, index and mask of each batch row."""
        parts = (selection.points, selection.index, selection.mask)
        return list(zip(*((part.unsqueeze(0) if self.single else part) for part in parts), strict=True))

    def word(self, point: list[float], arm: int) -> str:
        """The text of a pick in the trace."""
        return ",".join(f"{x:.4f}" for x in point) if self.in_box else LETTERS[arm]


def play(case: Case, variant: str) -> dict[str, Any]:
    """The trace of a run."""
    return Run(case, variant).play()


def duplicate(generator: torch.Generator) -> torch.Generator:
    """A generator in the same state."""
    return torch.Generator().set_state(generator.get_state())


def names_in(saved: Any, name: str = "") -> Iterator[str]:
    """The dotted names of all entries of nested dictionaries and lists."""
    if isinstance(saved, (dict, list, tuple)):
        for key, value in saved.items() if isinstance(saved, dict) else enumerate(saved):
            yield from names_in(value, f"{name}.{key}".lstrip("."))
    else:
        yield name


# ------------------------------------------------------------------------- comparing


def first_difference(name: str, expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    """A description of the earliest difference between two traces, or None."""
    variant = name.rsplit(", ", 1)[1]
    for find in (_picks_differ, _widths_differ):
        difference = find(expected, found, variant)
        if difference is not None:
            return f"{name}: {difference}"
    for field, meaning in {"draws": "the next draws of the generators", "best": "the recommended arms"}.items():
        if expected[field] != found[field]:
            return f"{name}: after the last batch {meaning} were {expected[field]} and are {found[field]}."
    missing, new = (
        sorted(set(a) - set(b)) for a, b in ((expected["names"], found["names"]), (found["names"], expected["names"]))
    )
    return f"{name}: the saved state lacks {missing} and has new {new}." if missing or new else None


def _picks_differ(expected: dict[str, Any], found: dict[str, Any], variant: str) -> str | None:
    differences = []
    for row, pair in enumerate(zip(expected["picks"], found["picks"], strict=True)):
        for batch, (was, now) in enumerate(itertools.zip_longest(*(line.split() for line in pair), fillvalue="(none)")):
            if not _same_word(was, now, variant):
                pulls = batch if variant == "box" else sum(len(word.strip(".")) for word in pair[0].split()[:batch])
                differences.append((batch, row, pulls, was, now))
                break
    if not differences:
        return None
    batch, row, pulls, was, now = min(differences)
    step = f"pick {batch}" if variant == "box" else f"batch {batch} (after {pulls} pulls)"
    return f"in row {row} {step} was {was} and is {now}."


def _same_word(was: str, now: str, variant: str) -> bool:
    if was == now or variant != "box" or "(none)" in (was, now):
        return was == now
    return all(abs(float(a) - float(b)) <= POINT_ATOL for a, b in zip(was.split(","), now.split(","), strict=True))


def _widths_differ(expected: dict[str, Any], found: dict[str, Any], variant: str) -> str | None:
    for row, (before, after) in enumerate(zip(expected["widths"], found["widths"], strict=True)):
        for place, (was, now) in enumerate(zip(before, after, strict=True)):
            if was is now is None:
                continue
            if was is None or now is None or not math.isclose(was, now, rel_tol=WIDTH_RTOL[variant]):
                after_batch = "the last batch" if place == len(before) - 1 else f"batch {place * EVERY}"
                return f"in row {row} the width after {after_batch} was {was} and is {now}."
    return None


# ------------------------------------------------------------------------- the file


def load() -> dict[str, dict[str, Any]]:
    """All traces by name, with the names in the saved state written out."""
    file = json.loads(FILE.read_text())
    spelt = [group.split(" ") for group in file["names"]]
    return {name: t | {"names": sorted(n for g in t["names"] for n in spelt[g])} for name, t in file["traces"].items()}


def dump(traces: dict[str, dict[str, Any]]) -> str:
    """The text of the file. States of many traces have the same names, so each group of names is written only once."""
    groups = {name: _groups(trace["names"]) for name, trace in traces.items()}
    table = sorted({group for groups_of in groups.values() for group in groups_of})
    places = {group: place for place, group in enumerate(table)}
    short = {name: trace | {"names": [places[group] for group in groups[name]]} for name, trace in traces.items()}
    names = ",\n".join(json.dumps(group) for group in table)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(trace, separators=(',', ':'))}" for name, trace in short.items())
    return f'{{"names": [\n{names}\n],\n"traces": {{\n{lines}\n}}}}\n'


def _groups(names: Iterable[str]) -> list[str]:
    """Groups of names with the same prefix."""
    return [" ".join(group) for _, group in itertools.groupby(names, key=lambda name: name.split(".", 1)[0])]
