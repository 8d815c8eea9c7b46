"""Speed of fingerprints as arms: Tanimoto similarities compared with a popcount pass and other packages, and BBKB on a library.

    python scripts/benchmarks/molecules.py similarities [--molecules 1000000] [--dictionary 256] [--rounds 5]
    python scripts/benchmarks/molecules.py bbkb [--molecules 10000000] [--pulls 2000] [--batch 100] [--threads 2]
    python scripts/benchmarks/molecules.py file FOLDER [--molecules 100000000] [--part 10000000] [--dictionary 256]

Fingerprints are synthetic: 2,048 bits, families of molecules that share most of about 48 set bits, the density of
Morgan fingerprints of radius 2 of drug-like molecules. `similarities` uses one thread and processor time. All methods are
timed in turns, on molecules that fit their memory, and each reports its fastest round per pair of molecules:

* ours: blocks of 4,096 molecules in float64, as in a sweep;
* the limit: as many words as ours reads, all in the first-level cache; each is and-ed with a mask, and its bits are counted and
  added to a register, and nothing else is done; as vectorised by LLVM or in vectors of eight words, whichever is faster;
* NumPy's `bitwise_count`, ours without numba;
* RDKit's `BulkTanimotoSimilarity`, on bit vectors that already exist;
* the dense formula of GAUCHE's kernel, xᵀy / (|x|² + |y|² − xᵀy), as a matrix product in PyTorch on an existing float64 tensor;
* GAUCHE's own `TanimotoKernel` on the same tensor, if the package is installed (`pip install --no-deps gauche`);
* scikit-learn's `pairwise_distances(metric="jaccard")`, on booleans that already exist.

`bbkb` reports wall-clock seconds of picks and updates, and the peak memory of the process. Its batches have a fixed size
(`ask(exactly=…)`), the first is drawn at random, and the reward is a sum of similarities to 100 molecules, with noise. `file`
writes a part of the library to a file, and times one pass over a tenth of it and one over all of it against a dictionary. The
time of the whole library is extrapolated; the two passes check that it is proportional to the number of molecules.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from rdkit import DataStructs
from sklearn.metrics import pairwise_distances

import torchbandits as tb
from torchbandits.linalg import popcount
from torchbandits.packing import Packing
from torchbandits.sources import Fingerprints
from torchbandits.tanimoto import TanimotoBlocks

try:
    from gauche.kernels.fingerprint_kernels.tanimoto_kernel import TanimotoKernel as GaucheKernel
except ImportError:
    GaucheKernel = None

BITS, BLOCK = 2048, 4096
WORDS = BITS // 64


# ---------------------------------------------------------------------------------- molecules


def molecules(number: int, seed: int = 0, step: int = 1 << 18) -> np.ndarray:
    """Packed fingerprints, `number x 256` uint8: families of 500 whose members keep 7/8 of the family's bits and add others."""
    rng = np.random.default_rng(seed)

    def words(count: int) -> np.ndarray:
        return rng.integers(0, 1 << 64, size=(count, WORDS), dtype=np.uint64)

    def sparse(count: int, halvings: int) -> np.ndarray:
        out = words(count)
        for _ in range(halvings - 1):
            out &= words(count)
        return out

    families = sparse(max(1, number // 500), 6) | sparse(max(1, number // 500), 7)
    out = np.empty((number, WORDS), np.uint64)
    for start in range(0, number, step):
        n = min(step, number - start)
        own = families[rng.integers(len(families), size=n)]
        out[start : start + n] = (own & ~sparse(n, 3)) | sparse(n, 9)
    return out.view(np.uint8)


# ---------------------------------------------------------------------------------- the limit


@intrinsic
def _popcount(context: Any, word: Any) -> Any:
    return word(word), lambda context, builder, signature, values: builder.ctpop(values[0])


@njit(error_model="numpy")
def limit_by_llvm(block: np.ndarray, masks: np.ndarray) -> int:
    total = np.uint64(0)
    for mask in masks:
        for word in block:
            total += _popcount(word & mask)
    return total


@intrinsic
def _eight_at_a_time(context: Any, block: Any, mask: Any) -> Any:
    """Σ popcount(word & mask) over a block whose length is a multiple of 32, in four sums of eight lanes."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        word, place = ir.IntType(64), ir.IntType(32)
        lanes = ir.VectorType(word, 8)
        zero, nothing = ir.Constant(lanes, [0] * 8), ir.Constant(lanes, ir.Undefined)
        count = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lanes, [lanes]), "llvm.ctpop.v8i64")
        one = builder.insert_element(nothing, values[1], ir.Constant(place, 0))
        mask = builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(place, 8), [0] * 8))
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(4)]
        for total in sums:
            builder.store(zero, total)
        steps = builder.udiv(builder.extract_value(array.shape, 0), ir.Constant(word, 32))
        with cgutils.for_range(builder, steps) as loop:
            for t, total in enumerate(sums):
                at = builder.add(builder.mul(loop.index, ir.Constant(word, 32)), ir.Constant(word, 8 * t))
                x = builder.load(builder.bitcast(builder.gep(array.data, [at]), lanes.as_pointer()))
                x.align = 8
                builder.store(builder.add(builder.load(total), builder.call(count, [builder.and_(x, mask)])), total)
        found = builder.load(sums[0])
        for total in sums[1:]:
            found = builder.add(found, builder.load(total))
        result = builder.extract_element(found, ir.Constant(place, 0))
        for lane in range(1, 8):
            result = builder.add(result, builder.extract_element(found, ir.Constant(place, lane)))
        return result

    return types.uint64(block, types.uint64), generate


@njit(error_model="numpy")
def limit_by_vectors(block: np.ndarray, masks: np.ndarray) -> int:
    total = np.uint64(0)
    for mask in masks:
        total += _eight_at_a_time(block, mask)
    return total


# ---------------------------------------------------------------------------------- similarities


def similarities(number: int, size: int, rounds: int) -> None:
    torch.set_num_threads(1)
    packing, bits = Packing(BITS), molecules(number)
    words = packing.words(torch.from_numpy(bits))
    dictionary = packing.unpack(words[:: number // size][:size], torch.float64)
    own = packing.pack(dictionary)
    blocks, out = TanimotoBlocks(dictionary, tb.TanimotoKernel(), packing), torch.empty(size, BLOCK, dtype=torch.float64)
    few, fewest = words[: 20 * BLOCK], words[:BLOCK]
    dense = packing.unpack(few, torch.float64)
    booleans, known = packing.unpack(words[:1000], torch.float64).numpy() > 0, dictionary.numpy() > 0
    vectors, theirs = ([_rdkit(row) for row in rows] for rows in (bits[: len(few)], bits[:: number // size][:size]))
    cached, masks = words[:128].numpy().view(np.uint64).reshape(-1), own.numpy().view(np.uint64).reshape(-1)
    passes = np.tile(masks, -(-len(few) * size * WORDS // (len(cached) * len(masks))))

    passed = len(passes) * len(cached) // (WORDS * size)

    def sweep(words: torch.Tensor) -> None:
        for part in words.split(BLOCK):
            blocks(part, out[:, : len(part)])

    def without_numba() -> None:
        popcount.COMPILED = False
        sweep(fewest)
        popcount.COMPILED = True

    def by_rdkit() -> None:
        for one in theirs:
            DataStructs.BulkTanimotoSimilarity(one, vectors)

    def by_sklearn() -> None:
        1 - pairwise_distances(known, booleans, metric="jaccard")

    def by_product() -> None:
        norms = dictionary.square().sum(dim=-1)
        for part in dense.split(BLOCK):
            shared = dictionary @ part.T
            shared / (norms[:, None] + part.square().sum(dim=-1) - shared)

    def by_gauche() -> None:
        kernel = GaucheKernel()
        with torch.no_grad():
            for part in dense.split(BLOCK):
                kernel(dictionary, part).to_dense()

    ways: dict[str, tuple[Callable[[], object], int]] = {
        "ours": (lambda: sweep(words), number),
        "limit, by LLVM": (lambda: limit_by_llvm(cached, passes), passed),
        "limit, in vectors": (lambda: limit_by_vectors(cached, passes), passed),
        "ours, without numba": (without_numba, len(fewest)),
        "RDKit, BulkTanimotoSimilarity": (by_rdkit, len(vectors)),
        "dense formula (GAUCHE's), torch": (by_product, len(dense)),
        "scikit-learn, jaccard": (by_sklearn, len(booleans)),
    }
    if GaucheKernel is None:
        print("GAUCHE is not installed here, and is left out")
    else:
        ways["GAUCHE, TanimotoKernel"] = (by_gauche, len(dense))
    ways["ours"][0]()
    _check(blocks, words, dictionary)
    nanoseconds = dict.fromkeys(ways, np.inf)
    for number_of_round in range(rounds + 1):
        for name, (way, count) in ways.items():
            began = time.process_time()
            way()
            taken = 1e9 * (time.process_time() - began) / (count * size)
            if number_of_round:  # the first compiles and warms up
                nanoseconds[name] = min(nanoseconds[name], taken)
    mine, limit = nanoseconds["ours"], min(nanoseconds["limit, by LLVM"], nanoseconds["limit, in vectors"])
    print(
        f"{number:,} molecules x {size}, {int(np.unpackbits(bits[:10_000]).sum()) / 10_000:.0f} of {BITS} bits set, one thread"
    )
    for name, taken in nanoseconds.items():
        rate = WORDS / taken
        print(f"{name:32} {taken:8.2f} ns a pair, {rate:6.2f} words a ns, {taken / mine:7.1f} times ours")
    print(f"ours at {limit / mine:.0%} of the limit; {1e-9 * mine * number * size:.2f} s for all", flush=True)


def _rdkit(row: np.ndarray) -> Any:
    vector = DataStructs.ExplicitBitVect(BITS)
    vector.SetBitsFromList(np.flatnonzero(np.unpackbits(row)).tolist())
    return vector


def _check(blocks: TanimotoBlocks, words: torch.Tensor, dictionary: torch.Tensor) -> None:
    """Check that the timed values are correct."""
    arms = Packing(BITS).unpack(words[:500], torch.float64)
    found = blocks(words[:500], torch.empty(len(dictionary), 500, dtype=torch.float64))
    assert torch.equal(found, tb.TanimotoKernel()(dictionary, arms).to_dense())


# ---------------------------------------------------------------------------------- a run


def bbkb(number: int, pulls: int, batch: int, threads: int, budget: int, noise_std: float, narrow: bool) -> None:
    torch.set_num_threads(threads)
    began = time.perf_counter()
    arms = Fingerprints(molecules(number), dtype=torch.float32 if narrow else torch.float64)
    made = time.perf_counter() - began
    held = peak()
    generator = torch.Generator().manual_seed(0)
    centres = arms.points(torch.randint(number, (100,), generator=generator)).double()
    weights = torch.randn(100, generator=generator, dtype=torch.float64)
    truth = tb.environments.KernelExpansion(tb.TanimotoKernel(), centres, weights)
    spread = float(truth(arms.points(torch.randint(number, (2000,), generator=generator)).double()).std())
    kernel = gpytorch.kernels.ScaleKernel(tb.TanimotoKernel()).double()
    policy = tb.batch_bkb(
        kernel,
        noise_std=noise_std,
        width=tb.widths.Constant(2.0),
        ratio_threshold=8.0,
        memory_budget=budget,
        prior_mean="estimate",
    )
    warnings.simplefilter("ignore", tb.errors.DiagnosticWarning)  # exactly= sets the rule of batches aside
    began, processor = time.perf_counter(), time.process_time()
    bandit = tb.Bandit(policy, arms, generator=torch.Generator().manual_seed(1))
    opened = time.perf_counter() - began
    asked = told = 0.0
    batches, best = 0, -np.inf
    while int(bandit.pulls) < pulls:
        began = time.perf_counter()
        left = min(batch, pulls - int(bandit.pulls))
        # Before the first reward all molecules are equally good, so the first batch is drawn at random.
        told_before = int(bandit.pulls) > 0
        selection = bandit.ask(exactly=left).index if told_before else torch.randint(number, (left,), generator=generator)
        asked += time.perf_counter() - began
        values = truth(arms.points(selection).double()) / spread
        noisy = values + noise_std * torch.randn(values.shape, generator=generator, dtype=torch.float64)
        best, batches = max(best, float(values.max())), batches + 1
        began = time.perf_counter()
        report = bandit.tell(selection, noisy)
        told += time.perf_counter() - began
        seconds = time.process_time() - processor
        print(
            f"{int(bandit.pulls):6} pulls, batch of {len(selection)}, dictionary {int(report.dictionary_size)}, "
            f"best {best:.2f} deviations, {asked:.0f} s asking, {told:.0f} s telling ({seconds:.0f} s of "
            f"processor time in all), peak {peak():.2f} GiB",
            flush=True,
        )
    print(
        f"BBKB over {number:,} molecules, T = {pulls} in {batches} batches, {threads} threads, {arms.dtype}: {opened:.1f} s to "
        f"look at all arms, {asked:.1f} s asking, {told:.1f} s telling, {opened + asked + told:.1f} s in all "
        f"({time.process_time() - processor:.1f} s of processor time); peak {peak():.2f} GiB, of which {held:.2f} while the "
        f"library was made ({made:.0f} s)",
        flush=True,
    )


def peak() -> float:
    """Peak memory of the process, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


# ---------------------------------------------------------------------------------- a file


def one_pass(folder: Path, number: int, part: int, size: int, threads: int) -> None:
    torch.set_num_threads(threads)
    path = folder / "molecules.npy"
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(part, BITS // 8))
    for start in range(0, part, 1 << 20):
        n = min(1 << 20, part - start)
        out[start : start + n] = molecules(n, seed=start)
    out.flush()
    del out
    source = Fingerprints(path, distinct=True)
    dictionary = source.points(torch.arange(size))
    blocks, out_block = (
        TanimotoBlocks(dictionary, tb.TanimotoKernel(), source.packing),
        torch.empty(size, BLOCK, dtype=torch.float64),
    )
    weights = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    products = torch.empty(size, BLOCK, dtype=torch.float64)
    for name, multiply in (("similarities alone", False), ("similarities and products, a sweep", True)):
        estimate = 0.0
        for rows in (part // 10, part):
            began, processor = time.perf_counter(), time.process_time()
            for _, words in source.packed(BLOCK, 0, rows):
                block = blocks(words, out_block[:, : len(words)])
                if multiply:
                    torch.matmul(weights, block, out=products[:, : len(words)])
            taken, processor = time.perf_counter() - began, time.process_time() - processor
            check = f", {processor / estimate:.2f} times the estimate from a tenth of it" if estimate else ""
            estimate = processor * part / rows
            print(
                f"{name}, {rows:,} molecules x {size} from a file, {threads} threads: {taken:.1f} s ({processor:.1f} s of "
                f"processor time{check}), so about {taken * number / rows:.0f} s ({processor * number / rows:.0f} s) for "
                f"{number:,} (an estimate: {number * 256 / 1e9:.1f} GB may not fit in memory); peak {peak():.2f} GiB",
                flush=True,
            )
    path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    first = parts.add_parser("similarities")
    first.add_argument("--molecules", type=int, default=1_000_000)
    first.add_argument("--dictionary", type=int, default=256)
    first.add_argument("--rounds", type=int, default=5)
    second = parts.add_parser("bbkb")
    second.add_argument("--molecules", type=int, default=10_000_000)
    second.add_argument("--pulls", type=int, default=2000)
    second.add_argument("--batch", type=int, default=200)
    second.add_argument("--threads", type=int, default=2)
    second.add_argument("--budget", type=int, default=0, help="bytes for kept columns")
    second.add_argument("--noise-std", type=float, default=1.0)
    second.add_argument("--float32", action="store_true")
    third = parts.add_parser("file")
    third.add_argument("folder", type=Path)
    third.add_argument("--molecules", type=int, default=100_000_000)
    third.add_argument("--part", dest="some", type=int, default=10_000_000)
    third.add_argument("--dictionary", type=int, default=256)
    third.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    if given.part == "similarities":
        similarities(given.molecules, given.dictionary, given.rounds)
    elif given.part == "bbkb":
        bbkb(given.molecules, given.pulls, given.batch, given.threads, given.budget, given.noise_std, given.float32)
    else:
        one_pass(given.folder, given.molecules, given.some, given.dictionary, given.threads)


if __name__ == "__main__":
    main()
