"""Ax end to end: trials, pending trials, discrete spaces, fits, cross validation, storage."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import subprocess
import sys
from pathlib import Path

import gpytorch
import pytest
import torch
from botorch.cross_validation import efficient_loo_cv
from botorch.exceptions import UnsupportedError as BoTorchUnsupportedError
from botorch.models import ModelListGP
from botorch.models.kernels import CategoricalKernel
from botorch.models.transforms import Normalize
from botorch.utils.datasets import SupervisedDataset

pytest.importorskip("ax")

from ax.adapter.cross_validation import cross_validate
from ax.adapter.registry import Generators
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.exceptions.core import SearchSpaceExhausted
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular import acquisition as ax_acquisition
from ax.generators.torch.botorch_modular.surrogate import ModelConfig, SurrogateSpec
from ax.storage import botorch_modular_registry as registry

import torchbandits as tb
from torchbandits.botorch import BanditModel, PolicyAcquisition, ax_generation_strategy, ax_generator_spec, register_with_ax
from torchbandits.botorch import ax as ours
from torchbandits.botorch.inputs import construct_inputs
from torchbandits.errors import ArgumentError, UnsupportedError

TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorials" / "ax_loop.py"
BOX = [RangeParameterConfig("x", (-1.0, 2.0), "float"), RangeParameterConfig("y", (0.0, 3.0), "float")]
GRID = [RangeParameterConfig("x", (0, 8), "int"), ChoiceParameterConfig("y", [0.0, 0.5, 1.0, 2.0], "float", is_ordered=True)]


@pytest.fixture(autouse=True)
def _constructor_as_it_is_shipped(monkeypatch):
    """Ax reads the names of the model's arguments without looking through the wrapper that checks types in tests."""
    monkeypatch.setattr(BanditModel, "__init__", inspect.unwrap(BanditModel.__init__))


def bowl(parameters: dict) -> float:
    return sum((float(v) - 1) ** 2 for v in parameters.values())


def client_on(parameters, strategy, objective="-loss", constraints=(), thresholds=()) -> Client:
    client = Client(random_seed=0)
    client.configure_experiment(name="test", parameters=parameters, parameter_constraints=constraints)
    client.configure_optimization(objective=objective, outcome_constraints=thresholds)
    client.set_generation_strategy(strategy)
    return client


def play(client: Client, rounds: int, reward, together: int = 1, metric: str = "loss") -> list[dict]:
    """Run rounds of `together` trials and complete each of them. Returns the parameters in order."""
    played = []
    for _ in range(rounds):
        for index, parameters in client.get_next_trials(max_trials=together).items():
            client.complete_trial(index, raw_data={metric: reward(parameters)})
            played.append(parameters)
    return played


def attach(client: Client, count: int, reward) -> list[dict]:
    """Attach `count` random points of `BOX` with rewards, then run one trial, for which Ax fits its model. Returns the
    points."""
    draws = torch.rand(count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = [{"x": -1 + 3 * x, "y": 3 * y} for x, y in draws.tolist()]
    for parameters in points:
        client.complete_trial(client.attach_trial(parameters), raw_data={"loss": reward(parameters)})
    client.get_next_trials(max_trials=1)
    return points


def generators_of(client: Client) -> list[str]:
    return [trial.generator_run._generation_node_name for trial in client._experiment.trials.values()]


def adapter_of(client: Client):
    return client._generation_strategy.nodes_by_name["torchbandits"].generator_spec_to_gen_from.fitted_adapter


def surrogate_of(client: Client):
    return adapter_of(client).generator.surrogate


# ---------------------------------------------------------------- registration


def test_registering_twice_is_registering_once():
    register_with_ax()
    before = [dict(table) for table in registry.CLASS_TO_REGISTRY.values()]
    register_with_ax()
    assert [dict(table) for table in registry.CLASS_TO_REGISTRY.values()] == before
    assert registry.MODEL_REGISTRY[BanditModel] == "BanditModel"
    assert registry.REVERSE_ACQUISITION_FUNCTION_REGISTRY["PolicyAcquisition"] is PolicyAcquisition


@pytest.mark.exhaustive
def test_the_package_does_not_import_ax():
    code = "import sys, torchbandits.botorch; sys.exit('ax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("call", [register_with_ax, ax_generator_spec, ax_generation_strategy])
def test_without_ax_the_error_names_the_extra(monkeypatch, call):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="ax.storage")

    monkeypatch.setattr(ours.importlib, "import_module", missing)
    with pytest.raises(UnsupportedError, match=r'pip install "torchbandits\[ax\]"'):
        call()


