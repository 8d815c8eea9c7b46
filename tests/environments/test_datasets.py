"""Real data sets: the originals if `TORCHBANDITS_DATA` names their folder, and small substitutes everywhere."""

import dataclasses
import hashlib
import os
import re
import types
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from torchbandits.environments import abalone, cadata, datasets, holdings
from torchbandits.environments.datasets import ABALONE, CADATA, DATASETS
from torchbandits.errors import ArgumentError, DataError

LOADERS = {"abalone": abalone, "cadata": cadata}
ORIGINALS = os.environ.get(datasets.DATA_VARIABLE)


def fake_columns(data, rows=12):
    """Numbers that resemble those of the data set: every column is different, and words have their codes."""
    generator = np.random.default_rng(7)
    columns = {name: generator.integers(1, 50, rows) + place / 8 for place, name in enumerate(data.columns)}
    for name, pairs in data.codes:
        columns[name] = np.array([pairs[i % len(pairs)][1] for i in range(rows)], float)
    if data is CADATA:  # totals are whole numbers in the original
        whole = ("median_house_value", "total_rooms", "total_bedrooms", "population", "households")
        columns |= {name: np.ceil(columns[name]) for name in whole}
    return columns


def write_csv(folder, data, columns):
    words = {name: {number: word for word, number in pairs} for name, pairs in data.codes}
    lines = [",".join(data.columns)]
    for i in range(len(columns[data.reward])):
        lines.append(",".join(str(words.get(name, {}).get(columns[name][i], columns[name][i])) for name in data.columns))
    (folder / data.filename).write_text("\n".join(lines) + "\n")
    return folder / data.filename


@pytest.fixture(params=DATASETS)
def fake(request, tmp_path, monkeypatch):
    """A substitute in a folder that TORCHBANDITS_DATA names, an empty cache, and no network."""
    columns = fake_columns(DATASETS[request.param])
    original = DATASETS[request.param]
    folder = tmp_path / "data"
    folder.mkdir()
    path = write_csv(folder, original, columns)
    mean = float(columns[original.reward].mean())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    data = dataclasses.replace(original, rows=12, reward_mean=mean, sha256=digest)
    monkeypatch.setitem(DATASETS, data.name, data)
    monkeypatch.setenv(datasets.DATA_VARIABLE, str(folder))
    monkeypatch.setenv(datasets.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "sklearn_datasets", offline)
    return types.SimpleNamespace(data=data, columns=columns, path=path, cache=tmp_path / "cache")


def offline():
    def fail(*args, **kwargs):
        raise OSError("no route to host")

    return types.SimpleNamespace(fetch_openml=fail, fetch_california_housing=fail)


def test_a_file_becomes_a_standardised_table(fake):
    table = LOADERS[fake.data.name]()
    assert table.name == fake.data.name
    assert table.arms.shape == (12, 8)
    assert table.arms.dtype == table.means.dtype == torch.float64
    assert table.noise_std == 0.01
    for place, feature in enumerate(fake.data.features):
        values = fake.columns[feature]
        expected = (values - values.mean()) / np.sqrt(np.mean((values - values.mean()) ** 2))
        np.testing.assert_allclose(table.arms[:, place].numpy(), expected, atol=1e-12)
    rewards = fake.columns[fake.data.reward]
    np.testing.assert_allclose(table.means.numpy(), (rewards - rewards.min()) / np.ptp(rewards))


def test_scalings_and_dtype(fake):
    load = LOADERS[fake.data.name]
    standard, divided, raw = load(), load(scaling="standardize/sqrt_d"), load(scaling="none", dtype=torch.float32)
    torch.testing.assert_close(divided.arms * 8**0.5, standard.arms)
    assert raw.arms.dtype == raw.means.dtype == torch.float32
    np.testing.assert_allclose(raw.arms[:, 0].numpy(), fake.columns[fake.data.features[0]], rtol=1e-6)
    columns = np.stack([fake.columns[name] for name in fake.data.features], axis=-1)
    between, unit = load(scaling="min-max").arms.numpy(), load(scaling="unit-rows").arms.numpy()
    assert between.min(axis=0) == pytest.approx(np.zeros(8))
    assert between.max(axis=0) == pytest.approx(np.ones(8))
    np.testing.assert_allclose(between, (columns - columns.min(axis=0)) / np.ptp(columns, axis=0))
    np.testing.assert_allclose(unit, columns / np.sqrt((columns**2).sum(axis=1))[:, None])
    with pytest.raises(ArgumentError, match="Did you mean 'standardize'"):
        load(scaling="standardise")
    with pytest.raises(ArgumentError, match="noise_std"):
        load(noise_std=-1.0)


