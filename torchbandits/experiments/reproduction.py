"""Configuration of a reproduced figure or table: experiments, layout, published numbers and claims."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from torchbandits.checks import check_text
from torchbandits.errors import ConfigError, nearest, require
from torchbandits.experiments.config import (
    Count,
    ExperimentConfig,
    FolderName,
    Repetitions,
    Seed,
)
from torchbandits.experiments.measures import MEASURES
from torchbandits.experiments.sections import Section, parse_section
from torchbandits.files import read_yaml

FOLDER = "figures"
"""Subfolder of the folder of configurations that holds those of figures."""


class PanelConfig(Section):
    """One panel: a measure of an experiment over t, over the length-scale (one line per NAME of policies labelled
    `NAME, …`), or over the position x of a study.

    `policies` are the labels shown, all by default. `suffix` is removed from them, so that a method has the same colour in all
    panels.
    """

    experiment: str
    measure: str
    policies: list[str] | None = None
    suffix: str = ""
    title: str = ""
    over: Literal["t", "lengthscale", "x"] = "t"
    xscale: Literal["log", "linear"] = "log"
    yscale: Literal["log", "linear"] | None = None
    top: PositiveFloat | None = None


# A picture of more panels than 20 x 20 is larger than Matplotlib can draw.
PanelRow = Annotated[list[PanelConfig], Field(min_length=1, max_length=20)]


class PublishedConfig(Section):
    """A published number, the location of our number (after `at` pulls, by default at the end), and the reason for which ours
    may differ."""

    what: str
    experiment: str
    policy: str
    measure: str
    at: Count | None = None
    value: float
    why: str


class ClaimConfig(Section):
    """A claim and its test on the repetitions; `own` marks claims that no paper makes.

    Exactly one test: the measure of `policy` is `below` that of each listed policy times `factor` plus `margin` (in the
    experiment `than` if it is another one); it `grows` like a power of t between the two given ones, from √T to T/2 (the
    horizon cuts the last batch); it `levels` off, ending at no more than that multiple of its value at half of the run; it is
    `at_least` or `at_most` a number; its `spread`, the largest over the smallest value among the policies labelled
    `POLICY, …`, is below that of each listed series, or, with `within`, more of its values are at most that multiple of the
    least value of all these series. It is evaluated after `at` pulls, by default at the end.
    """

    says: str
    experiment: str
    policy: str
    measure: str
    at: Count | None = None
    below: list[str] | None = None
    factor: PositiveFloat = 1.0
    margin: float = 0.0
    than: str | None = None
    grows: tuple[float, float] | None = None
    levels: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    spread: list[str] | None = None
    within: Annotated[float, Field(gt=1.0)] | None = None
    own: bool = False

    @model_validator(mode="after")
    def _check_one_test(self) -> ClaimConfig:
        tests = ("below", "grows", "levels", "at_least", "at_most", "spread")
        given = [name for name in tests if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"a claim needs one of {', '.join(tests)}, got {', '.join(given) or 'none'}")
        if self.within is not None and self.spread is None:
            raise ValueError("within belongs to spread")
        return self


class StarvationConfig(Section):
    """The study of variance starvation: posteriors of a random f with all evaluations in [0, ½]; see `starvation`.

    `others` are further length-scales, whose experiments are named `N evaluations, ℓ = …`.
    """

    lengthscale: PositiveFloat = 0.02
    others: tuple[PositiveFloat, ...] = ()
    noise_std: PositiveFloat = 0.1
    evaluations: Annotated[tuple[Repetitions, ...], Field(min_length=1)] = (6, 63, 215)
    features: Repetitions = 64
    oversampling: float = 2.0
    repetitions: Repetitions = 10
    quick_repetitions: Repetitions = 3
    seed: Seed = 0


class CoveredConfig(Section):
    """A figure or table of a paper that a reproduction covers, and the reason for which it may differ from the paper's.

    Claims and published numbers count for it if their experiment and their measure are listed; without a list, all do.
    """

    figure: str
    why: str
    experiments: tuple[str, ...] | None = None
    measures: tuple[str, ...] | None = None

    def holds(self, part: PublishedConfig | ClaimConfig) -> bool:
        """Whether a claim or a published number counts for this figure or table."""
        experiments = self.experiments is None or part.experiment in self.experiments
        return experiments and (self.measures is None or part.measure in self.measures)


class ReproductionConfig(Section):
    """A figure or a table: `experiments` by name, or the `study` of variance starvation; `panels` in rows as in the paper.

    `covers` lists the figures and tables of papers; `differs` lists the differences of data or settings from the paper's;
    `trainers` is the number of simultaneous evaluations in the measure `training_hours`; `extra` marks figures that are in no
    paper.
    """

    name: FolderName = ""
    title: str
    source: str
    extra: bool = False
    covers: tuple[CoveredConfig, ...] = ()
    experiments: dict[FolderName, ExperimentConfig] = Field(default_factory=dict)
    study: StarvationConfig | None = None
    trainers: Repetitions = 1
    panels: Annotated[list[PanelRow], Field(min_length=1, max_length=20)]
    published: tuple[PublishedConfig, ...] = ()
    claims: tuple[ClaimConfig, ...] = ()
    differs: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_names(self) -> ReproductionConfig:
        if bool(self.experiments) == (self.study is not None):
            raise ValueError("a reproduction has experiments, or a study")
        for part in self.parts:
            self._check_part(part)
        return self

    def _check_part(self, part: PanelConfig | PublishedConfig | ClaimConfig) -> None:
        # The names of a study's experiments, measures and policies are made by `starvation.study`.
        if self.study is not None:
            return
        if part.experiment not in self.experiments:
            raise ValueError(f"unknown experiment {part.experiment!r}.{nearest(part.experiment, self.experiments)}")
        if part.measure not in MEASURES:
            raise ValueError(f"unknown measure {part.measure!r}; known: {', '.join(MEASURES)}")
        if isinstance(part, ClaimConfig) and part.spread is not None:
            for series in (part.policy, *part.spread):
                self._check_series(part.experiment, series)
            return
        self._check_labels(part.experiment, (part.policies or []) if isinstance(part, PanelConfig) else [part.policy])
        if isinstance(part, ClaimConfig) and part.below is not None:
            other = part.than or part.experiment
            if other not in self.experiments:
                raise ValueError(f"unknown experiment {other!r}.{nearest(other, self.experiments)}")
            self._check_labels(other, part.below)

    def _check_labels(self, experiment: str, named: list[str]) -> None:
        labels = [policy.label for policy in self.experiments[experiment].policies]
        for label in named:
            if label not in labels:
                raise ValueError(f"{experiment}: no policy is labelled {label!r}.{nearest(label, labels)}")

    def _check_series(self, experiment: str, series: str) -> None:
        known = list(dict.fromkeys(p.label.partition(",")[0] for p in self.experiments[experiment].policies if "," in p.label))
        if series not in known:
            raise ValueError(f"{experiment}: no policies are labelled '{series}, …'.{nearest(series, known)}")

    @property
    def parts(self) -> list[PanelConfig | PublishedConfig | ClaimConfig]:
        """Panels, published numbers and claims: each names an experiment and a measure."""
        return [*(panel for row in self.panels for panel in row), *self.published, *self.claims]

    def measures_of(self, experiment: str) -> list[str]:
        """Names of the measures of an experiment that are shown, compared or tested."""
        own = [part for part in self.parts if experiment in (part.experiment, getattr(part, "than", None))]
        return list(dict.fromkeys(part.measure for part in own))

    def times_of(self, experiment: str) -> list[int]:
        """Numbers of pulls after which an experiment is compared or tested."""
        parts: list[PublishedConfig | ClaimConfig] = [*self.published, *self.claims]
        own = [part for part in parts if experiment in (part.experiment, getattr(part, "than", None))]
        return sorted({part.at for part in own if part.at is not None})


def configs_folder() -> Path:
    """Folder of the configurations: in the installed package, or beside it in a checkout.

    Raises:
        ConfigError: If there is neither.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / FOLDER).is_dir():
            return folder
    raise ConfigError(f"The configurations of the figures are neither in {package} nor beside it. Install the package again.")


