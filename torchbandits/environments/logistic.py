"""Logistic regression on hand-written digits: hyper-parameters as arms, validation accuracy as the reward.

The images are scikit-learn's small digits, which need no download, or those of MNIST.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import urllib.request
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchbandits.checks import check_choice, check_dtype, check_whole, read_bytes
from torchbandits.environments.datasets import (
    DATA_VARIABLE,
    cache_folder,
    check_digest,
    data_folders,
    sklearn_datasets,
    write_cached,
)
from torchbandits.environments.tables import Recorded
from torchbandits.errors import DataError

IMAGES = ("digits", "mnist")
CLASSES = 10
LEARNING_RATES = tuple(10 ** (-3 + 0.5 * place) for place in range(8))
BATCH_SIZES = (16, 32, 64, 128, 256)
DROPOUTS = (0.0, 0.15, 0.3, 0.45, 0.6)
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
_SPLIT = 0.75  # share of the digits for training
_HELD_OUT = 10_000  # number of MNIST's 60,000 training images for validation


def logistic_regression(
    images: str = "digits",
    *,
    num_train: int = 5000,
    epochs: int = 2,
    records: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Recorded:
    """Multinomial logistic regression by stochastic gradient descent; an arm is a choice of four hyper-parameters.

    Arms are the grid of 8 learning rates (10⁻³ to 10^0.5), 5 batch sizes (16 to 256), 5 rates of input dropout (0 to 0.6) and 5
    ℓ₂ penalties (10⁻⁵ to 10⁻¹), 1,000 in all; features are positions on the grid, from 0 to 1. When the environment is made,
    all arms are trained at once, `records` times each, with weights initialised at zero and different batches and dropout. A
    pull draws one of the accuracies of its arm.

    Args:
        images: `"digits"` (scikit-learn's, 8 x 8 pixels, nothing to fetch) or `"mnist"`.
        num_train: Maximum number of training images, the first ones. Three quarters of the digits are for training; the last
            10,000 training images of MNIST are for validation, and its test images are not used.
        epochs: Passes over the training images.
        records: Number of trainings of each arm.
        seed: Seed of batches and dropout.
        dtype: Dtype of arms and rewards.

    Raises:
        DataError: If MNIST can be neither found nor fetched, or scikit-learn is missing.
        ArgumentError: If an option is out of its range.

    Cost: about 6 · 10⁴ `num_train` `epochs` `records` floating-point operations per pixel.
    Source: Bedi et al. 2020, figures 1 and 2, on MNIST; the ranges, the grid and the number of images are choices of
    this package.
    """
    check_choice("images", images, IMAGES)
    for name, value in (("num_train", num_train), ("epochs", epochs), ("records", records)):
        check_whole(name, value)
    check_whole("seed", seed, 0)
    check_dtype("dtype", dtype)
    train, held_out = _images(images, num_train)
    generator = torch.Generator().manual_seed(seed)
    accuracy = torch.stack([_accuracies(train, held_out, epochs, generator) for _ in range(records)], dim=-1)
    axes = [torch.linspace(0, 1, len(v), dtype=dtype) for v in (LEARNING_RATES, BATCH_SIZES, DROPOUTS, PENALTIES)]
    return Recorded(torch.cartesian_prod(*axes), accuracy.reshape(-1, records).to(dtype), name=f"logistic regression, {images}")


def _images(images: str, num_train: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Pixels and labels for training, and those for validation."""
    if images == "digits":
        x, y = (torch.from_numpy(values) for values in digits())
        split = int(_SPLIT * len(x))
        train, held_out = (x[:split], y[:split]), (x[split:], y[split:])
    else:
        # The test images are not used: the last training images are held out.
        x, y = (torch.from_numpy(values) for values in mnist("train"))
        train, held_out = (x[:-_HELD_OUT], y[:-_HELD_OUT]), (x[-_HELD_OUT:], y[-_HELD_OUT:])
    return (train[0][:num_train], train[1][:num_train]), held_out


def _accuracies(
    train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], epochs: int, generator: torch.Generator
) -> Tensor:
    """Validation accuracy of one training of every arm: learning rates x batch sizes x dropouts x penalties."""
    by_batch = [_train(train, held_out, size, epochs, generator) for size in BATCH_SIZES]
    return torch.stack(by_batch, dim=1)