def test_another_missing_module_is_not_blamed_on_ax(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'sympy'", name="sympy")

    monkeypatch.setattr(ours.importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="sympy"):
        register_with_ax()


def test_arguments_that_do_not_fit_are_refused():
    made = tb.gp_ucb(gpytorch.kernels.RBFKernel())
    for options in ({"policy_options": {"delta": 0.1}}, {"beta": 2.0}):
        with pytest.raises(ArgumentError, match="policy_options and beta"):
            ax_generator_spec(made, **options)
    with pytest.raises(ArgumentError, match="num_initial"):
        ax_generation_strategy(num_initial=0)
    for policy in ("gp_ucb", made):  # the width needs the number of arms: refused now, not after the first trials
        with pytest.raises(ArgumentError, match=r"Srinivas counts the arms.*beta=4"):
            ax_generation_strategy(policy)
    assert ax_generation_strategy("gp_ucb", beta=4.0) is not None
    assert ax_generation_strategy("gp_ucb", policy_options={"acquisition": "ei"}) is not None


def test_a_named_policy_without_beta_has_its_own_width_and_the_documentation_begins_with_that():
    for call in (ax_generator_spec, ax_generation_strategy):
        assert "beta=4.0" in (call.__doc__ or "").partition("Args:")[0], call.__name__
    model = BanditModel(torch.rand(9, 2).double(), torch.rand(9, 1).double())
    widths = {
        arguments: construct_inputs(model, *arguments)["policy"].confidence
        for arguments in ((), ("gp_bucb",), ("gp_bucb", None, 4.0))
    }
    assert widths[()] == widths["gp_bucb", None, 4.0] == tb.widths.Constant(2.0)
    assert type(widths[("gp_bucb",)]) is type(tb.gp_bucb(model.covar_module).confidence)


# ---------------------------------------------------------------- what Ax and BoTorch read of the model


def data(count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    points = torch.rand(count, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return points, torch.sin(3 * points[:, :1]) + points[:, 1:]


def test_ax_finds_the_names_of_the_models_arguments():
    names = inspect.getfullargspec(BanditModel).args
    assert {"covar_module", "input_transform", "outcome_transform"} <= set(names)


def test_a_kernel_may_go_by_either_name_and_not_by_both():
    kernel = gpytorch.kernels.MaternKernel()
    for name in ("kernel", "covar_module"):
        assert isinstance(BanditModel(*data(), **{name: kernel}).covar_module, gpytorch.kernels.MaternKernel)
    with pytest.raises(ArgumentError, match="two names of the same argument"):
        BanditModel(*data(), kernel=kernel, covar_module=kernel)


def test_codes_of_categories_are_not_taken_for_numbers():
    dataset = SupervisedDataset(*data(), feature_names=["a", "b"], outcome_names=["y"])
    with pytest.raises(ArgumentError, match="categorical"):
        BanditModel.construct_inputs(dataset, categorical_features=[1])
    kernel = CategoricalKernel(active_dims=[1]) * gpytorch.kernels.RBFKernel(active_dims=[0])
    options = BanditModel.construct_inputs(dataset, categorical_features=[1], kernel=kernel)
    assert isinstance(BanditModel(**options).covar_module, gpytorch.kernels.ProductKernel)


def test_botorchs_leave_one_out_formula_is_right_or_refused():
    X, Y = data()
    kernel = gpytorch.kernels.RBFKernel().double()
    for shared in ({"noise_std": 0.1}, {"train_Yvar": torch.linspace(0.01, 0.1, len(X)).double().unsqueeze(-1)}):
        found = efficient_loo_cv(BanditModel(X, Y, kernel=kernel, **shared), observation_noise=False).posterior
        for i in range(len(X)):
            keep = torch.arange(len(X)) != i
            fold = {name: value if name == "noise_std" else value[keep] for name, value in shared.items()}
            left = BanditModel(X[keep], Y[keep], kernel=kernel, **fold).posterior(X[i : i + 1])
            torch.testing.assert_close(found.mean[i].flatten(), left.mean.flatten())
            torch.testing.assert_close(found.variance[i].flatten(), left.variance.flatten())
    for options in (
        {"input_transform": Normalize(2)},
        {"dictionary": X[:4]},
        {"regularization": 0.1},
        {"prior_mean": "estimate"},
    ):
        with pytest.raises(BoTorchUnsupportedError, match="exact posterior"):
            efficient_loo_cv(BanditModel(X, Y, **options))


# ---------------------------------------------------------------- continuous spaces


@pytest.mark.exhaustive
@pytest.mark.parametrize(("objective", "sign"), [("-loss", 1.0), ("loss", -1.0)], ids=["minimise", "maximise"])
def test_a_box_is_searched_one_trial_at_a_time(objective, sign):
    client = client_on(BOX, ax_generation_strategy(beta=4.0, seed=0), objective)
    played = play(client, 14, lambda p: sign * bowl(p))
    assert generators_of(client) == ["Sobol"] * 5 + ["torchbandits"] * 9
    assert min(map(bowl, played[5:])) < 0.05 < min(map(bowl, played[:5]))


@pytest.mark.exhaustive
def test_three_trials_at_a_time_know_of_each_other():
    client = client_on(BOX, ax_generation_strategy("gp_bucb", seed=0))
    play(client, 6, bowl)
    pending = client.get_next_trials(max_trials=3)
    assert generators_of(client)[-3:] == ["torchbandits"] * 3
    # The last of the three was chosen with the two before it pending.
    acquisition = adapter_of(client).generator._acquisition.acqf
    points = torch.tensor([[p["x"], p["y"]] for p in pending.values()], dtype=torch.float64)
    torch.testing.assert_close(acquisition.X_pending, points[:2])
    assert torch.pdist(points).min() > 1e-3
    for index, parameters in list(pending.items())[1:]:  # the first stays pending
        client.complete_trial(index, raw_data={"loss": bowl(parameters)})
    client.get_next_trials(max_trials=1)
    torch.testing.assert_close(adapter_of(client).generator._acquisition.acqf.X_pending, points[:1])


@pytest.mark.exhaustive
def test_one_batch_of_three_is_the_same_as_three_pending_trials():
    """Compared on a grid, where no optimiser's randomness enters."""
    picks = []
    for together in (False, True):
        client = client_on(GRID, ax_generation_strategy("gp_bucb", seed=0))
        play(client, 6, bowl)
        if together:
            [run] = client._generation_strategy.gen(client._experiment, n=3, num_trials=1)[0]
            picks.append([arm.parameters for arm, weight in run.arm_weights.items() for _ in range(round(weight))])
        else:
            picks.append(list(client.get_next_trials(max_trials=3).values()))
    assert sorted(map(str, picks[0])) == sorted(map(str, picks[1]))


# ---------------------------------------------------------------- discrete spaces


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("objective", "sign"), [("-loss", 1.0), ("loss", -1.0)], ids=["minimise", "maximise"])
def test_a_grid_is_scored_whole(objective, sign):
    client = client_on(GRID, ax_generation_strategy(beta=4.0, seed=0), objective)
    played = play(client, 12, lambda p: sign * bowl(p))
    acquisition = adapter_of(client).generator._acquisition.acqf
    arms = list(itertools.product(range(9), [0.0, 0.5, 1.0, 2.0]))
    values = torch.stack([acquisition(torch.tensor([[arm]], dtype=torch.float64))[0] for arm in arms])
    assert (played[-1]["x"], played[-1]["y"]) == arms[int(values.argmax())]
    assert min(map(bowl, played)) <= 0.25


@pytest.mark.exhaustive
def test_choices_without_order_are_scored_whole(tmp_path):
    """Ax gives each of their values a column of its own, which it takes for a range."""
    solvents = ["DMF", "EtOH", "water"]
    parameters = [
        ChoiceParameterConfig("solvent", solvents, "str", is_ordered=False),
        *GRID,
        ChoiceParameterConfig("base", ["KOH", "NaH"], "str", is_ordered=False),
    ]
    client = client_on(parameters, ax_generation_strategy(beta=4.0, seed=0))

    def loss(p: dict) -> float:
        return bowl({"x": p["x"], "y": p["y"]}) + (p["solvent"] != "EtOH") + 0.5 * (p["base"] == "NaH")

    played = play(client, 8, loss)
    acquisition = adapter_of(client).generator._acquisition.acqf
    names = adapter_of(client).generator.search_space_digest.feature_names
    combinations = list(itertools.product(solvents, range(9), [0.0, 0.5, 1.0, 2.0], ["KOH", "NaH"]))
    rows = []
    for combination in combinations:
        at = dict(zip(("solvent", "x", "y", "base"), combination, strict=True))
        at["base"] = ["KOH", "NaH"].index(at["base"])  # two values have one column
        parts = [name.partition("_OH_PARAM_") for name in names]
        rows.append([float(solvents[int(i)] == at[p]) if i else float(at[p]) for p, _, i in parts])
    values = acquisition(torch.tensor(rows, dtype=torch.float64).unsqueeze(-2))
    assert tuple(played[-1][name] for name in ("solvent", "x", "y", "base")) == combinations[int(values.argmax())]
    client.save_to_json_file(str(tmp_path / "client.json"))
    loaded = Client.load_from_json_file(str(tmp_path / "client.json"))
    assert play(loaded, 2, loss) == play(client, 2, loss)


def test_noisy_arms_are_pulled_again_and_every_pull_counts():
    few = [ChoiceParameterConfig("x", [0.0, 1.0, 2.0], "float", is_ordered=True)]
    noise = torch.Generator().manual_seed(0)
    client = client_on(few, ax_generation_strategy(beta=4.0, num_initial=3, seed=0))
    played = play(client, 12, lambda p: bowl(p) + 0.3 * float(torch.randn((), generator=noise)))
    assert len({p["x"] for p in played}) == 3
    assert len(played) == 12
    client.get_next_trials(max_trials=1)
    assert len(surrogate_of(client).training_data[0].Y) == 12
    again = client.get_next_trials(max_trials=3)  # with a pending trial on one of them
    assert len(again) == 3
    assert set(generators_of(client)[3:]) == {"torchbandits"}


@pytest.mark.exhaustive
def test_an_arm_whose_trial_was_abandoned_is_not_tried_again_while_there_are_others():
    client = client_on(GRID, ax_generation_strategy("gp_bucb", beta=4.0, num_initial=3, seed=0), "loss")
    lost = []
    for _ in range(16):
        ((index, parameters),) = client.get_next_trials(max_trials=1).items()
        if parameters["x"] > 4:  # the loss, which is maximised, grows with x
            client.mark_trial_abandoned(index)
            lost.append(tuple(parameters.values()))
        else:
            client.complete_trial(index, raw_data={"loss": bowl(parameters) + parameters["x"]})
    assert len(lost) > 3
    assert len(set(lost)) == len(lost)
    few = [ChoiceParameterConfig("x", [0.0, 1.0, 2.0], "float", is_ordered=True)]
    client = client_on(few, ax_generation_strategy(beta=4.0, num_initial=1, seed=0))
    play(client, 1, bowl)
    for _ in range(3):
        (index,) = client.get_next_trials(max_trials=1)
        client.mark_trial_abandoned(index)
    assert len(client.get_next_trials(max_trials=1)) == 1  # none is left, or the one that was observed


def test_axs_own_optimisers_never_pull_an_arm_twice():
    """Ax's own optimisers skip arms that were pulled, which the documentation describes and `every_arm` avoids."""
    few = [ChoiceParameterConfig("x", [0.0, 1.0, 2.0], "float", is_ordered=True)]
    client = client_on(few, ax_generation_strategy(beta=4.0, num_initial=2, seed=0, every_arm=False))
    played = play(client, 3, bowl)
    assert len({p["x"] for p in played}) == 3
    with pytest.raises(SearchSpaceExhausted):
        client.get_next_trials(max_trials=1)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("max_arms", [20_000, 14_640])
def test_above_ten_thousand_arms_axs_search_is_local_and_ours_is_not(monkeypatch, max_arms):
    many = [RangeParameterConfig(name, (0, 10), "int") for name in "abcd"]  # 11⁴ = 14,641 combinations
    searches = []
    local = ax_acquisition.optimize_acqf_discrete_local_search

    def spy(*arguments, **options):
        searches.append(options["q"])
        return local(*arguments, **options)

    monkeypatch.setattr(ax_acquisition, "optimize_acqf_discrete_local_search", spy)
    client = client_on(many, ax_generation_strategy(beta=4.0, seed=0, max_arms=max_arms))
    play(client, 6, bowl)
    assert searches == ([] if max_arms >= 11**4 else [1])
    if max_arms >= 11**4:
        [picked] = client.get_next_trials(max_trials=1).values()
        acquisition = adapter_of(client).generator._acquisition.acqf
        arms = torch.cartesian_prod(*[torch.arange(11.0, dtype=torch.float64)] * 4)
        best = arms[int(acquisition(arms.unsqueeze(-2)).argmax())]
        assert best.tolist() == [picked[name] for name in "abcd"]


@pytest.mark.exhaustive
def test_parameter_constraints_hold_on_a_grid():
    parameters = [RangeParameterConfig(name, (0, 6), "int") for name in "ab"]
    client = client_on(parameters, ax_generation_strategy(beta=4.0, seed=0), "gain", constraints=["a + b <= 3"])
    played = play(client, 10, lambda p: p["a"] + 0.5 * p["b"], metric="gain")
    assert all(p["a"] + p["b"] <= 3 for p in played)
    assert {"a": 3, "b": 0} in played


def test_fixed_parameters_stay_fixed_on_a_grid():
    client = client_on(GRID, ax_generation_strategy(seed=0))
    play(client, 5, bowl)
    [picked] = client.get_next_trials(max_trials=1, fixed_parameters={"x": 7}).values()
    assert picked["x"] == 7
    acquisition = adapter_of(client).generator._acquisition.acqf
    values = [acquisition(torch.tensor([[[7.0, y]]], dtype=torch.float64)) for y in (0.0, 0.5, 1.0, 2.0)]
    assert picked["y"] == [0.0, 0.5, 1.0, 2.0][int(torch.cat(values).argmax())]


@pytest.mark.exhaustive
def test_mixed_spaces_and_unordered_choices():
    mixed = [BOX[0], ChoiceParameterConfig("kind", ["low", "middle", "high"], "str", is_ordered=False)]
    client = client_on(mixed, ax_generation_strategy("gp_bucb", seed=0))
    penalty = {"low": 0.0, "middle": 1.0, "high": 2.0}
    played = play(client, 4, lambda p: (p["x"] - 1) ** 2 + penalty[p["kind"]], together=2)
    assert set(generators_of(client)[6:]) == {"torchbandits"}
    assert len(played) == 8


@pytest.mark.exhaustive
@pytest.mark.parametrize("every_arm", [True, False])
def test_a_batch_in_a_mixed_space(every_arm):
    knob, whole = RangeParameterConfig("x", (0.0, 1.0), "float"), RangeParameterConfig("n", (0, 10), "int")
    client = client_on([knob, whole], ax_generation_strategy("gp_bucb", beta=4.0, seed=0, every_arm=every_arm))
    play(client, 6, lambda p: (p["x"] - 0.5) ** 2 + (p["n"] - 4) ** 2 / 20)
    [run] = client._generation_strategy.gen(client._experiment, n=3, num_trials=1)[0]
    assert round(sum(run.arm_weights.values())) == 3
    assert len(run.arms) > 1  # the first pick is pending for the second
    assert adapter_of(client).generator._acquisition.acqf.X_pending is None


# ---------------------------------------------------------------- models


def custom_strategy(**configuration) -> GenerationStrategy:
    """A generation strategy written with Ax alone."""
    register_with_ax()
    spec = GeneratorSpec(
        Generators.BOTORCH_MODULAR,
        generator_kwargs={
            "surrogate_spec": SurrogateSpec(model_configs=[ModelConfig(botorch_model_class=BanditModel, **configuration)]),
            "botorch_acqf_class": PolicyAcquisition,
        },
    )
    initial = ax_generation_strategy(seed=0)._nodes[0]
    return GenerationStrategy(name="by hand", nodes=[initial, GenerationNode("torchbandits", [spec])])


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")  # warnings of fits to five rewards
@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"model_options": {"dictionary": "leverage"}},
        {"model_options": {"kernel": gpytorch.kernels.MaternKernel(nu=1.5)}},
        {"covar_module_class": gpytorch.kernels.RBFKernel, "covar_module_options": {"ard_num_dims": 2}},
    ],
    ids=["defaults", "dictionary", "kernel", "covar_module_class"],
)
def test_the_models_options_travel_through_axs_own_words(configuration):
    client = client_on(BOX, custom_strategy(**configuration))
    play(client, 7, bowl)
    model = surrogate_of(client).model
    assert isinstance(model, BanditModel)
    assert set(generators_of(client)[5:]) == {"torchbandits"}
    kernel = model.covar_module
    if "kernel" in configuration.get("model_options", {}):
        assert isinstance(kernel, gpytorch.kernels.MaternKernel)
        assert kernel.nu == 1.5
        assert kernel is not configuration["model_options"]["kernel"]  # the model's own copy
    if "covar_module_class" in configuration:
        assert isinstance(kernel, gpytorch.kernels.RBFKernel)
        assert kernel.ard_num_dims == 2