def test_a_file_that_is_not_the_original_is_refused(fake):
    fake.path.write_text(fake.path.read_text() + "\n")
    with pytest.raises(DataError, match=f"sha256 .*expected {fake.data.sha256}"):
        LOADERS[fake.data.name]()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(",", ";"), "has columns"),
        (lambda text: text + text.splitlines()[1] + "\n", "has 13 rows, but .* has 12"),
        (lambda text: text + "1,2\n", "line 14: expected 9 cells, got 2"),
        (lambda text: re.sub(r",[\d.]+$", ",x", text, count=1, flags=re.M), "expected numbers: could not convert"),
        (lambda text: re.sub(r",[\d.]+$", ",nan", text, count=1, flags=re.M), "NaN or infinity"),
        (lambda text: "", "has columns ''"),
    ],
)
def test_damaged_files_are_refused(fake, change, message):
    fake.path.write_text(change(fake.path.read_text()))
    with pytest.raises(DataError, match=message):
        datasets.parse_csv(fake.path.read_bytes(), fake.data, str(fake.path))


def test_an_unknown_word_and_another_mean_are_refused(tmp_path):
    columns = fake_columns(ABALONE)
    data = dataclasses.replace(ABALONE, rows=12)
    path = write_csv(tmp_path, data, columns)
    with pytest.raises(DataError, match="the mean of Rings is"):
        datasets.parse_csv(path.read_bytes(), data, str(path))
    path.write_text(path.read_text().replace("M,", "X,"))
    with pytest.raises(DataError, match="column Sex: expected M, F, I"):
        datasets.parse_csv(path.read_bytes(), data, str(path))


def test_neither_way_names_both(fake, monkeypatch):
    fake.path.unlink()
    with pytest.raises(DataError, match="could not be fetched") as caught:
        LOADERS[fake.data.name]()
    assert datasets.DATA_VARIABLE in str(caught.value)
    assert f"torchbandits data fetch {fake.data.name}" in str(caught.value)
    assert "no route to host" in str(caught.value)
    monkeypatch.delenv(datasets.DATA_VARIABLE)
    with pytest.raises(DataError, match="could not be fetched"):
        LOADERS[fake.data.name]()
    assert not fake.cache.exists()


def sklearn_with(columns):
    """The value that scikit-learn would return for these columns."""

    def fetch_openml(name, *, version, as_frame, data_home, n_retries):
        assert (name, version, as_frame) == ("abalone", 1, True)
        words = {1.0: "M", 2.0: "F", 3.0: "I"}
        frame = pandas.DataFrame({k: v for k, v in columns.items() if k != "Sex"})
        frame.insert(0, "Sex", [words[v] for v in columns["Sex"]])
        return types.SimpleNamespace(frame=frame.astype({"Sex": "category", "Rings": str}))

    def fetch_california_housing(*, data_home, n_retries):
        households = columns["households"]
        by_name = {
            "MedInc": columns["median_income"],
            "HouseAge": columns["median_age"],
            "AveRooms": columns["total_rooms"] / households,
            "AveBedrms": columns["total_bedrooms"] / households,
            "Population": columns["population"],
            "AveOccup": columns["population"] / households,
            "Latitude": columns["latitude"],
            "Longitude": columns["longitude"],
        }
        return types.SimpleNamespace(
            feature_names=list(by_name),
            data=np.stack(list(by_name.values()), axis=1),
            target=columns["median_house_value"] / 100_000,
        )

    return lambda: types.SimpleNamespace(fetch_openml=fetch_openml, fetch_california_housing=fetch_california_housing)


def test_fetched_data_is_cached_and_equals_the_file(fake, monkeypatch):
    from_file = LOADERS[fake.data.name]()
    monkeypatch.delenv(datasets.DATA_VARIABLE)
    monkeypatch.setattr(datasets, "sklearn_datasets", sklearn_with(fake.columns))
    fetched = LOADERS[fake.data.name]()
    monkeypatch.setattr(datasets, "sklearn_datasets", offline)
    cached = LOADERS[fake.data.name]()
    for table in (fetched, cached):
        torch.testing.assert_close(table.arms, from_file.arms, rtol=1e-12, atol=1e-12)
        assert torch.equal(table.means, from_file.means)
    assert sorted(path.name for path in fake.cache.iterdir()) == [fake.data.filename, f"{fake.data.filename}.sha256"]


