"""What a terminal and a notebook show of bandits, policies and records."""

from __future__ import annotations

import re
from pathlib import Path

import gpytorch
import pytest
import torch
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits.cli import app
from torchbandits.display import Shown, described, number, numbers, within
from torchbandits.errors import StateError

ARMS = torch.rand(40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def kernel() -> gpytorch.kernels.Kernel:
    return gpytorch.kernels.MaternKernel(nu=2.5).double()


def told(**given: object) -> tuple[tb.Bandit, tb.Selection, tb.Report]:
    bandit = tb.Bandit(tb.gp_bucb(kernel(), noise_std=0.1, max_batch_size=3), ARMS, **given)
    selection = bandit.ask(more=3)
    return bandit, selection, bandit.tell(selection, selection.points.sum(dim=-1))


def test_numbers_have_four_digits_and_long_tensors_end():
    assert [number(x) for x in (3.0, 0.123456, 20_000.0, float("nan"), 1e-9)] == ["3", "0.1235", "20,000", "–", "1e-09"]
    assert number(float("inf")) == "inf"
    assert numbers(torch.arange(8)) == "0, 1, 2, 3, 4, 5, …"


def test_a_rounded_number_has_no_negative_zero():
    assert within(-0.02, 2.8) == "0.0 ± 2.8"
    assert within(-0.06, 2.8) == "-0.1 ± 2.8"


def test_a_small_share_of_the_noise_is_not_called_none():
    kernel = gpytorch.kernels.RBFKernel().double()
    bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.01), torch.linspace(0, 3, 50, dtype=torch.float64).unsqueeze(-1))
    bandit.tell(torch.arange(0, 50, 7), torch.linspace(-1, 1, 8, dtype=torch.float64))
    assert "and noise is less than 1% of the variance" in str(bandit.explain())


def test_a_bandit_says_what_it_is():
    bandit, _, _ = told()
    bandit.ask()
    lines = repr(bandit).splitlines()
    assert lines[0] == "Bandit: 40 arms of 8 features"
    assert lines[1].split() == ["policy", *repr(bandit.policy).split()]
    assert lines[2].split() == ["pulls", "3"]
    assert lines[3].startswith("  open picks")
    assert int(lines[3].split()[-1]) == len(bandit.ask())
    rows, _, _ = told(generator=[torch.Generator().manual_seed(seed) for seed in range(2)])
    assert repr(rows).splitlines()[0] == "Bandit: 2 rows on 40 arms of 8 features"


def test_a_contextual_bandit_says_what_it_is():
    kernel = gpytorch.kernels.RBFKernel().double()
    bandit = tb.ContextualBandit(tb.gp_ucb(kernel, noise_std=0.1), ARMS, torch.eye(3, dtype=torch.float64)[:2])
    selection = bandit.ask(context=torch.tensor([0.0, 0, 1]))
    lines = [" ".join(line.split()) for line in repr(bandit).splitlines()]
    assert lines[0] == "ContextualBandit: 40 arms of 8 features"
    assert lines[2:] == ["contexts kept 3 of 3 features", "pulls 0", "open picks 1"]
    bandit.tell(selection, torch.zeros(1))
    assert [" ".join(line.split()) for line in repr(bandit).splitlines()][3:] == ["pulls 1", "open picks 0"]


def test_a_worker_says_what_it_is_also_after_it_is_closed(tmp_path: Path):
    policy = tb.gp_ucb(kernel(), noise_std=0.1)
    worker = tb.Worker(policy, ARMS, store=tmp_path / "run.db", name="w1", lease=60.0)
    worker.tell(worker.ask(), 1.0)
    worker.ask()
    worker.close()
    title, *lines = [" ".join(line.split()) for line in repr(worker).splitlines()]
    assert title == "Worker w1: 40 arms of 8 features"
    assert lines == [f"policy {policy!r}", "rewards learned 1", f"store {tmp_path / 'run.db'}", "lease 60 seconds"]