def test_ax_fits_the_model(monkeypatch):
    fits = []
    fit = BanditModel.custom_fit

    def spy(self, *arguments, **options):
        before = {name: value.clone() for name, value in self.named_parameters()}
        fit(self, *arguments, **options)
        fits.append(any(not torch.equal(value, before[name]) for name, value in self.named_parameters()))

    monkeypatch.setattr(BanditModel, "custom_fit", spy)
    client = client_on(BOX, ax_generation_strategy(seed=0))
    play(client, 8, bowl)
    assert len(fits) == 3
    assert all(fits)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{}, {"dictionary": "leverage"}], ids=["exact", "dictionary"])
def test_cross_validation_loads_the_whole_models_parameters_into_folds(options):
    client = client_on(BOX, ax_generation_strategy(seed=0, model_options=options))
    attach(client, 16, bowl)
    adapter = adapter_of(client)
    results = cross_validate(adapter)
    observed = torch.tensor([result.observed.data.means[0] for result in results])
    predicted = torch.tensor([result.predicted.means[0] for result in results])
    spread = torch.tensor([result.predicted.covariance[0, 0] for result in results])
    assert len(results) == len(adapter.get_training_data().arm_data)
    assert (spread > 0).all()
    assert torch.corrcoef(torch.stack([observed, predicted]))[0, 1] > 0.9


