"""Durability: `Journal` writes every ask and tell to the disk before it takes effect, and restores the exact state."""

from torchbandits.journal.fingerprint import (
    describe,
    describe_environment,
    describe_policy,
    describe_run,
    difference,
)
from torchbandits.journal.format import GeneratorStates, from_bytes, held, pack, state_as_text, state_of_text, to_bytes, unpack
from torchbandits.journal.journal import Journal, as_journal, begun
from torchbandits.journal.lines import InUse
from torchbandits.journal.reading import Reading, in_words
from torchbandits.journal.recorder import NOT_PENDING, NoArmLeft, Recorder
from torchbandits.journal.records import load_record, move_record, report_in
from torchbandits.journal.resuming import resume
from torchbandits.journal.rewriting import restore, rewrite
from torchbandits.journal.store import Event, Pick, SharedStore

__all__ = [
    "NOT_PENDING",
    "Event",
    "GeneratorStates",
    "InUse",
    "Journal",
    "NoArmLeft",
    "Pick",
    "Reading",
    "Recorder",
    "SharedStore",
    "as_journal",
    "begun",
    "describe",
    "describe_environment",
    "describe_policy",
    "describe_run",
    "difference",
    "from_bytes",
    "held",
    "in_words",
    "load_record",
    "move_record",
    "pack",
    "report_in",
    "restore",
    "resume",
    "rewrite",
    "state_as_text",
    "state_of_text",
    "to_bytes",
    "unpack",
]
