"""The HTML page of a run: its numbers agree with the records, it is one self-contained file, and a browser shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import gpytorch
import numpy as np
import pytest
import torch
from matplotlib.image import imread
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits.cli import app
from torchbandits.experiments import load_records, run_experiment
from torchbandits.experiments.config import parse_config
from torchbandits.experiments.measures import Measure, measures
from torchbandits.experiments.page import drawn, page_of_experiment, page_of_history
from torchbandits.experiments.records import Record
from torchbandits.experiments.results import SHORT, draw_labels

RUNNER = CliRunner()
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Reader(HTMLParser):
    """A parser that collects the cells of tables and the addresses of loaded resources, and checks that tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.loaded: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self._open.append(tag)
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href")]
        assert tag not in ("script", "link", "iframe")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "td":
            self.cells.append(data)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiment")
    config = parse_config(
        {
            "name": "small <&> sharp",
            "environment": {"name": "rkhs", "options": {"dim": 1, "points_per_dim": 20, "noise_std": 0.5}},
            "kernel": {"name": "matern", "nu": 1.5, "lengthscale": 0.2},
            "horizon": 40,
            "repetitions": 2,
            "policies": [
                {"name": "uniform"},
                {"name": "batch_bkb", "label": "BBKB", "options": {"noise_std": 0.5, "norm_bound": "environment"}},
            ],
        },
        "here",
    )
    run_experiment(config, folder)
    return folder


def test_the_page_of_an_experiment_is_whole_and_right(experiment: Path):
    result = RUNNER.invoke(app, ["report", str(experiment)])
    assert result.exit_code == 0, result.output
    text = (experiment / "report.html").read_text(encoding="utf-8")
    read = Reader(text)
    assert len(read.loaded) == 7  # regret ratio, mean and simple regret, batch, dictionary, distinct arms, seconds
    assert all(address.startswith("data:image/svg+xml;base64,") for address in read.loaded)
    assert "small &lt;&amp;&gt; sharp" in text
    assert "<&>" not in text
    _, records = load_records(experiment)
    pulls = next(record for record in records if record.label == "BBKB").history.pulls
    means = {arm: pulls["reward"][pulls["arm"] == arm] for arm in np.unique(pulls["arm"])}
    residuals = np.concatenate([rewards - rewards.mean() for rewards in means.values()])
    sigma = np.sqrt((residuals**2).sum() / (len(residuals) - len(means)))
    bounds = {arm: rewards.mean() - sigma / np.sqrt(len(rewards)) for arm, rewards in means.items()}
    best = max(bounds, key=lambda arm: bounds[arm])
    expected = f"{means[best].mean():.3g} ± {sigma / np.sqrt(len(means[best])):.3g}"
    assert [str(best), str(len(means[best])), expected] == read.cells[-15:-12]


@pytest.mark.exhaustive
def test_the_page_of_a_run_with_rows_and_without_known_regret(tmp_path: Path):
    arms = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1)
    kernel = gpytorch.kernels.RBFKernel().double()
    table = tb.environments.Table(arms, torch.sin(6 * arms[:, 0]) - 3, noise_std=0.1)
    seeds = [torch.Generator().manual_seed(seed) for seed in range(2)]
    tb.run(tb.gp_bucb(kernel, noise_std=0.1), table, 25, generator=seeds).to_parquet(tmp_path / "mine")
    result = RUNNER.invoke(app, ["report", str(tmp_path / "mine"), "--output", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    read = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert read.cells[:2] == ["0", "25"]
    assert read.cells[8] == "1"
    assert len(read.loaded) == 6  # no baseline, so no ratio


def test_rewards_stand_for_a_regret_that_nobody_knows(tmp_path: Path):
    history, generator = tb.History(), np.random.default_rng(0)
    arms = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1)
    bandit = tb.Bandit(tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1), arms)
    unknown, told = torch.full((1, 1), torch.nan, dtype=torch.float64), []
    for _ in range(8):
        selection = bandit.ask()
        rewards = torch.tensor([generator.normal(-3)], dtype=torch.float64)
        told.append(rewards.item())
        report, index = bandit.tell(selection, rewards), selection.index.unsqueeze(0)
        history.record(
            index=index, rewards=rewards.unsqueeze(0), regret=unknown, report=report, recommended=bandit.best_arm().reshape(1),
            simple_regret=unknown[0], seconds=0.1,
        )  # fmt: skip
    page = page_of_history(history, "mine")
    figures = dict(drawn(page))
    [axes] = figures["mean reward so far (reward units)"].axes
    assert not any("regret" in label for label in figures)
    assert axes.get_ylim()[0] < axes.lines[0].get_ydata().min() < 0  # negative rewards are visible
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(np.mean(told))
    [axes] = figures["largest reward so far (reward units)"].axes
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(max(told))


