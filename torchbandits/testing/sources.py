"""The contract of an arm source, as tests."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.errors import DiagnosticWarning
from torchbandits.policies import batch_bkb
from torchbandits.sources import ArmSource
from torchbandits.testing.play import check_same, everything, generator, generators_of, rbf


class ArmSourceContract(ABC):
    """Laws of an `ArmSource`: every piece and every point is that of a tensor, and so is a run on it.

    Return the source from `source`, and the tensor that holds the same arms from `arms`. 20 arms or more that differ make the
    laws say something; no more than fit in memory.
    """

    @abstractmethod
    def source(self) -> ArmSource:
        """The source under test, a new one at each call."""

    @abstractmethod
    def arms(self) -> Tensor:
        """The arms that it stands for, `A x d`, of its dtype and on its device."""

    def test_shape_dtype_and_device_are_those_of_the_arms(self) -> None:
        """They are known without reading any arm."""
        source, arms = self.source(), self.arms()
        assert isinstance(source.shape, torch.Size), f"shape must be a torch.Size, got {type(source.shape).__name__}"
        assert source.shape == arms.shape, f"shape must be {tuple(arms.shape)}, got {tuple(source.shape)}"
        assert (source.num_arms, source.dim) == arms.shape, f"num_arms and dim must be {tuple(arms.shape)}"
        assert source.dtype == arms.dtype, f"dtype must be {arms.dtype}, got {source.dtype}"
        assert source.device == arms.device, f"device must be {arms.device}, got {source.device}"

    def test_the_arms_are_ones_that_a_bandit_takes(self) -> None:
        """Arms are floating-point numbers and finite."""
        arms = self.source().chunk(slice(0, len(self.arms())))
        assert arms.dtype in (torch.float32, torch.float64), f"arms must be float32 or float64, got {arms.dtype}"
        assert arms.isfinite().all(), "arms must be finite"

    def test_pieces_of_any_size_are_those_of_the_tensor(self) -> None:
        """Pieces hold all arms in order, each once, in two passes, and between any start and stop."""
        source, arms = self.source(), self.arms()
        A = len(arms)
        for step in (1, 7, A // 3 + 1, A, A + 1000):
            for _ in range(2):
                read = [(part.start, part.stop, piece.clone()) for part, piece in source.chunks(step)]
                cuts = [(start, min(start + step, A)) for start in range(0, A, step)]
                found = [(start, stop) for start, stop, _ in read]
                assert found == cuts, f"chunks({step}) must cut {A} arms at {cuts[:3]} …, got {found[:3]} …"
                for start, stop, piece in read:
                    self._check_equal(piece, arms[start:stop], f"arms {start} to {stop} in chunks({step})")
        first, last = A // 4, A - A // 4
        covered = first
        for part, piece in source.chunks(5, first, last):
            assert part.start == covered, f"chunks(5, {first}, {last}) must continue at {covered}, got {part.start}"
            self._check_equal(piece, arms[part], f"arms {part.start} to {part.stop} in chunks(5, {first}, {last})")
            covered = part.stop
        assert covered == last, f"chunks(5, {first}, {last}) must end at {last}, got {covered}"

    def test_a_chunk_is_that_of_the_tensor(self) -> None:
        """Chunks of consecutive arms may be read in any order."""
        source, arms = self.source(), self.arms()
        A = len(arms)
        for part in (slice(A // 4, A - A // 4), slice(0, 1), slice(A - 1, A), slice(0, A)):
            self._check_equal(source.chunk(part), arms[part], f"chunk({part})")

    def test_points_are_those_of_the_tensor(self) -> None:
        """The index may have any shape and order, repeat arms, or be empty."""
        source, arms = self.source(), self.arms()
        A = len(arms)
        index = torch.tensor([[0, A - 1, A // 2], [A // 2, min(3, A - 1), 0]], device=arms.device)
        for picked in (index, index[0], index[:, :0]):
            self._check_equal(source.points(picked), arms[picked], f"points of an index of shape {tuple(picked.shape)}")

    def test_a_deep_copy_is_the_source_itself(self) -> None:
        """Arms never change, so that a copy of a bandit reads the same source."""
        source = self.source()
        assert copy.deepcopy(source) is source, "a deep copy of a source must be the source itself"

    def test_distinct_is_a_promise_that_is_kept(self) -> None:
        """`distinct` may be True only where no two arms are equal."""
        arms = self.arms()
        if self.source().distinct:
            different = len(arms.unique(dim=0))
            assert different == len(arms), f"distinct promises {len(arms)} different arms, there are {different}"

    def test_a_run_is_the_one_on_the_tensor(self) -> None:
        """Picks agree bit for bit, with kernel columns kept in memory."""
        self._check_run(memory_budget=2 << 30)

    def test_a_run_that_keeps_no_columns_is_the_one_on_the_tensor(self) -> None:
        """Picks agree bit for bit, with kernel columns evaluated anew at each sweep."""
        self._check_run(memory_budget=0)

    def _check_run(self, memory_budget: int) -> None:
        arms = self.arms()
        spread = float(arms.double().std(dim=0).norm()) or 1.0
        policy = batch_bkb(
            rbf(0.5 * spread), noise_std=0.1, norm_bound=1.0, delta=0.1, ratio_threshold=1.5, memory_budget=memory_budget
        )
        picks: list[list[list[int]]] = [[], []]
        bandits = [Bandit(policy, given, generator=generator(1)) for given in (arms, self.source())]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DiagnosticWarning)  # the kernel is not chosen for these arms
            for mine, bandit in zip(picks, bandits, strict=True):
                for _ in range(12):
                    selection = bandit.ask(limit=5)
                    mine.append(selection.index.tolist())
                    bandit.tell(selection, torch.sin(3 * selection.points.double().sum(dim=-1) / spread))
        plain, read = bandits
        assert picks[0] == picks[1], f"a run on the source must pick what a run on the tensor picks, {picks[0]}, got {picks[1]}"
        assert torch.equal(read.counts, plain.counts), "a run on the source must learn the counts of a run on the tensor"
        assert torch.equal(read.dictionary, plain.dictionary), "a run on the source must keep the same dictionary"
        best = [bandit.best(3).points for bandit in bandits]
        assert torch.equal(*best), "a run on the source must recommend the points of a run on the tensor"
        # The fingerprints of the arms are part of the state: a state saved here loads there.
        check_same(everything(plain), everything(read), "a run on the source must end in the state of a run on the tensor")
        assert generators_of(plain) == generators_of(read), "a run on the source must draw what a run on the tensor draws"
        handed = read.arms
        same = torch.equal(handed, arms) if isinstance(handed, Tensor) else torch.equal(handed.chunk(slice(0, 1)), arms[:1])
        assert same, "a bandit on a source must hand out these arms, or the source that they are read from"

    def _check_equal(self, got: Tensor, expected: Tensor, what: str) -> None:
        assert got.shape == expected.shape, f"{what} must have shape {tuple(expected.shape)}, got {tuple(got.shape)}"
        assert got.dtype == expected.dtype, f"{what} must be {expected.dtype}, got {got.dtype}"
        assert torch.equal(got, expected), f"{what} must be those of the tensor, to the last bit"
