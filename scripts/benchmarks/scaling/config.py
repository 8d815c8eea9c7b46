"""Configuration of a benchmark: points along three axes, methods, and the limits of each process.

These are plain dataclasses that only need PyYAML, because a machine used for a measurement may lack other packages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from torchbandits.checks import is_finite, is_whole
from torchbandits.errors import ConfigError, nearest
from torchbandits.files import folder_name_fault, read_yaml

AXES = ("arms", "dictionary", "pulls")
LABELS = {
    "torchbandits": "torchbandits BBKB",
    "botorch": "BoTorch SingleTaskGP",
    "sgpr": "GPyTorch SGPR",
    "sklearn": "scikit-learn GP",
}


@dataclass(frozen=True)
class Point:
    """Numbers of arms A, dictionary points m and pulls t; a dictionary is made of arms that were pulled, so m ≤ t, m ≤ A."""

    arms: int
    dictionary: int
    pulls: int

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.dictionary > min(self.pulls, self.arms):
            raise ConfigError(
                f"a dictionary of {self.dictionary} needs as many pulls and arms, got {self.pulls} and {self.arms}"
            )

    @property
    def distinct(self) -> int:
        """Number of distinct arms pulled: twice the dictionary size, if there are as many arms and pulls."""
        return min(2 * self.dictionary, self.pulls, self.arms)


@dataclass(frozen=True)
class BenchmarkConfig:
    """A benchmark: every method at `base` with one of its numbers replaced by each of `arms`, `dictionary`, `pulls`.

    `time_limit` seconds and `memory_limit` GiB hold for each process, which measures one method at one point;
    `memory_budget` GiB is the budget of kept kernel columns. `clock` selects the seconds that are compared: processor seconds,
    which do not depend on other work on the machine and count every thread, or wall-clock seconds. Points measured `together`
    share a process, until one of them ends it at a limit. This is useful on a device, where imports and initialisation take
    longer than most points; peak memory is then only known on the device.
    """

    base: Point
    arms: tuple[int, ...]
    dictionary: tuple[int, ...]
    pulls: tuple[int, ...]
    name: str = "bench"
    dim: int = 8
    lengthscale: float = 1.0
    noise_std: float = 0.1
    methods: tuple[str, ...] = ("torchbandits", "botorch", "sgpr", "sklearn")
    device: str = "cpu"
    threads: int = 1
    clock: str = "wall"
    repetitions: int = 3
    time_limit: float = 60.0
    memory_limit: float = 4.0
    memory_budget: float = 1.0
    together: bool = False
    seed: int = 0
    output: str = ""

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.clock == "processor" and (self.threads > 1 or self.device != "cpu"):
            raise ConfigError("the processor's clock compares work of one thread on the CPU: use clock: wall")
        for axis in AXES:
            list(self.along(axis))

    @staticmethod
    def parse(values: Mapping[str, Any]) -> BenchmarkConfig:
        """Create a configuration from a mapping.

        Raises:
            ConfigError: If it is not a valid configuration.
        """
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        numbers = [name for name, kind in _KINDS[BenchmarkConfig].items() if kind is _POSITIVE]
        values |= {name: float(values[name]) for name in numbers if is_finite(values.get(name))}
        if isinstance(values.get("base"), Mapping):
            values["base"] = _made(Point, values["base"], "base.")
        return _made(BenchmarkConfig, values)

    def along(self, axis: str) -> Iterator[Point]:
        """The points of an axis, ascending."""
        for value in sorted(set(getattr(self, axis))):
            yield replace(self.base, **{axis: value})

    @property
    def folder(self) -> Path:
        """Folder of the results: `output`, or else `results/<name>`."""
        return Path(self.output) if self.output else Path("results") / self.name


def load_benchmark(path: str | os.PathLike[str]) -> BenchmarkConfig:
    """Read a configuration file.

    Raises:
        ConfigError: If it can't be read, is not YAML, or is not a valid configuration.
    """
    source = Path(path)
    values = {"name": source.stem, **read_yaml(source)}
    try:
        return BenchmarkConfig.parse(values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}.") from error


# ---------------------------------------------------------------------- valid values of each key

_Kind = tuple[str, Callable[[Any], bool]]
_TEXT: _Kind = ("a text", lambda value: isinstance(value, str))
_FOLDER: _Kind = ("one folder name of at most 200 bytes", lambda value: isinstance(value, str) and _is_folder_name(value))
_COUNT: _Kind = ("a whole number from 1 to 10⁹", lambda value: _is_count(value))
_COUNTS: _Kind = ("a list of at most 100 whole numbers from 1 to 10⁹", lambda value: _all(value, _is_count))
# For limits in seconds and GiB, among others: the operating system accepts no larger limits.
_POSITIVE: _Kind = ("a number > 0 of at most 10⁶", lambda value: is_finite(value) and 0 < value <= 10**6)


def _is_count(value: Any) -> bool:
    return is_whole(value) and value <= 10**9


def _is_folder_name(name: str) -> bool:
    return folder_name_fault(name) == ""


def _all(value: Any, good: Callable[[Any], bool]) -> bool:
    return isinstance(value, tuple | list) and 0 < len(value) <= 100 and all(map(good, value))


def _one_of(*known: str) -> _Kind:
    return f"one of {', '.join(known)}", lambda value: isinstance(value, str) and value in known


_KINDS: dict[type, dict[str, _Kind]] = {
    Point: dict.fromkeys(AXES, _COUNT),
    BenchmarkConfig: {
        "base": ("a mapping of arms, dictionary and pulls", lambda value: isinstance(value, Point)),
        **dict.fromkeys(AXES, _COUNTS),
        "name": _FOLDER,
        "output": _TEXT,
        "together": ("true or false", lambda value: isinstance(value, bool)),
        **dict.fromkeys(("dim", "threads", "repetitions"), _COUNT),
        **dict.fromkeys(("lengthscale", "noise_std", "time_limit", "memory_limit", "memory_budget"), _POSITIVE),
        "methods": (f"a list of {', '.join(LABELS)}", lambda value: _all(value, LABELS.__contains__)),
        "device": _one_of("cpu", "cuda"),
        "clock": _one_of("processor", "wall"),
        "seed": (
            "a whole number from 0 to 2⁶²",
            lambda value: isinstance(value, Integral) and is_whole(value, 0) and value <= 2**62,
        ),
    },
}


def _check_fields(section: Point | BenchmarkConfig) -> None:
    given = {name: (getattr(section, name), kind) for name, kind in _KINDS[type(section)].items()}
    wrong = [f"{name}: must be {what}, got {value!r:.60}" for name, (value, (what, good)) in given.items() if not good(value)]
    if wrong:
        raise ConfigError("; ".join(wrong))


def _made(section: Any, values: Mapping[str, Any], place: str = "") -> Any:
    """Create a section from values; an error names every unknown and missing key."""
    known = [field.name for field in fields(section)]
    needed = [name for name in known if name in (*AXES, "base")]
    every = f" Known keys: {', '.join(known)}"
    faults = [f"{place}{key}: unknown key.{nearest(str(key), known) or every}" for key in values if key not in known]
    faults += [f"{place}{name}: missing" for name in needed if name not in values]
    if faults:
        raise ConfigError("; ".join(faults))
    return section(**values)
