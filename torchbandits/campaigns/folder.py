"""The folder of a campaign of the command line: its journal with the files beside it, and a copy of the candidates."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchbandits.campaigns.campaign import Campaign
from torchbandits.campaigns.outcome_campaign import OutcomeCampaign
from torchbandits.campaigns.paths import CampaignPaths
from torchbandits.campaigns.results import FORM
from torchbandits.campaigns.settings import read_settings
from torchbandits.errors import DataError, StateError, require
from torchbandits.files import prepare_folder, write_atomically
from torchbandits.journal import InUse
from torchbandits.locks import let_go
from torchbandits.tabular.ids import open_table
from torchbandits.tabular.spreadsheets import Form, form_of
from torchbandits.tabular.tables import SOURCE, TEXT, InMemory, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import parquet
else:
    from torchbandits.tabular.extras import compute as pc
    from torchbandits.tabular.extras import parquet
    from torchbandits.tabular.extras import pyarrow as pa

JOURNAL = "journal"
SETTINGS = CampaignPaths(Path(JOURNAL)).settings.name
CANDIDATES = "candidates.parquet"


@contextmanager
def opened(folder: Path, device: str = "cpu") -> Iterator[Campaign]:
    """Open the campaign of a folder, and close it after a block without errors.

    Raises:
        StateError: If there is none.
        DataError: If its table is missing, or a file cannot be read.
    """
    there = (folder / SETTINGS).exists()
    message = f"there is no campaign in {folder}: begin one with torchbandits campaign new, or name its --folder."
    require(there, message, StateError)
    # The copy in the folder comes first, since the folder may have been moved.
    own = folder / CANDIDATES
    settings = read_settings(folder / SETTINGS)
    kept = own.exists() or settings.table is None or Path(settings.table).exists()
    message = f"{settings.table}, the table of this campaign, is not there: put it back, or copy it to {own.absolute()}."
    require(kept, message, DataError)
    kind: type[Campaign] = OutcomeCampaign if settings.objectives else Campaign
    with _one_at_a_time(folder):
        campaign = kind(own if own.exists() else None, journal=folder / JOURNAL, device=device)
    yield campaign
    campaign.close()


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Say what to do where another process has the campaign open."""
    try:
        yield
    except InUse as error:
        raise StateError(
            f"another command, or a Python session, has the campaign in {folder} open. Repeat the command when that one has "
            "ended; a session closes the campaign by campaign.close()."
        ) from error


def resumed(
    kind: type[Campaign], options: dict[str, Any], table: Table, source: Path, folder: Path, seed: int | None
) -> tuple[Campaign, bool]:
    """Open the campaign of a folder again, and replace the condition on its candidates if another one is given.

    Returns:
        The campaign, and whether its condition was replaced.
    """
    before, condition = read_settings(folder / SETTINGS).candidates, options["candidates"]
    prepare_folder(folder)
    if isinstance(table, InMemory):
        _check_copy(table, source)
    generator = torch.Generator().manual_seed(seed or 0)
    # A wrong seed must leave the condition as it is.
    with _one_at_a_time(folder):
        campaign = kind(source, journal=folder / JOURNAL, generator=generator, **options | {"candidates": None})
    # A journal resumes with its own random numbers, whose state holds the seed with which they began.
    own = campaign.bandit.generators[0].initial_seed()
    message = f"{folder} holds a campaign with --seed {own}: leave the option out, or begin another one in another --folder."
    require(seed in (None, own), message, StateError)
    replaced = condition is not None and (condition or None) != (before or None)
    if replaced:
        campaign.close()
        campaign = kind(source, journal=folder / JOURNAL, **options)
    return campaign, replaced


def renewed(folder: Path, candidates: Path, to: Path, columns: dict[str, Any], device: str) -> Campaign:
    """Begin the campaign in another folder that goes on with another table; see `Campaign.renew`.

    Args:
        folder: That of the campaign so far.
        candidates: The file of all rows.
        to: The other folder.
        columns: Kinds of columns, as for `Campaign.renew`.
        device: Where rows are scored.
    """
    CampaignPaths(to / JOURNAL).check_unused()
    source = candidates.absolute()
    with opened(folder) as campaign:
        table = open_table(str(candidates), read_settings(folder / SETTINGS).id)
        if isinstance(table, InMemory):
            # Errors must name the user's file, and be raised before anything is written.
            with tempfile.TemporaryDirectory() as trial:
                campaign.renew(candidates, Path(trial) / JOURNAL, columns=columns).close()
                let_go()
    prepare_folder(to)
    if isinstance(table, InMemory):
        source = to.absolute() / CANDIDATES
        copy_to(table, source)
    with opened(folder, device) as campaign:
        return campaign.renew(source, to / JOURNAL, columns=columns)


def copy_to(table: InMemory, path: Path) -> None:
    """Copy a table to the folder, since users go on to edit their files."""
    about = {**(table.arrow.schema.metadata or {}), SOURCE: ("" if table.path is None else table.path.name).encode()}
    if table.path is not None and table.path.suffix.lower() in TEXT:
        about[FORM] = json.dumps(form_of(table.path, table.arrow)).encode()
    named = table.arrow.replace_schema_metadata(about)
    write_atomically(path, lambda temporary: parquet.write_table(named, temporary))


def _check_copy(table: InMemory, path: Path) -> None:
    """Refuse another table than the one that was copied to the folder."""
    # Parquet changes types, such as seconds to milliseconds.
    copied = io.BytesIO()
    parquet.write_table(table.arrow, copied)
    copied.seek(0)
    same = path.exists() and _equal(parquet.read_table(copied), parquet.read_table(path))
    message = (
        f"{path.parent} holds a campaign of another table: choose another --folder, or delete that one. To go on with this "
        "table, see torchbandits campaign extend, renew."
    )
    require(same, message, StateError)


def _equal(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables are equal; NaN is equal to NaN."""
    plain = [
        [pc.if_else(pc.is_nan(c), None, c) if pa.types.is_floating(c.type) else c for c in table.columns]
        for table in (one, other)
    ]
    return bool(one.schema.equals(other.schema)) and all(a.equals(b) for a, b in zip(*plain, strict=True))


def form_in(folder: Path) -> Form:
    """The form of CSV files that the program which wrote the candidates opens."""
    own = folder / CANDIDATES
    saved = (parquet.read_schema(own).metadata or {}).get(FORM) if own.exists() else None
    return Form() if saved is None else Form(*json.loads(saved))