def _train(
    train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], batch_size: int, epochs: int, generator: torch.Generator
) -> Tensor:
    """Accuracies of all learning rates x dropouts x penalties at one batch size, which share batches and random numbers.

    The gradient of the mean cross-entropy is xᵀ(softmax(xW) − y)/B; columns of W are the candidates of a dropout rate.
    """
    x, y = train
    n, pixels = x.shape
    rates, keep = x.new_tensor(LEARNING_RATES), 1 - x.new_tensor(DROPOUTS)
    step = rates.repeat_interleave(len(PENALTIES))[:, None]  # candidates x 1: a row of rates, one of penalties
    penalty = x.new_tensor(PENALTIES).repeat(len(LEARNING_RATES))[:, None]
    candidates = len(step)
    weights, bias = x.new_zeros(len(keep), pixels, candidates, CLASSES), x.new_zeros(len(keep), 1, candidates, CLASSES)
    targets = torch.nn.functional.one_hot(y, CLASSES).to(x.dtype)
    for _ in range(epochs):
        # A remainder smaller than a batch is left out: at a large rate, a step on a few images would undo the others.
        for places in torch.randperm(n, generator=generator)[: max(1, n // batch_size) * batch_size].split(batch_size):
            kept = torch.rand(len(places), pixels, generator=generator, dtype=x.dtype) < keep[:, None, None]
            inputs = x[places] * kept / keep[:, None, None]  # dropouts x B x pixels
            error = (_logits(inputs, weights) + bias).softmax(dim=-1) - targets[places][:, None]
            gradient = (inputs.mT @ error.flatten(2)).view_as(weights) / len(places)
            weights -= step * (gradient + penalty * weights)
            bias -= step * error.mean(dim=1, keepdim=True)
    x, y = held_out
    right = (_logits(x.expand(len(keep), -1, -1), weights) + bias).argmax(dim=-1) == y[:, None]
    accuracy = right.double().mean(dim=1)  # dropouts x candidates
    accuracy = torch.where(torch.isfinite(weights).all(dim=-1).all(dim=1), accuracy, 1 / CLASSES)
    return accuracy.T.reshape(len(rates), len(PENALTIES), len(keep)).transpose(1, 2)


def _logits(inputs: Tensor, weights: Tensor) -> Tensor:
    """Dropouts x B x candidates x classes."""
    return (inputs @ weights.flatten(2)).unflatten(-1, (math.prod(weights.shape[2:-1]), CLASSES))


# ---------------------------------------------------------------------- images

Images = tuple[NDArray[np.float32], NDArray[np.int64]]

MNIST_PARTS = ("train", "t10k")
MNIST_SUMMARY = (
    "60,000 images of hand-written digits to train and to validate on, 10,000 to test; for logistic_regression('mnist')."
)
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
LARGEST = 1 << 26
"""Largest size of a file in bytes, compressed or not: the largest file has 47,040,016."""
_TIMEOUT = 60  # seconds without an answer
# Digests of the uncompressed files, because copies differ in their compression.
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def digits() -> Images:
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn: `1797 x 64` in [0, 1], and `1797` labels."""
    bunch = sklearn_datasets().load_digits()
    return np.asarray(bunch.data / 16, np.float32), np.asarray(bunch.target, np.int64)


def mnist(part: str) -> Images:
    """MNIST: `n x 784` pixels in [0, 1], and `n` labels.

    The four files are looked for in the folder `mnist` of `TORCHBANDITS_DATA`, then of the cache, and are finally fetched into
    the cache.

    Args:
        part: `"train"` (60,000) or `"t10k"` (10,000).

    Raises:
        DataError: If a file can't be fetched, or is another file.
    """
    pixels, labels = (_read(f"{part}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    flat = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 28 * 28)
    return (flat / np.float32(255)).astype(np.float32), np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)


def find_mnist() -> Path | None:
    """The folder that holds all four files, or None. The files are not read."""
    here = [folder for folder in _folders() if all(os.path.isfile(folder / f"{name}.gz") for name in SHA256)]
    return here[0] if here else None


def _folders() -> list[Path]:
    return [folder / "mnist" for folder in data_folders()]


def _read(name: str) -> bytes:
    path = next((p for folder in _folders() if os.path.isfile(p := folder / f"{name}.gz")), None) or _fetch(name)
    return _verified(name, read_bytes(path, LARGEST), path)


def _verified(name: str, packed: bytes, path: Path) -> bytes:
    """The content of a compressed file, verified; `path` is for the message."""
    remedy = "Put the original there, or remove it."
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(LARGEST)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read: {error}. {remedy}") from error
    check_digest(path, content, SHA256[name], f"Both are digests of the uncompressed contents. {remedy}")
    return content


def _fetch(name: str) -> Path:
    path = cache_folder() / "mnist" / f"{name}.gz"
    try:
        with urllib.request.urlopen(f"{MIRROR}{name}.gz", timeout=_TIMEOUT) as answer:
            packed = answer.read(LARGEST)
    except OSError as error:
        raise DataError(
            f"MNIST is not here and {name}.gz could not be fetched from {MIRROR} ({error}). Either put its four files into the "
            f"folder mnist of a folder and set {DATA_VARIABLE} to that, or go online."
        ) from error
    # Verified first, so that only valid files are kept.
    _verified(name, packed, path)
    write_cached(path, packed)
    return path