def test_a_selection_is_a_table_of_its_picks():
    _, selection, _ = told()
    title, header, *lines = repr(selection).splitlines()
    assert title == "Selection of 3 picks"
    assert header.split() == ["arm", "features"]
    assert [int(line.split()[0]) for line in lines] == selection.index.tolist()
    assert all(line.endswith(", …") for line in lines)  # the eight features do not fit the line
    assert repr(selection[:1]).startswith("Selection of 1 pick\n")
    longer = tb.Selection(ARMS, torch.arange(40), torch.ones(40, dtype=torch.bool))
    assert repr(longer).splitlines()[-1] == "  … and 30 more"


def test_rows_of_a_batch_are_named_and_masked_places_left_out():
    index = torch.tensor([[3, 5], [7, -1]])
    selection = tb.Selection(ARMS[index.clamp_min(0), :2], index, index >= 0)
    title, header, *lines = repr(selection).splitlines()
    assert title == "Selection of 3 picks in 2 rows"
    assert header.split() == ["row", "arm", "features"]
    assert [line.split()[:2] for line in lines] == [["0", "3"], ["0", "5"], ["1", "7"]]


def test_a_recommendation_shows_mean_and_deviation():
    bandit, _, _ = told()
    best = bandit.best(5)  # three arms were pulled
    title, header, *lines = repr(best).splitlines()
    assert title == "Recommendation of 3 arms, best first"
    assert header.split() == ["arm", "mean", "±", "deviation", "features"]
    first = lines[0].split()
    assert int(first[0]) == int(best.index[0])
    assert float(first[1]) == pytest.approx(float(best.mean[0]), rel=1e-3)
    assert float(first[2]) == pytest.approx(float(best.variance[0].sqrt()), rel=1e-3)


def test_a_report_leaves_out_what_is_unknown():
    _, _, report = told()
    shown = dict(line.strip().split("  ", 1) for line in repr(report).splitlines()[1:])
    assert shown["pulls in all"].strip() == "3"
    assert "never asked for" not in shown
    assert "certificate" in shown
    bandit = tb.Bandit(tb.uniform(), ARMS)
    unknown = bandit.tell(torch.tensor([3]), torch.ones(1, dtype=torch.float64))
    assert "certificate" not in repr(unknown)
    assert "never asked for" in repr(unknown)


def test_a_policy_shows_its_kernel_and_what_differs_from_the_defaults():
    scaled = gpytorch.kernels.ScaleKernel(kernel() + gpytorch.kernels.LinearKernel().double())
    shown = repr(tb.gp_ucb(scaled, noise_std=0.1, width=tb.widths.Constant(2.0)))
    assert "\n" not in shown
    assert "ScaleKernel(AdditiveKernel(MaternKernel(nu=2.5, lengthscale=0.6931), LinearKernel(variance=" in shown
    assert "noise_std=0.1" in shown
    assert "Constant(value=2)" in shown
    assert "refit_every" not in shown
    assert "refit_every=50" in repr(tb.gp_ucb(kernel(), refit_every=50))
    assert repr(tb.uniform(batch_size=4)) == "Uniform(batch_size=4)"
    assert described(torch.tensor([1.0, 2.5])) == "[1, 2.5]"


def test_notebooks_get_the_same_as_escaped_tables():
    bandit, selection, report = told()
    for shown in (bandit, selection, report, bandit.best(2)):
        page = shown._repr_html_()
        assert page.startswith("<div><b>")
        assert page.count("<tr>") == page.count("</tr>") > 1
        assert repr(shown).splitlines()[0].split(":")[0] in page
    odd = Shown("<title>", ("<a>",), (("<b>",),))
    assert odd.html().count("&lt;") == 3


def test_completion_offers_public_names_only():
    assert dir(tb) == sorted(tb.__all__)


def test_the_command_line_states_its_version():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"torchbandits {tb.__version__}\n")


