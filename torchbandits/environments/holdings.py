"""Inventory of data sets and recorded benchmarks for `torchbandits data`: what is on this machine, and its origin."""

from __future__ import annotations

from pathlib import Path

from torchbandits.environments import datasets, logistic
from torchbandits.environments.datasets import DATA_VARIABLE, DATASETS, DataSet
from torchbandits.environments.networks import ARCHIVES, Archive, find_archive, read_archive
from torchbandits.errors import DataError, nearest, require

MNIST = "mnist"


def holdings() -> list[tuple[str, str, str, str, str]]:
    """Name, arms, features, "yes" or "no" for whether it is on this machine, and summary of each.

    Raises:
        DataError: If there is another file in the place of one.
    """
    lines = [(d.name, str(d.rows), str(len(d.features)), _yes(datasets.find(d)), d.summary) for d in DATASETS.values()]
    lines += [(a.name, str(a.rows), str(a.features), _yes(find_archive(a)), a.summary) for a in ARCHIVES.values()]
    return [*lines, (MNIST, "1000", "4", _yes(logistic.find_mnist()), logistic.MNIST_SUMMARY)]


def fetch(name: str) -> Path:
    """Fetch, verify and cache a data set unless it is on this machine (archives are only verified), and return its path.

    Raises:
        DataError: If it is unknown, damaged, or can't be fetched.
    """
    _check_known(name)
    if name in ARCHIVES:
        archive = ARCHIVES[name]
        read_archive(archive)
        found = find_archive(archive)
        assert found is not None
        return found
    if name == MNIST:
        for part in logistic.MNIST_PARTS:
            logistic.mnist(part)
        folder = logistic.find_mnist()
        assert folder is not None
        return folder
    data = DATASETS[name]
    datasets.read(data)
    path = datasets.find(data)
    assert path is not None
    return path


def facts(name: str) -> dict[str, str]:
    """Content, origin and licence of a data set.

    Raises:
        DataError: If it is unknown.
    """
    _check_known(name)
    if name in ARCHIVES:
        return _archive_facts(ARCHIVES[name])
    return _mnist_facts() if name == MNIST else _dataset_facts(DATASETS[name])


def _check_known(name: str) -> None:
    known = [*DATASETS, *ARCHIVES, MNIST]
    require(name in known, f"Unknown data set {name!r}; known: {', '.join(known)}.{nearest(name, known)}", DataError)


def _dataset_facts(data: DataSet) -> dict[str, str]:
    path = datasets.find(data)
    return {
        "name": data.name,
        "what": data.summary,
        "arms": f"{data.rows} x {len(data.features)}",
        "features": ", ".join(data.features),
        "reward": f"{data.reward}, scaled to [0, 1]; mean before scaling {data.reward_mean:g}",
        "source": data.source,
        "licence": data.licence,
        "fetched by": data.fetch,
        "sha256": data.sha256,
        "file": str(path) if path else f"not here: set {DATA_VARIABLE}, or torchbandits data fetch {data.name}",
    }


def _archive_facts(archive: Archive) -> dict[str, str]:
    path = find_archive(archive)
    return {
        "name": archive.name,
        "what": archive.summary,
        "arms": f"{archive.rows} x {archive.features}",
        "differs from the papers": archive.differs,
        "source": archive.source,
        "licence": archive.licence,
        "sha256": archive.sha256,
        "file": str(path) if path else f"not here: put {archive.filename} into a folder and set {DATA_VARIABLE}",
    }


def _mnist_facts() -> dict[str, str]:
    path = logistic.find_mnist()
    missing = f"not here: put its four files into the folder mnist of {DATA_VARIABLE}, or torchbandits data fetch {MNIST}"
    return {
        "name": MNIST,
        "what": logistic.MNIST_SUMMARY,
        "arms": "1000 x 4, hyper-parameters of logistic_regression('mnist')",
        "source": f"LeCun, Cortes and Burges; fetched from {logistic.MIRROR}",
        "licence": "none stated with the files; commonly given as Creative Commons Attribution-Share Alike 3.0",
        "sha256": ", ".join(f"{digest} ({file})" for file, digest in logistic.SHA256.items()),
        "files": str(path) if path else missing,
    }


def _yes(path: Path | None) -> str:
    return "no" if path is None else "yes"