def test_a_cached_copy_is_verified_at_every_use(fake, monkeypatch):
    """A change that keeps the statistics is found by the digest noted at the fetch; so is a copy without a digest."""
    monkeypatch.delenv(datasets.DATA_VARIABLE)
    monkeypatch.setattr(datasets, "sklearn_datasets", sklearn_with(fake.columns))
    LOADERS[fake.data.name]()
    path = fake.cache / fake.data.filename
    whole = path.read_bytes()
    header, *lines = whole.splitlines(keepends=True)
    changed = b"".join([header, *reversed(lines)])
    path.write_bytes(changed)
    noted, found = hashlib.sha256(whole).hexdigest(), hashlib.sha256(changed).hexdigest()
    for use in (LOADERS[fake.data.name], lambda: datasets.find(fake.data)):
        with pytest.raises(DataError, match=f"{path.name} has sha256 {found}, expected {noted}. Remove it, and fetch it again"):
            use()
    path.write_bytes(whole)
    LOADERS[fake.data.name]()
    (fake.cache / f"{path.name}.sha256").unlink()
    with pytest.raises(DataError, match=f"has sha256 {noted}, expected {fake.data.sha256}"):
        LOADERS[fake.data.name]()
    path.write_bytes(fake.path.read_bytes())  # the original may be put into the cache by hand
    LOADERS[fake.data.name]()


def test_fetched_data_of_another_size_is_refused_and_not_kept(fake, monkeypatch):
    monkeypatch.delenv(datasets.DATA_VARIABLE)
    fewer = {name: values[:-1] for name, values in fake.columns.items()}
    monkeypatch.setattr(datasets, "sklearn_datasets", sklearn_with(fewer))
    with pytest.raises(DataError, match="What was fetched has 11 rows"):
        LOADERS[fake.data.name]()
    assert not fake.cache.exists()


def test_a_cache_that_cannot_be_written_is_said(fake, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.delenv(datasets.DATA_VARIABLE)
    monkeypatch.setenv(datasets.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(datasets, "sklearn_datasets", sklearn_with(fake.columns))
    with pytest.raises(DataError, match="can't be written"):
        LOADERS[fake.data.name]()


def test_without_scikit_learn_the_message_names_the_extra(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(datasets.importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"torchbandits\[experiments\]"):
        datasets.fetch_abalone(Path())


def test_the_cache_follows_the_environment(monkeypatch):
    monkeypatch.delenv(datasets.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert datasets.cache_folder() == Path("/somewhere/torchbandits")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert datasets.cache_folder() == Path.home() / ".cache" / "torchbandits"


def test_unknown_names_suggest_the_nearest():
    for use in (holdings.fetch, holdings.facts):
        with pytest.raises(DataError, match="Did you mean 'abalone'"):
            use("abalon")


@pytest.fixture(params=DATASETS)
def original_or_fake(request, tmp_path, monkeypatch):
    """The original data set if available, otherwise a substitute with its number of rows and its mean."""
    data = DATASETS[request.param]
    if ORIGINALS:
        return data
    columns = fake_columns(data, data.rows)
    write_csv(tmp_path, data, columns)
    mean = float(columns[data.reward].mean())
    digest = hashlib.sha256((tmp_path / data.filename).read_bytes()).hexdigest()
    monkeypatch.setitem(DATASETS, data.name, dataclasses.replace(data, reward_mean=mean, sha256=digest))
    monkeypatch.setenv(datasets.DATA_VARIABLE, str(tmp_path))
    return DATASETS[data.name]


def test_full_size(original_or_fake):
    data = original_or_fake
    table = LOADERS[data.name]()
    assert table.arms.shape == (data.rows, 8)
    assert table.means.min() == 0
    assert table.optimum == 1
    torch.testing.assert_close(table.arms.mean(0), torch.zeros(8, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(table.arms.std(0, correction=0), torch.ones(8, dtype=torch.float64))


def test_the_records_say_where_data_comes_from():
    for data in DATASETS.values():
        assert data.reward in data.columns
        assert len(data.features) == 8
        for text in (data.summary, data.source, data.licence, data.fetch):
            assert text