def test_the_best_of_a_history_is_what_the_policy_recommends():
    environment = tb.environments.Table(ARMS, ARMS.sum(dim=-1), 0.1)
    history = tb.run(tb.gp_ucb(kernel(), noise_std=0.1), environment, 20, generator=torch.Generator().manual_seed(0))
    best = history.best()
    mine = history.pulls["arm"] == best["arm"]
    assert best["arm"] == history.batches["recommended"][-1]
    assert best["pulls"] == mine.sum()
    assert best["mean"] == pytest.approx(history.pulls["reward"][mine].mean())
    assert best["simple_regret"] == pytest.approx(float(environment.optimum - environment.means[best["arm"]]))
    with pytest.raises(StateError, match="recommends no arm yet"):
        tb.History().best()


def test_a_record_that_a_user_made_wrong_is_shown_all_the_same():
    ones = torch.ones(2)
    for wrong in (tb.Selection(torch.zeros(2, 3), ones, ones), tb.Selection(ones, ones[0], ones[0] > 0)):
        assert "do not fit" in repr(wrong)
    assert "do not fit" in repr(tb.Recommendation(ones, ones, ones, ones))
    none = torch.zeros(2, 0)
    assert "0 picks in 2 rows" in repr(tb.Selection(torch.zeros(2, 0, 3), none.long(), none.bool()))


def test_sets_of_arms_are_tables():
    bandit, _, _ = told()
    title, header, *lines = repr(bandit.top_k(3)).splitlines()
    assert title == "The 3 arms of highest mean"
    assert header.split("  ")[-1] == "features"
    assert [int(line.split()[0]) for line in lines] == bandit.top_k(3).index.tolist()
    sets = bandit.level_set(0.5)
    assert repr(sets).splitlines()[1:] == [
        f"  above      {int(sets.above.sum())}",
        f"  below      {int(sets.below.sum())}",
        f"  undecided  {int(sets.undecided.sum())}",
    ]
    models = {name: tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1) for name in ("yield", "purity")}
    several = tb.OutcomeBandit(tb.outcomes.pareto(models), ARMS)
    several.tell(several.ask(), {"yield": [1.0], "purity": [0.5]})
    front = several.front()
    assert repr(front).splitlines()[0].startswith("Front of ")
    assert len(repr(front).splitlines()) >= 3
    assert repr(front).splitlines()[1].split("  ")[1:] == ["arm", "mean yield", "mean purity", "on the front", "features"]
    assert "undecided" in several.pareto_set({"yield": 0.1, "purity": 0.1})._repr_html_()


def test_a_recommendation_of_several_outcomes_names_them():
    models = {name: tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1) for name in ("mean strength", "cost")}
    bandit = tb.OutcomeBandit(tb.outcomes.constrained(models, maximize="mean strength", at_most={"cost": 1.0}), ARMS)
    bandit.tell(torch.tensor([3]), {"mean strength": torch.ones(1), "cost": torch.zeros(1)})
    best = bandit.best()
    *names, _ = re.split(r"\s{2,}", repr(best).splitlines()[1].strip())
    assert names == ["arm", "mean mean strength", "± deviation mean strength", "mean cost", "± deviation cost"]
    unnamed = repr(tb.Recommendation(best.points, best.index, best.mean, best.variance))
    assert "mean 0  ± deviation 0  mean 1  ± deviation 1" in unnamed


def test_a_campaign_says_what_was_measured_and_what_is_waited_for():
    pd = pytest.importorskip("pandas")
    rows = pd.DataFrame({"id": [f"r{i}" for i in range(30)], "x": range(30)})
    campaign = tb.Campaign(rows, objective="yield")
    plate = campaign.ask(4)
    campaign.tell(plate.assign(**{"yield": plate["x"]}))
    waited = campaign.ask(2)["id"].tolist()
    lines = repr(campaign).splitlines()
    assert lines == ["Campaign for yield: 30 candidates", "  measured    4 rows", f"  waited for  2 rows: {', '.join(waited)}"]
    assert "30 candidates" in campaign._repr_html_()
    two = tb.OutcomeCampaign(rows, ["yield", "purity"])
    plate = two.ask(3)
    two.tell(plate.assign(**{"yield": 1.0, "purity": plate["x"]}))
    assert repr(two).splitlines()[:2] == ["OutcomeCampaign for yield, purity: 30 candidates", "  measured    3 rows"]