def find_config(name: str | os.PathLike[str]) -> Path:
    """The file of that name, or a configuration of the package by its name alone, such as `quickstart`.

    Raises:
        ConfigError: If there is neither.
    """
    path = Path(name)
    # os.path, because Path.is_file raises where a name is too long. A missing file is reported when it is read.
    if path.suffix or os.path.isfile(path):
        return path
    known = {file.stem: file for file in sorted(configs_folder().glob("*.yaml"))}
    near = [*known, *(f"{name}{suffix}" for suffix in (".yaml", ".yml") if os.path.isfile(f"{name}{suffix}"))]
    message = (
        f"{name} is neither a file nor a configuration of the package; known: {', '.join(known)}.{nearest(str(name), near)}"
    )
    require(str(name) in known, message, ConfigError)
    return known[str(name)]


def catalogue() -> dict[str, Path]:
    """The files of all reproductions by name, in alphabetical order."""
    return {path.stem: path for path in sorted((configs_folder() / FOLDER).glob("*.yaml"))}


def find_reproduction(name: str) -> ReproductionConfig:
    """The reproduction of that name, or the one in a user's file (a path that ends in `.yaml`).

    Raises:
        ConfigError: If there is none, or its file is not a valid configuration.
    """
    check_text("name", name)
    known = catalogue()
    path = Path(name) if name.endswith(".yaml") else known.get(name)
    require(path is not None, f"unknown figure {name!r}; known: {', '.join(known)}.{nearest(name, known)}", ConfigError)
    assert path is not None
    return load_reproduction(path)


def load_reproduction(path: Path) -> ReproductionConfig:
    """Read the file of a reproduction. An experiment is a mapping, or the path of a file relative to this one.

    Raises:
        ConfigError: If a file can't be read, is not YAML, or is not a valid configuration; the message names the first faults.
    """
    values = read_yaml(path)
    found = values.get("experiments", {})
    if isinstance(found, dict):
        values["experiments"] = {str(name): _experiment(str(name), given, path) for name, given in found.items()}
    values.pop("anchors", None)
    return parse_section(ReproductionConfig, {"name": path.stem, **values}, str(path))


def _experiment(name: str, given: Any, path: Path) -> Any:
    if isinstance(given, str):
        given = read_yaml(path.parent / given)
    return {"name": name, **given} if isinstance(given, dict) else given
