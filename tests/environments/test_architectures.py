"""Recorded benchmarks: the originals if `TORCHBANDITS_DATA` names their folder, and small substitutes everywhere."""

import dataclasses
import gzip
import hashlib
import itertools
import math
import os

import numpy as np
import pytest
import torch

from torchbandits.environments import (
    ARCHIVES,
    fcnet,
    global_optimization,
    logistic,
    logistic_regression,
    nas_bench_101,
    nas_bench_201,
    networks,
)
from torchbandits.environments.datasets import CACHE_VARIABLE, DATA_VARIABLE
from torchbandits.errors import ArgumentError, DataError

ORIGINALS = os.environ.get(DATA_VARIABLE)
needs_originals = pytest.mark.skipif(not ORIGINALS, reason=f"{DATA_VARIABLE} is not set")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Write small arrays in place of an archive, with a loader that accepts them."""

    def write(module, constant, **arrays):
        data = getattr(networks, constant)
        np.savez(tmp_path / data.filename, **arrays)
        digest = hashlib.sha256((tmp_path / data.filename).read_bytes()).hexdigest()
        monkeypatch.setattr(module, constant, dataclasses.replace(data, sha256=digest))
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))

    return write


def test_the_subset_is_encoded_in_two_halves_of_at_most_unit_norm(fake):
    generator = np.random.default_rng(0)
    X = np.unique(generator.integers(0, 2, (60, 19)), axis=0).astype(np.uint8)
    accuracy = generator.random(len(X))
    fake(networks, "NAS_BENCH_101", X=X, test_accuracy_mean3=accuracy)
    environment = nas_bench_101(noise_std=0.02)
    adjacency = math.sqrt(max(int(row[:15].sum()) for row in X))
    ops = math.sqrt(max(int(row[15:].sum()) for row in X))
    for arm, row in zip(environment.arms.tolist(), X.tolist(), strict=True):
        assert arm == pytest.approx([b / adjacency for b in row[:15]] + [b / ops for b in row[15:]])
    assert environment.means.tolist() == accuracy.tolist()
    for arm, near in enumerate(environment.neighbors.tolist()):
        expected = [j for j in range(len(X)) if (X[j] != X[arm]).sum() == 1]
        assert sorted(n for n in near if n >= 0) == expected


@pytest.mark.exhaustive
def test_the_paper_drops_both_ends_and_looks_mutants_up_up_to_a_renaming(fake):
    """Appendix D.2 of BBKB: 13 + 4 features; a mutant counts as the arm that it equals after a renaming of its inner nodes."""
    generator = np.random.default_rng(1)
    X = np.unique(generator.integers(0, 2, (400, 19)), axis=0).astype(np.uint8)
    X[:, [0, 14]] = 1
    _, first = np.unique([least_renaming(row) for row in X], axis=0, return_index=True)
    X = X[np.sort(first)]
    fake(networks, "NAS_BENCH_101", X=X, test_accuracy_mean3=generator.random(len(X)))
    environment = nas_bench_101(ends=False, neighbors="isomorphic")
    edges = math.sqrt(max(int(row[1:14].sum()) for row in X))
    assert environment.arms[:, :13].numpy() * edges == pytest.approx(X[:, 1:14])
    assert environment.arms.shape == (len(X), 17)
    place = {least_renaming(row): arm for arm, row in enumerate(X)}
    more = 0
    for arm in range(0, len(X), 7):
        mutants = [np.where(np.arange(19) == bit, 1 - X[arm], X[arm]) for bit in range(19)]
        found = [place[least_renaming(row)] for row in mutants if least_renaming(row) in place]
        near = [n for n in environment.neighbors[arm].tolist() if n >= 0]
        assert sorted(near) == sorted(n for n in found if n != arm)
        more += len(set(near)) - int(((X[arm] != X).sum(axis=1) == 1).sum())
    assert more > 0
    for options in ({"ends": False}, {"neighbors": "isomorphic"}):
        with pytest.raises(ArgumentError, match="need subset='6v-conv-pool'"):
            nas_bench_101("full", **options)


def least_renaming(row):
    """The smallest encoding of a cell of six nodes over all renamings of its inner nodes that keep it upper triangular."""
    edges = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    present = {edge for edge, bit in zip(edges, row[:15].tolist(), strict=True) if bit}
    found = []
    for order in itertools.permutations(range(1, 5)):
        new = {0: 0, 5: 5} | {old: place + 1 for place, old in enumerate(order)}
        renamed = {(new[i], new[j]) for i, j in present}
        if all(i < j for i, j in renamed):
            ops = [int(row[15 + old - 1]) for old in order]
            found.append((*(int(edge in renamed) for edge in edges), *ops))
    return min(found)


def test_all_cells_are_padded_to_seven_nodes(fake):
    """A cell of 2 nodes: input -> output. One of 4: a chain through conv1x1 (1) and max-pool (2)."""
    bits = [1, sum(1 << x + y * (y - 1) // 2 for x, y in [(0, 1), (1, 2), (2, 3)])]
    fake(
        networks, "NAS_BENCH_101_FULL", n_vertices=np.array([2, 4], np.int8), edge_bits=np.array(bits, np.int32),
        op_code=np.array([0, 1 * 3 + 2], np.int16), test_correct_sum3=np.array([9984, 29952], np.uint16),
    )  # fmt: skip
    environment = nas_bench_101("full", dtype=torch.float32)
    edges, ops = environment.arms[:, :21] * math.sqrt(3), environment.arms[:, 21:].reshape(2, 5, 3) * math.sqrt(2)
    place = {(x, y): x + y * (y - 1) // 2 for y in range(7) for x in range(y)}
    assert edges[0].nonzero().squeeze(-1).tolist() == [place[0, 6]]
    assert sorted(edges[1].nonzero().squeeze(-1).tolist()) == sorted([place[0, 1], place[1, 2], place[2, 6]])
    assert ops[0].sum() == 0
    assert ops[1].nonzero().tolist() == [[0, 1], [1, 2]]
    assert environment.means.tolist() == pytest.approx([1 / 3, 1.0])


def test_cells_of_201_are_bits_with_costs_and_24_neighbours(fake):
    ops = np.array(np.meshgrid(*[range(5)] * 6, indexing="ij")).reshape(6, -1).T.astype(np.uint8)
    accuracy = np.random.default_rng(0).random((len(ops), 3)) * 100
    accuracy[::7, 1] = np.nan
    names = ("val_acc_cifar10", "val_acc_cifar100", "val_acc_imagenet16")
    seconds = np.arange(1.0, len(ops) + 1)
    fake(
        networks, "NAS_BENCH_201", ops=ops, train_seconds_cifar10valid=seconds,
        **{name: accuracy + place for place, name in enumerate(names)},
    )  # fmt: skip
    environment = nas_bench_201("cifar100")
    assert float(environment.means[7]) == pytest.approx(np.nanmean(accuracy[7] + 1) / 100)
    assert environment.costs.tolist() == seconds.tolist()
    assert environment.arms.norm(dim=1).tolist() == pytest.approx([1.0] * len(ops))
    for arm in (0, 77, 15624):
        near = environment.neighbors[arm].tolist()
        assert sorted(near) == [j for j in range(len(ops)) if (ops[j] != ops[arm]).sum() == 1]
        distance = (environment.arms[arm] - environment.arms[near]).norm(dim=1)
        assert distance.tolist() == pytest.approx([math.sqrt(1 / 3)] * 24)


def test_networks_are_places_on_a_grid(fake):
    index = np.array(np.meshgrid(*map(range, (2, 2, 2, 2, 2, 3, 2, 2, 2)), indexing="ij")).reshape(9, -1).T.astype(np.uint8)
    names = ["activation_fn_1", "activation_fn_2", "batch_size", "dropout_1", "dropout_2", "init_lr", "lr_schedule"]
    error = np.random.default_rng(0).random((len(index), 4)).astype(np.float32) + 0.01
    fake(
        networks, "FCNET", index=index, names=np.array([*names, "n_units_1", "n_units_2"]),
        **{f"valid_mse_{task}": error for task in networks.TASKS},
    )  # fmt: skip
    environment = fcnet("naval_propulsion")
    assert environment.arms[5].tolist() == pytest.approx((index[5] / (index.max(axis=0))).tolist())
    assert float(environment.means[3]) == pytest.approx(float(np.mean([-math.log(v) for v in error[3]])), rel=1e-6)
    # Ten neighbours in the middle of the learning rates, nine at both ends.
    assert {int((row >= 0).sum()) for row in environment.neighbors} == {9, 10}


@pytest.mark.sweep(1)
@needs_originals
@pytest.mark.parametrize(
    ("make", "arms", "optimum"),
    [
        (nas_bench_101, (12416, 19), 0.942341),
        (nas_bench_201, (15625, 30), 0.9161),
        (fcnet, (62208, 9), 1.5079),
    ],
)
def test_the_originals(make, arms, optimum):
    environment = make()
    assert environment.arms.shape == arms
    assert float(environment.optimum) == pytest.approx(optimum, abs=1e-4)
    assert len(environment.arms.unique(dim=0)) == len(environment.arms)
    assert bool(((environment.neighbors >= 0).sum(dim=1) >= 2).all())


@pytest.mark.exhaustive
@needs_originals
def test_all_original_cells():
    environment = nas_bench_101("full", neighbors=False)
    assert environment.arms.shape == (423_624, 36)
    assert float(environment.optimum) == pytest.approx(0.9432, abs=1e-4)
    assert environment.neighbors is None


@pytest.mark.exhaustive
def test_digits_are_trained_reproducibly_and_some_settings_are_better():
    environment = logistic_regression(epochs=1, records=2, num_train=500)
    again = logistic_regression(epochs=1, records=2, num_train=500)
    assert environment.arms.shape == (1000, 4)
    assert environment.records.equal(again.records)
    assert not environment.records.equal(logistic_regression(epochs=1, records=2, num_train=500, seed=1).records)
    assert 0 <= float(environment.means.min()) < 0.5 < 0.7 < float(environment.optimum) <= 1
    assert environment.noise_std > 0


def test_mnist_is_validated_on_held_out_training_images(monkeypatch):
    """The test images are not used, and no image is used for both training and validation."""
    asked = []

    def numbered(part):
        asked.append(part)
        return np.arange(10_007, dtype=np.float32)[:, None], np.arange(10_007)

    monkeypatch.setattr(logistic, "mnist", numbered)
    train, held_out = logistic._images("mnist", 5)
    assert asked == ["train"]
    assert train[1].tolist() == list(range(5))
    assert held_out[1].tolist() == list(range(7, 10_007))
    assert len(logistic._images("mnist", 5000)[0][1]) == 7


def test_a_candidate_is_trained_as_it_would_be_alone(monkeypatch):
    """Without dropout, training equals stochastic gradient descent written out for one candidate, on the same batches."""
    monkeypatch.setattr("torchbandits.environments.logistic.DROPOUTS", (0.0,))
    generator = torch.Generator().manual_seed(4)
    logistic = pytest.importorskip("torchbandits.environments.logistic")
    (x, y), held_out = logistic._images("digits", 300)
    found = logistic._train((x, y), held_out, 32, 2, torch.Generator().manual_seed(4))
    rate, penalty = logistic.LEARNING_RATES[6], logistic.PENALTIES[3]
    weights, bias = torch.zeros(64, 10, dtype=torch.float64), torch.zeros(10, dtype=torch.float64)
    for _ in range(2):
        order = torch.randperm(300, generator=generator)[:288]
        for places in order.split(32):
            torch.rand(32, 64, generator=generator)  # the draws of dropout, which drops no unit here
            inputs = x[places].double()
            error = (inputs @ weights + bias).softmax(dim=-1)
            error[torch.arange(32), y[places]] -= 1
            weights = weights - rate * (inputs.T @ error / 32 + penalty * weights)
            bias = bias - rate * error.mean(dim=0)
    right = (held_out[0].double() @ weights + bias).argmax(dim=-1) == held_out[1]
    assert float(found[6, 0, 3]) == pytest.approx(float(right.double().mean()), abs=2.5 / len(held_out[0]))


def test_mnist_is_read_fetched_and_verified(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "none"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    pixels = bytes(16) + bytes(range(196)) * 8
    contents = {"t10k-images-idx3-ubyte": pixels, "t10k-labels-idx1-ubyte": bytes(8) + bytes([3, 9])}
    for name, content in contents.items():
        (mirror / f"{name}.gz").write_bytes(gzip.compress(content))
        monkeypatch.setitem(logistic.SHA256, name, hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(logistic, "MIRROR", (tmp_path / "nowhere").as_uri() + "/")
    with pytest.raises(DataError, match="could not be fetched"):
        logistic.mnist("t10k")
    monkeypatch.setattr(logistic, "MIRROR", mirror.as_uri() + "/")
    x, y = logistic.mnist("t10k")
    assert x.shape == (2, 784)
    assert y.tolist() == [3, 9]
    assert float(x[0, 195]) == pytest.approx(195 / 255)
    path = tmp_path / "cache" / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(b"other"))
    digest = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(DataError, match=f"has sha256 {digest}, expected {logistic.SHA256['t10k-labels-idx1-ubyte']}"):
        logistic.mnist("t10k")
    monkeypatch.setattr(logistic, "LARGEST", 1 << 11)
    path.write_bytes(gzip.compress(bytes(1 << 18)))  # a file that grows a thousandfold when it is unpacked
    with pytest.raises(DataError, match=f"has sha256 {hashlib.sha256(bytes(1 << 11)).hexdigest()}"):
        logistic.mnist("t10k")
    monkeypatch.setattr(logistic, "LARGEST", 1 << 26)
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match="can't be read"):
        logistic.mnist("t10k")
    path.unlink()
    (mirror / path.name).write_bytes(gzip.compress(b"other"))
    monkeypatch.setattr(logistic, "MIRROR", mirror.as_uri() + "/")
    with pytest.raises(DataError, match="has sha256"):
        logistic.mnist("t10k")
    assert not path.exists(), "what is not MNIST's was kept"


@pytest.mark.parametrize("data", ARCHIVES.values(), ids=lambda data: data.name)
def test_an_archive_that_is_missing_or_another_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(DataError, match=data.filename):
        networks.read_archive(data)
    (tmp_path / data.filename).write_bytes(b"something else")
    with pytest.raises(DataError, match="sha256"):
        networks.read_archive(data)
    digest = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(DataError, match="can't be read"):
        networks.read_archive(dataclasses.replace(data, sha256=digest))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (nas_bench_101, {"subset": "ful"}, "Did you mean 'full'"),
        (nas_bench_201, {"dataset": "cifar11"}, "Did you mean 'cifar10'"),
        (fcnet, {"task": "naval"}, "task must be one of"),
        (logistic_regression, {"images": "mnst"}, "Did you mean 'mnist'"),
        (logistic_regression, {"records": 0}, "records must be a whole number ≥ 1"),
        (global_optimization, {"name": "cosine8"}, "has 8 features, not 2"),
        (global_optimization, {"name": "brannin"}, "Did you mean 'branin'"),
    ],
)
def test_bad_options_are_refused(make, options, message):
    with pytest.raises(ArgumentError, match=message):
        make(**options)


@pytest.mark.parametrize("name", ["branin", "six_hump_camel", "ackley", "rosenbrock"])
def test_test_functions_are_on_a_square_grid_between_minus_one_and_one(name):
    environment = global_optimization(name)
    assert environment.arms.shape == (900, 2)
    assert environment.means.aminmax() == (-1, 1)
    assert (environment.noise, environment.noise_std, environment.norm_bound) == ("uniform", 0.1, 1.0)
