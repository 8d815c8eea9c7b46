"""Logistic regression on hand-written digits: hyper-parameters as arms, validation accuracy as the reward."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchbandits.checks import check_choice, check_dtype, check_whole
from torchbandits.environments.images import digits, mnist
from torchbandits.environments.recorded import Recorded

IMAGES = ("digits", "mnist")
CLASSES = 10
LEARNING_RATES = tuple(10 ** (-3 + 0.5 * place) for place in range(8))
BATCH_SIZES = (16, 32, 64, 128, 256)
DROPOUTS = (0.0, 0.15, 0.3, 0.45, 0.6)
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
_SPLIT = 0.75  # of the digits, for training


def logistic_regression(
    images: str = "digits",
    *,
    num_train: int = 5000,
    epochs: int = 2,
    records: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Recorded:
    """Multinomial logistic regression by stochastic gradients; an arm is a choice of four hyper-parameters.

    Arms are the grid of 8 learning rates (10⁻³ to 10^0.5), 5 batch sizes (16 to 256), 5 rates of input dropout (0 to 0.6) and
    5 ℓ₂ penalties (10⁻⁵ to 10⁻¹), 1,000 in all, each its place on the grid over [0, 1]. All are trained at once when the
    environment is made, `records` times each from zero with other batches and dropout; a pull draws one of the accuracies.

    Args:
        images: `"digits"` (scikit-learn's, 8 x 8 pixels, nothing to fetch) or `"mnist"`.
        num_train: Training images at most, the first ones (of the digits three in four are for training).
        epochs: Passes over them.
        records: Trainings of each arm.
        seed: Of batches and dropout.
        dtype: Of arms and rewards.

    Raises:
        DataError: If MNIST is neither here nor to be fetched, or scikit-learn is missing.
        ArgumentError: If an option is out of its range.

    Cost: about 6 · 10⁴ `num_train` `epochs` `records` floating-point operations a pixel.
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
    """Pixels and labels to train on, and those to validate on."""
    if images == "digits":
        x, y = (torch.from_numpy(values) for values in digits())
        split = int(_SPLIT * len(x))
        train, held_out = (x[:split], y[:split]), (x[split:], y[split:])
    else:
        train, held_out = ((torch.from_numpy(x), torch.from_numpy(y)) for x, y in (mnist("train"), mnist("t10k")))
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
        # A rest smaller than a batch is left out: a step of a few images would undo the others at a large rate.
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
