"""Options of `torchbandits campaign` as values."""

from __future__ import annotations

import math
import re
from typing import Any

from torchbandits.campaigns.campaign import Campaign
from torchbandits.campaigns.outcome_campaign import OutcomeCampaign
from torchbandits.campaigns.results import YES_OR_NO
from torchbandits.errors import ConfigError, require
from torchbandits.tabular.spreadsheets import BEYOND


def parse_aims(
    objectives: list[str], minimize: bool, limits: list[str], cost: str | None, noise: list[str]
) -> tuple[type[Campaign], dict[str, Any]]:
    """The class of a new campaign, and its options: a `Campaign` of one objective without limits."""
    parsed = [_objective(text) for text in objectives]
    names, small = [name for name, _ in parsed], [name for name, aim in parsed if aim == "min"]
    if len(names) == 1 and not limits:
        require(len(noise) < 2, "--noise-std is one number for one objective.", ConfigError)
        known = _number("--noise-std", "0.5", noise[0]) if noise else None
        return Campaign, {"objective": names[0], "minimize": minimize or bool(small), "cost": cost, "noise_std": known}
    one = "--minimize is for one objective: write --objective cost:min for each objective to minimise."
    require(not minimize, one, ConfigError)
    options: dict[str, Any] = {"objectives": names, "minimize": small, "at_least": {}, "at_most": {}, "cost": cost}
    for text in limits:
        found = re.fullmatch(r"(.+?)(<=|>=)(.+)", text)
        require(
            found is not None, f'--limit takes a column and a number, such as "toxicity <= 0.2", got {text!r}.', ConfigError
        )
        assert found is not None
        name, sign, number = (part.strip() for part in found.groups())
        own = options["at_most" if sign == "<=" else "at_least"]
        require(name not in own, f"--limit names {name!r} twice with {sign}: give it once.", ConfigError)
        own[name] = _number("--limit", "toxicity <= 0.2", number)
    if noise:
        pairs = [text.rpartition("=") for text in noise]
        named = all(equals and name for name, equals, _ in pairs)
        require(named, "--noise-std takes NAME=NUMBER for each of several outcomes, such as yield=0.5.", ConfigError)
        options["noise_std"] = {name: _number("--noise-std", "yield=0.5", number) for name, _, number in pairs}
    return OutcomeCampaign, options


def parse_variances(given: list[str], *, several: bool) -> str | dict[str, str] | None:
    """Parse `--noise-var COLUMN`, or `--noise-var OUTCOME=COLUMN` for several outcomes."""
    if not several:
        require(len(given) < 2, "--noise-var is one column for one objective.", ConfigError)
        return given[0] if given else None
    pairs = [text.partition("=") for text in given]
    named = all(equals and name and column for name, equals, column in pairs)
    require(named, "--noise-var takes OUTCOME=COLUMN for each of several outcomes, such as yield=yield_var.", ConfigError)
    return {name: column for name, _, column in pairs} or None


def _objective(text: str) -> tuple[str, str]:
    """Parse `--objective NAME`, `NAME:min` or `NAME:max`."""
    name, colon, aim = text.rpartition(":")
    if not (colon and name):
        return text, "max"
    message = f"--objective takes NAME, NAME:min or NAME:max, got {text!r}. For a column of that name write {text}:max."
    if aim.startswith("target") or aim.replace(".", "").isdecimal():
        message += (
            f' For a target give limits, such as --limit "{name.split(":")[0]} <= 7.2", or minimise the distance from it.'
        )
    require(aim in ("min", "max"), message, ConfigError)
    return name, aim


def _number(option: str, example: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        comma = " Write decimals with a point." if "," in text else ""
        raise ConfigError(f"{option} takes a number, such as {example}, got {text!r}.{comma}") from None


def parse_result(text: str, *, several: bool) -> tuple[str, float | None]:
    """Parse `VALUE`, or `NAME=VALUE` for several outcomes."""
    name, equals, value = text.rpartition("=")
    good = bool(name and equals) if several else not equals
    wanted = "NAME=VALUE for an outcome (or NAME=failed, NAME=none)" if several else "a value"
    require(good, f"give {wanted}, got {text!r}.", ConfigError)
    words: dict[str, float | None] = {"failed": math.nan, "none": None}
    if value in words:
        return name, words[value]
    if value.casefold() in YES_OR_NO:
        return name, YES_OR_NO[value.casefold()]
    limit = "a limit of detection is no correction: take the result back (none), and tell it as {} in a file."
    require(BEYOND.fullmatch(value.strip()) is None, limit.format(value.strip()), ConfigError)
    # `nan` may mean either word.
    expected = "83.4, `failed` or `none`"
    number = _number("a result", expected, value)
    require(math.isfinite(number), f"a result takes a number, such as {expected}, got {value!r}.", ConfigError)
    return name, number


def parse_kind(text: str) -> tuple[str, Any]:
    """Parse `--column NAME=KIND`."""
    name, equals, kind = text.rpartition("=")
    require(bool(equals and name and kind), f"--column takes NAME=KIND, such as conc=log, got {text!r}.", ConfigError)
    return name, [part.strip() for part in kind.split("<")] if "<" in kind else kind.strip()


def parse_limit(text: str) -> tuple[str, int]:
    """Parse `--at-most NAME=COUNT`."""
    name, equals, count = text.rpartition("=")
    good = bool(equals and name and count.isdecimal() and int(count) > 0)
    require(good, f"--at-most takes NAME=COUNT, such as supplier=4, got {text!r}.", ConfigError)
    return name, int(count)


def parse_total(text: str) -> tuple[str, float]:
    """Parse `--total NAME=NUMBER`."""
    name, equals, number = text.rpartition("=")
    require(bool(equals and name and number), f"--total takes NAME=NUMBER, such as price=4000, got {text!r}.", ConfigError)
    return name, _number("--total", "price=4000", number)