@pytest.mark.exhaustive
def test_ax_chooses_between_models_by_cross_validation():
    register_with_ax()
    configs = [
        ModelConfig(botorch_model_class=BanditModel, model_options={"kernel": kernel}, name=name)
        for name, kernel in (("smooth", None), ("rough", gpytorch.kernels.MaternKernel(nu=0.5)))
    ]
    kwargs = {"surrogate_spec": SurrogateSpec(model_configs=configs), "botorch_acqf_class": PolicyAcquisition}
    node = GenerationNode("torchbandits", [GeneratorSpec(Generators.BOTORCH_MODULAR, generator_kwargs=kwargs)])
    client = client_on(BOX, GenerationStrategy(name="choose", nodes=[ax_generation_strategy(seed=0)._nodes[0], node]))
    attach(client, 14, bowl)
    surrogate = surrogate_of(client)
    assert set(surrogate._model_name_to_eval["loss"]) == {"smooth", "rough"}
    assert surrogate.metric_to_best_model_config["loss"].name == "smooth"


@pytest.mark.exhaustive
def test_predictions_are_in_the_metrics_units_at_told_and_at_new_points():
    client = client_on(BOX, ax_generation_strategy(seed=0))
    near = [p for p in attach(client, 30, lambda p: 100 + 10 * bowl(p)) if bowl(p) < 1]  # Ax clips bad outcomes before it fits
    told = client.predict(near)
    for parameters, prediction in zip(near, told, strict=True):
        mean, spread = prediction["loss"]
        assert abs(mean - (100 + 10 * bowl(parameters))) < 2
        assert 0 < spread < 10
    [new] = client.predict([{"x": 1.0, "y": 1.1}])
    assert abs(new["loss"][0] - 100.1) < 10


