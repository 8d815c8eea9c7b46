"""Tanimoto similarities of packed bits and counts: population counts of words, compiled where numba is installed.

The compiled loop transposes a block of 128 arms into groups of eight adjacent arms, and counts the bits that each group shares
with four dictionary points at a time. Every arm of a group has its own vector lane, so that nothing is summed across lanes.
Without numba, NumPy counts the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray as Array

try:
    from llvmlite import ir
    from numba import extending, njit, types
    from numba.core import cgutils

    COMPILED = True
except ImportError:
    # numba is an optional dependency; NumPy computes the same.
    COMPILED = False

# Number of adjacent arms, and of dictionary points whose counts are accumulated together.
_LANES, _TILE = 8, 4
# Number of arms that are transposed together: 32 KiB for 2,048 bits per arm, which stay in the first-level cache.
_BLOCK = 128
# Number of features whose counts of at most 255 are summed in 16 bits.
_FLUSH = 256
# Most bytes of intersections that NumPy holds at once.
_HELD = 16 << 20

_BITS_OF_BYTE = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)

if COMPILED:
    # numba passes the first argument, the context, itself; its annotations do not say so.
    intrinsic: Any = extending.intrinsic

    @intrinsic
    def _popcount(context: Any, word: Any) -> Any:  # pragma: no cover - compiled
        """Number of bits set in a word."""
        return word(word), lambda context, builder, signature, values: builder.ctpop(values[0])

    @intrinsic
    def _tile(  # pragma: no cover - compiled
        context: Any,
        block: Any,
        group: Any,
        sizes: Any,
        dictionary: Any,
        first: Any,
        own: Any,
        scale: Any,
        out: Any,
        at: Any,
        line: Any,
    ) -> Any:
        """out[at + t·line + l] = scale · c / (sizes[8 group + l] + own[first + t] − c), where lane l of a group of arms shares
        c bits with dictionary point first + t, c = Σ_k popcount(block[group, k, l] & dictionary[first + t, k]).

        LLVM's vectoriser does not keep the sums of a tile in registers; written as vectors they take 0.7 of the time.
        """
        signature = types.void(
            block, types.intp, sizes, dictionary, types.intp, own, types.float64, out, types.intp, types.intp
        )

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            def array(i: int) -> Any:
                return context.make_array(signature.args[i])(context, builder, values[i])

            arms, sizes, points, own, out = (array(i) for i in (0, 2, 3, 5, 7))
            word, real, single = ir.IntType(64), ir.DoubleType(), ir.FloatType()
            lanes, reals = (ir.VectorType(kind, _LANES) for kind in (word, real))
            whole = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lanes, [lanes]), f"llvm.ctpop.v{_LANES}i64")

            def number(value: int) -> Any:
                return ir.Constant(word, value)

            def spread(value: Any, kind: Any) -> Any:
                nothing, place = ir.Constant(kind, ir.Undefined), ir.IntType(32)
                one = builder.insert_element(nothing, value, ir.Constant(place, 0))
                return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(place, _LANES), [0] * _LANES))

            def vector(data: Any, start: Any, kind: Any) -> Any:
                loaded = builder.load(builder.bitcast(builder.gep(data, [start]), kind.as_pointer()))
                loaded.align = 4
                return loaded

            w = cgutils.unpack_tuple(builder, points.shape)[1]
            start = builder.mul(values[1], builder.mul(w, number(_LANES)))
            place = [builder.add(values[4], number(t)) for t in range(_TILE)]
            sums = [cgutils.alloca_once_value(builder, ir.Constant(lanes, [0] * _LANES)) for _ in place]
            for total in sums:
                builder.store(ir.Constant(lanes, [0] * _LANES), total)
            with cgutils.for_range(builder, w) as loop:
                x = vector(arms.data, builder.add(start, builder.mul(loop.index, number(_LANES))), lanes)
                for point, total in zip(place, sums, strict=True):
                    y = builder.load(builder.gep(points.data, [builder.add(builder.mul(point, w), loop.index)]))
                    both = builder.and_(x, spread(y, lanes))
                    builder.store(builder.add(builder.load(total), builder.call(whole, [both])), total)
            size = vector(sizes.data, builder.mul(values[1], number(_LANES)), reals)
            for t, (point, total) in enumerate(zip(place, sums, strict=True)):
                both = builder.sitofp(builder.load(total), reals)
                mine = spread(builder.load(builder.gep(own.data, [point])), reals)
                ratio = builder.fdiv(both, builder.fsub(builder.fadd(size, mine), both))
                value = builder.fmul(spread(values[6], reals), ratio)
                narrow = signature.args[7].dtype == types.float32
                kind = ir.VectorType(single if narrow else real, _LANES)
                value = builder.fptrunc(value, kind) if narrow else value
                target = builder.gep(out.data, [builder.add(values[8], builder.mul(number(t), values[9]))])
                builder.store(value, builder.bitcast(target, kind.as_pointer())).align = 4
            return context.get_dummy_value()

        return signature, generate

    @njit(cache=True, nogil=True, error_model="numpy")
    def _sizes(words: Array) -> Array:  # pragma: no cover - compiled
        sizes = np.zeros(words.shape[0])
        for i in range(words.shape[0]):
            bits = np.int64(0)
            for k in range(words.shape[1]):
                bits += np.int64(_popcount(words[i, k]))
            sizes[i] = bits
        return sizes

    @njit(cache=True, nogil=True, error_model="numpy")
    def _of_bits(words: Array, dictionary: Array, scale: float, out: Array, line: int) -> None:  # pragma: no cover - compiled
        (n, w), m = words.shape, dictionary.shape[0]
        own, tiled = _sizes(dictionary), m // _TILE * _TILE
        turned = np.zeros((_BLOCK // _LANES, w, _LANES), np.uint64)
        sizes, last = np.zeros(_BLOCK), np.empty(_TILE * _LANES, out.dtype)
        for start in range(0, n, _BLOCK):
            some = words[start : start + _BLOCK]
            b = some.shape[0]
            groups, left = b // _LANES, b % _LANES
            sizes[:b] = _sizes(some)
            if tiled:
                for i in range(b):
                    for k in range(w):
                        turned[i // _LANES, k, i % _LANES] = some[i, k]
            for j in range(0, tiled, _TILE):
                for group in range(groups):
                    _tile(turned, group, sizes, dictionary, j, own, scale, out, j * line + start + group * _LANES, line)
                if left:
                    _tile(turned, groups, sizes, dictionary, j, own, scale, last, 0, _LANES)
                    for t in range(_TILE):
                        for i in range(left):
                            out[(j + t) * line + start + groups * _LANES + i] = last[t * _LANES + i]
            for j in range(tiled, m):
                for i in range(b):
                    both = np.int64(0)
                    for k in range(w):
                        both += np.int64(_popcount(some[i, k] & dictionary[j, k]))
                    out[j * line + start + i] = scale * (both / (sizes[i] + own[j] - both))
            # Two empty fingerprints have the ratio 0/0; their similarity is `scale`.
            for j in range(m):
                if own[j] == 0:
                    for i in range(b):
                        if sizes[i] == 0:
                            out[j * line + start + i] = scale

    @njit(cache=True, nogil=True, error_model="numpy")
    def _of_counts(rows: Array, dictionary: Array, scale: float, out: Array, line: int) -> None:  # pragma: no cover - compiled
        (n, d), m = rows.shape, dictionary.shape[0]
        turned, few, shared = np.zeros((d, _BLOCK), np.uint8), np.zeros(_BLOCK, np.uint16), np.zeros(_BLOCK, np.int64)
        own, sizes = np.zeros(m, np.int64), np.zeros(_BLOCK, np.int64)
        for j in range(m):
            for k in range(d):
                own[j] += dictionary[j, k]
        for start in range(0, n, _BLOCK):
            b = min(_BLOCK, n - start)
            sizes[:] = 0
            for i in range(b):
                for k in range(d):
                    turned[k, i] = rows[start + i, k]
                    sizes[i] += rows[start + i, k]
            for j in range(m):
                shared[:] = 0
                for first in range(0, d, _FLUSH):
                    few[:] = 0
                    for k in range(first, min(d, first + _FLUSH)):
                        count = dictionary[j, k]
                        if count:
                            arms = turned[k]
                            for i in range(_BLOCK):
                                few[i] += np.uint16(min(arms[i], count))
                    for i in range(_BLOCK):
                        shared[i] += np.int64(few[i])
                for i in range(b):
                    either = sizes[i] + own[j] - shared[i]
                    out[j * line + start + i] = scale * (shared[i] / either) if either else scale


def similarities(words: Array, dictionary: Array, counts: bool, scale: float, out: Array) -> None:
    """Write scale · Σ min(x, y) / Σ max(x, y) between packed points to `out`; `scale` between two empty points.

    Args:
        words: `n x w` int64, the arms.
        dictionary: `m x w` int64.
        counts: Whether words hold bytes that are counts; otherwise they hold bits.
        scale: The similarity of equal points.
        out: `m x n`, float32 or float64, overwritten; each line is contiguous.

    Cost: O(n m w).
    """
    kind = np.uint8 if counts else np.uint64
    x, y = np.ascontiguousarray(words).view(kind), np.ascontiguousarray(dictionary).view(kind)
    if COMPILED:
        if out.size:
            # View the lines, with any gaps between them, as one contiguous array, whose stores are vectorised.
            line = out.strides[0] // out.itemsize
            flat = np.lib.stride_tricks.as_strided(out, ((len(out) - 1) * line + out.shape[1],), (out.itemsize,))
            (_of_counts if counts else _of_bits)(x, y, scale, flat, line)
        return
    step = max(1, _HELD // max(1, x[:1].nbytes))
    for start in range(0, len(x), step):
        some = x[start : start + step]
        sizes = _totals(some, counts)
        for j, point in enumerate(y):
            shared = _totals(np.minimum(some, point) if counts else some & point, counts)
            either = sizes + _totals(point, counts) - shared
            ratio = shared / np.maximum(either, 1)
            out[j, start : start + step] = scale * np.where(either > 0, ratio, 1.0)


def _totals(values: Array, counts: bool) -> Array:
    """Sum of the counts, or number of bits, of each point, `n`."""
    if counts:
        return values.sum(axis=-1, dtype=np.int64)
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(values).sum(axis=-1, dtype=np.int64)
    return _BITS_OF_BYTE[values.view(np.uint8)].sum(axis=-1, dtype=np.int64)
