"""Durability: every ask and tell on the disk before it takes effect (`Journal`), and the way back to the exact state."""

from torchbandits.journal.checkpoints import from_bytes, state_as_text, to_bytes
from torchbandits.journal.fingerprint import describe, describe_environment, describe_policy, difference, digest
from torchbandits.journal.journal import Journal, as_journal
from torchbandits.journal.packing import Drawn, held, pack, unpack
from torchbandits.journal.reading import Reading, in_words
from torchbandits.journal.replay import asked, begun, describe_run, moved_to, observed, report_in, reported, resume, told
from torchbandits.journal.shared import Event, Pick, SharedStore

__all__ = [
    "Drawn",
    "Event",
    "Journal",
    "Pick",
    "Reading",
    "SharedStore",
    "as_journal",
    "asked",
    "begun",
    "describe",
    "describe_environment",
    "describe_policy",
    "describe_run",
    "difference",
    "digest",
    "from_bytes",
    "held",
    "in_words",
    "moved_to",
    "observed",
    "pack",
    "report_in",
    "reported",
    "resume",
    "state_as_text",
    "to_bytes",
    "told",
    "unpack",
]