@pytest.mark.exhaustive
def test_known_standard_errors_reach_the_model():
    client = client_on(BOX, ax_generation_strategy(seed=0))
    play(client, 8, lambda p: (bowl(p), 0.1))
    model = surrogate_of(client).model
    assert isinstance(model.likelihood, gpytorch.likelihoods.FixedNoiseGaussianLikelihood)
    assert set(generators_of(client)[5:]) == {"torchbandits"}


@pytest.mark.exhaustive
def test_standard_errors_of_zero_are_no_noise():
    client = client_on(BOX, ax_generation_strategy(seed=0))
    play(client, 8, lambda p: (bowl(p), 0.0))
    assert set(generators_of(client)[5:]) == {"torchbandits"}
    told = client._experiment.trials[0].arm.parameters
    ((mean, error),) = (values["loss"] for values in client.predict([told]))
    assert (mean, error) == (pytest.approx(bowl(told), abs=0.02), pytest.approx(0.0, abs=0.02))


@pytest.mark.exhaustive
def test_two_objectives_become_a_list_of_models():
    """Ax then chooses its own acquisition function: ours are for one objective."""
    register_with_ax()
    spec = GeneratorSpec(
        Generators.BOTORCH_MODULAR,
        generator_kwargs={"surrogate_spec": SurrogateSpec(model_configs=[ModelConfig(botorch_model_class=BanditModel)])},
    )
    initial = ax_generation_strategy(seed=0)._nodes[0]
    strategy = GenerationStrategy(name="two", nodes=[initial, GenerationNode("torchbandits", [spec])])
    client = client_on(BOX, strategy, "-loss, -cost", thresholds=["loss <= 4", "cost <= 3"])
    for count in (5, 1):
        for index, parameters in client.get_next_trials(max_trials=count).items():
            client.complete_trial(index, raw_data={"loss": bowl(parameters), "cost": parameters["x"] ** 2})
    model = surrogate_of(client).model
    assert isinstance(model, ModelListGP)
    assert all(isinstance(m, BanditModel) for m in model.models)
    assert generators_of(client)[5:] == ["torchbandits"]
    assert client.get_pareto_frontier()