def test_what_is_no_run_is_one_clear_line(tmp_path: Path):
    for path, words in ((tmp_path, "neither an experiment's output"), (tmp_path / "nowhere", "does not exist")):
        result = RUNNER.invoke(app, ["report", str(path)])
        assert result.exit_code == 2
        assert len(result.stderr.strip().splitlines()) == 1
        assert words in result.stderr


def test_labels_with_markup_are_text(experiment: Path):
    page = page_of_experiment(experiment)
    assert page.title == "small <&> sharp"


@pytest.mark.exhaustive
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium on the PATH (Debian's package chromium)")
def test_a_browser_shows_the_page(experiment: Path, tmp_path: Path):
    """Headless Chromium renders the page 1,280 pixels wide: nothing is wider than the window, and the page is not blank.

    The browser is started once, with a fresh profile and without background services. A page that is not loaded in time is an
    error of Chromium, so the test does not hang.
    """
    assert RUNNER.invoke(app, ["report", str(experiment), "--output", str(tmp_path / "report.html")]).exit_code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    probe = "<script>onload = () => document.title = [document.documentElement.scrollWidth, innerWidth,"
    probe += " [...document.images].filter(i => i.naturalWidth > 300).length].join(' ')</script>"
    (tmp_path / "probed.html").write_text(page.replace("</body>", f"{probe}</body>"), encoding="utf-8")
    shot = tmp_path / "page.png"
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    command += ["--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,2600"]
    command += [f"--screenshot={shot}", "--dump-dom", str(tmp_path / "probed.html")]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    title = re.search(r"<title>(\d+) (\d+) (\d+)</title>", shown.stdout)
    assert title is not None, (shown.returncode, shown.stdout[:500], shown.stderr[-2000:])
    width, window, images = map(int, title.groups())
    assert width <= window == 1280
    assert images == 7
    pixels = imread(shot)
    assert pixels.shape[:2] == (2600, 1280)
    ink = (pixels[..., :3] < 0.9).any(axis=-1)
    assert ink[:1500].mean() > 0.01
    assert not ink[:, -4:].any()  # nothing is cut off at the right


def records(labels: int, repetitions: int, pulls: int) -> list[Record]:
    """Records with random numbers, `repetitions` of each label."""
    found = []
    one = torch.ones(1, dtype=torch.float64)
    for place in range(labels):
        for seed in range(repetitions):
            history, generator = tb.History(), torch.Generator().manual_seed(1_000 * place + seed)
            report = tb.Report(*[one] * 8)
            for _ in range(pulls):
                regret = torch.rand(1, 1, generator=generator, dtype=torch.float64)
                history.record(
                    index=torch.zeros(1, 1, dtype=torch.int64), rewards=-regret, regret=regret, report=report,
                    recommended=torch.zeros(1, dtype=torch.int64), simple_regret=regret[0], seconds=0.1,
                )  # fmt: skip
            found.append(Record(place, f"policy {place}", seed, history))
    return found


def test_a_panel_has_at_most_five_lines_and_short_runs_have_linear_axes():
    mine = records(labels=7, repetitions=1, pulls=20)
    figure = draw_labels("many", [f"policy {place}" for place in range(7)], mine, measures({})["mean_regret"])
    assert [len(axes.lines) for axes in figure.axes] == [5, 2]
    assert [len(axes.get_legend().get_texts()) for axes in figure.axes] == [5, 2]
    assert {axes.get_xscale() for axes in figure.axes} == {"linear"}
    long = records(labels=1, repetitions=1, pulls=SHORT + 1)
    assert draw_labels("long", ["policy 0"], long, measures({})["mean_regret"]).axes[0].get_xscale() == "log"


def test_panels_share_an_axis_that_holds_the_lines_of_all():
    labels = [f"policy {place}" for place in range(6)]
    curve = Measure("seconds", lambda record, t: 10.0 ** (record.place == 5) * t, "log")  # the slowest is in the second panel
    figure = draw_labels("slow", labels, records(labels=6, repetitions=1, pulls=20), curve)
    assert [axes.get_ylim()[0] for axes in figure.axes] == [0.0, 0.0]
    assert figure.axes[1].get_ylim()[1] >= 200.0


@pytest.mark.parametrize(("repetitions", "bands", "lines"), [(1, 0, 1), (3, 0, 4), (10, 1, 1)])
def test_an_interval_is_shaded_from_ten_repetitions_on(repetitions: int, bands: int, lines: int):
    mine = records(labels=1, repetitions=repetitions, pulls=10)
    [axes] = draw_labels("few", ["policy 0"], mine, measures({})["mean_regret"]).axes
    assert (len(axes.collections), len(axes.lines)) == (bands, lines)


@pytest.mark.exhaustive
def test_a_page_fits_a_phone_and_a_sheet_of_paper(experiment: Path):
    RUNNER.invoke(app, ["report", str(experiment)])
    text = (experiment / "report.html").read_text(encoding="utf-8")
    widths = re.findall(r"minmax\(([^)]*\)?),", text)
    assert widths
    assert all(width.startswith("min(100%") for width in widths), "a grid wider than the window"
    assert "@media print" in text