@pytest.mark.exhaustive
def test_metrics_that_are_only_tracked_are_left_out():
    client = client_on(BOX, ax_generation_strategy(seed=0))
    client.configure_tracking_metrics(["heat"])
    for _ in range(7):
        for index, parameters in client.get_next_trials(max_trials=1).items():
            client.complete_trial(index, raw_data={"loss": bowl(parameters), "heat": parameters["x"]})
    assert isinstance(adapter_of(client).generator._acquisition.acqf.model, BanditModel)


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("gp_bucbb", {}, "Did you mean 'gp_bucb'"),
        ("uniform", {}, "does not score points"),
        ("auto", {}, "leave the policy out, which is GP-UCB on the fitted model"),
        (tb.auto(), {}, "leave the policy out, which is GP-UCB on the fitted model"),
        ("gp_bucb", {"policy_options": {"detla": 0.1}}, "Did you mean 'delta'"),
        ("gp_bucb", {"beta": -1.0}, "beta must be"),
        ("gp_bucb", {"beta": "4"}, "beta must be a finite number ≥ 0, got '4'"),
        ("gp_bucb", {"width": 2.0}, "takes no argument 'width': it is an option of the policy: policy_options="),
        ("gp_bucb", {"kernel": None}, "takes no argument 'kernel': it is an option of the model: model_options="),
        (None, {"model_options": {"dictionairy": "all"}}, "no option 'dictionairy'.*Did you mean 'dictionary'"),
        ("lin_ucb", {"beta": 4.0}, r"the policy's kernel is LinearKernel\(\), and that of the model in Ax RBFKernel\(\)"),
        (
            tb.gp_ucb(gpytorch.kernels.MaternKernel(), noise_std=0.1, width=tb.widths.Constant(2.0)),
            {},
            r"is MaternKernel\(nu=2.5\)",
        ),
    ],
)
@pytest.mark.usefixtures("annotations_not_enforced")
def test_what_cannot_work_says_why_before_any_trial(policy, options, message):
    with pytest.raises((ArgumentError, UnsupportedError), match=message):
        ax_generation_strategy(policy, **options)


@pytest.mark.exhaustive
def test_a_policy_whose_kernel_is_that_of_the_model_is_taken():
    linear = {"kernel": gpytorch.kernels.LinearKernel()}
    played = play(client_on(BOX, ax_generation_strategy("lin_ucb", beta=4.0, seed=0, model_options=linear)), 7, bowl)
    assert len(played) == 7
    matern = tb.gp_ucb(gpytorch.kernels.MaternKernel(), noise_std=0.1, width=tb.widths.Constant(2.0))
    assert ax_generator_spec(matern, model_config_options={"covar_module_class": gpytorch.kernels.MaternKernel})


@pytest.mark.usefixtures("annotations_not_enforced")
def test_outcome_constraints_are_refused_not_ignored():
    client = client_on(BOX, ax_generation_strategy(seed=0), thresholds=["heat <= 1"])
    for _ in range(5):
        for index, parameters in client.get_next_trials(max_trials=1).items():
            client.complete_trial(index, raw_data={"loss": bowl(parameters), "heat": parameters["x"]})
    with pytest.raises((ArgumentError, UnsupportedError), match="outcome constraints"):
        client.get_next_trials(max_trials=1)


# ---------------------------------------------------------------- storage


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("policy", "configuration"),
    [(None, {}), ("gp_bucb", {"covar_module_class": gpytorch.kernels.RBFKernel, "covar_module_options": {"ard_num_dims": 2}})],
)
def test_saved_and_loaded_it_goes_on_alike(tmp_path, policy, configuration):
    options = {"model_options": {"dictionary": "leverage"}, "model_config_options": configuration}
    if policy is not None:
        options["policy_options"] = {"delta": 0.01}
    client = client_on(GRID, ax_generation_strategy(policy, seed=0, **options))
    play(client, 4, bowl, together=2)
    client.get_next_trials(max_trials=1)  # saved with a trial pending
    client.save_to_json_file(str(tmp_path / "client.json"))
    loaded = Client.load_from_json_file(str(tmp_path / "client.json"))
    assert play(loaded, 3, bowl) == play(client, 3, bowl)
    assert set(generators_of(loaded)[6:]) == {"torchbandits"}


def test_the_tutorial_runs(capsys):
    spec = importlib.util.spec_from_file_location("ax_loop", TUTORIAL)
    tutorial = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tutorial)
    tutorial.main(rounds=3)
    told = capsys.readouterr().out
    assert "9 trials of 155 arms" in told
    assert "after a restart" in told
