"""The contract of an environment, as tests."""

from __future__ import annotations

import math
import pickle
import random
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchbandits.environments import Environment
from torchbandits.policies import uniform
from torchbandits.running import run
from torchbandits.testing.play import generator, global_generators_seeded


class EnvironmentContract(ABC):
    """Laws of an `Environment`: shapes, regret, rewards that depend on the given generators only, and tasks for workers.

    Return the environment from `environment`. Its arms may be `A x d` or `batch_shape x A x d`, two or more of them. Expected
    rewards are known, or NaN for every arm.

    Attributes:
        samples: Draws of one arm, and of many arms, in `test_rewards_average_to_their_means`, and ten times the tasks of a row
            in `test_tasks_are_rewards_of_their_arms`; 0 leaves these averages out, for environments where a pull takes long.
    """

    samples: int = 2000

    @abstractmethod
    def environment(self) -> Environment:
        """The environment under test, a new one at each call, with the same rewards."""

    # ------------------------------------------------------------------ what it says of itself

    def test_means_are_one_number_per_arm(self) -> None:
        """Expected rewards are finite, or all NaN where they are unknown."""
        environment = self.environment()
        shape, means = environment.arms.shape[:-1], environment.means
        assert means.shape == shape, f"means must be one per arm, {tuple(shape)}, got {tuple(means.shape)}"
        assert means.is_floating_point(), f"means must be floating point, got {means.dtype}"
        assert means.isfinite().all() or means.isnan().all(), "means must be finite, or NaN for every arm"
        assert torch.equal(means.nan_to_num(), environment.means.nan_to_num()), "means must be the same at each look"

    def test_the_optimum_is_the_largest_mean(self) -> None:
        """The optimum is one number per row of arms."""
        environment = self.environment()
        expected = environment.means.amax(dim=-1)
        got = environment.optimum
        assert got.shape == expected.shape, f"the optimum must have shape {tuple(expected.shape)}, got {tuple(got.shape)}"
        assert torch.equal(got.nan_to_num(), expected.nan_to_num()), f"the optimum must be {expected}, got {got}"

    def test_name_and_noise_are_given(self) -> None:
        """The name is a text, and the standard deviation is not negative, or NaN."""
        environment = self.environment()
        assert isinstance(environment.name, str), f"name must be a text, got {environment.name!r}"
        assert environment.name, "name must not be empty"
        noise = environment.noise_std
        assert isinstance(noise, float | int), f"noise_std must be a number, got {noise!r}"
        assert noise >= 0 or math.isnan(noise), f"noise_std must be ≥ 0, or NaN where unknown, got {noise}"

    def test_costs_are_positive(self) -> None:
        """An environment with costs has one per arm."""
        environment = self.environment()
        if environment.costs is not None:
            shape = environment.arms.shape[:-1]
            got = environment.costs.shape
            assert got in (shape, shape[-1:]), f"costs must be {tuple(shape)} or {tuple(shape[-1:])}, got {tuple(got)}"
            good = environment.costs.isfinite() & (environment.costs > 0)
            assert good.all(), f"costs must be finite and > 0, got {environment.costs[~good][:3].tolist()}"

    def test_neighbors_are_arms(self) -> None:
        """An environment with neighbors has integers `A x k`, −1 where padded."""
        environment = self.environment()
        if environment.neighbors is not None:
            near, A = environment.neighbors, environment.arms.shape[-2]
            assert near.ndim == 2, f"neighbors must be {A} x k, got {tuple(near.shape)}"
            assert len(near) == A, f"neighbors must be {A} x k, got {tuple(near.shape)}"
            assert not near.is_floating_point(), f"neighbors must be integers, got {near.dtype}"
            good = (near >= -1) & (near < A)
            assert good.all(), f"neighbors must be arms 0 to {A - 1} or −1, got {near[~good][:3].tolist()}"

    # ------------------------------------------------------------------ regret

    def test_expected_rewards_are_those_of_the_index(self) -> None:
        """Expected rewards are NaN in places that are not pulled."""
        environment = self.environment()
        index = self._index(environment)
        means = environment.means.expand(*index.shape[:-1], -1)
        expected = torch.where(index >= 0, means.gather(-1, index.clamp_min(0)), torch.nan)
        got = environment.expected(index)
        assert got.shape == index.shape, f"expected(index) must be shaped like the index, got {tuple(got.shape)}"
        assert torch.equal(got.isnan(), expected.isnan()), "expected(index) must be NaN where the index is −1, and only there"
        assert torch.equal(got.nan_to_num(), expected.nan_to_num()), "expected(index) must be the means of those arms"

    def test_regret_is_the_distance_to_the_optimum(self) -> None:
        """The regret is never negative, and NaN in places that are not pulled."""
        environment = self.environment()
        index = self._index(environment)
        regret, expected = environment.regret(index), environment.expected(index)
        assert regret.shape == index.shape, f"regret(index) must be shaped like the index, got {tuple(regret.shape)}"
        assert torch.equal(regret.isnan(), expected.isnan()), "regret must be NaN where the expected reward is, and only there"
        known = regret[~regret.isnan()]
        assert (known >= 0).all(), f"regret must not be negative, got {known.min() if known.numel() else known}"
        gap = environment.optimum.unsqueeze(-1) - expected
        assert torch.equal(regret.nan_to_num(), gap.nan_to_num()), "regret must be the optimum minus the expected reward"

    # ------------------------------------------------------------------ rewards

    def test_rewards_are_shaped_like_the_index(self) -> None:
        """Rewards are finite where an arm is pulled, and NaN elsewhere."""
        environment = self.environment()
        index = self._index(environment)
        rewards = self._sample(environment, index)
        assert rewards.shape == index.shape, f"rewards must be shaped like the index, got {tuple(rewards.shape)}"
        assert rewards.is_floating_point(), f"rewards must be floating point, got {rewards.dtype}"
        assert torch.equal(rewards.isnan(), index < 0), "rewards must be NaN where the index is −1, and only there"
        assert rewards[index >= 0].isfinite().all(), "rewards of pulls must be finite"

    def test_no_pull_gives_no_reward(self) -> None:
        """An empty index is answered by an empty tensor."""
        environment = self.environment()
        index = self._index(environment)[..., :0]
        rewards = self._sample(environment, index)
        assert rewards.shape == index.shape, f"rewards of no pull must be {tuple(index.shape)}, got {tuple(rewards.shape)}"

    def test_the_same_generators_give_the_same_rewards(self) -> None:
        """This holds in a new environment, and in one that was pulled before."""
        environment = self.environment()
        index = self._index(environment)
        runs = [self._sample(one, index).nan_to_num() for one in (environment, environment, self.environment())]
        assert torch.equal(runs[0], runs[1]), "an environment must give the same rewards for the same generators"
        assert torch.equal(runs[0], runs[2]), "a new environment must give the same rewards for the same generators"

    def test_only_the_given_generators_are_drawn_from(self) -> None:
        """The global generators are left alone, and change no reward."""
        environment = self.environment()
        index = self._index(environment)
        runs = []
        for seed in (1, 2):
            with global_generators_seeded(seed):
                runs.append(self._sample(environment, index).nan_to_num())
        assert torch.equal(*runs), "global generators must not change rewards"

    def test_a_row_depends_on_its_own_index_and_generator(self) -> None:
        """Rewards of a batch row depend neither on the pulls of other rows nor on the width of the padding."""
        environment = self.environment()
        index = self._index(environment)
        rewards = self._sample(environment, index)
        flat, found = index.reshape(-1, index.shape[-1]), rewards.reshape(-1, index.shape[-1])
        for row in range(len(flat)):
            alone = torch.full_like(flat, -1)
            alone[row] = flat[row]
            got = self._sample(environment, alone.reshape(index.shape)).reshape(flat.shape)[row]
            same = torch.equal(got.nan_to_num(), found[row].nan_to_num())
            assert same, f"row {row} must draw the same rewards while the other rows pull nothing"
            if len(environment.arms.shape) == 2:
                pulled = flat[row] >= 0
                single = environment.sample(flat[row][pulled], [self._generators(index)[row]])
                assert torch.equal(single, found[row][pulled]), f"row {row} must draw the same rewards on its own, unpadded"
        padding = torch.full_like(index[..., :2], -1)
        wide = self._sample(environment, torch.cat([padding[..., :1], index, padding], dim=-1))[..., 1:-2]
        assert torch.equal(wide.nan_to_num(), rewards.nan_to_num()), "padding must not change the rewards of a row"

    def test_a_row_that_pulls_nothing_leaves_its_generator_alone(self) -> None:
        """Rows that are done then stay reproducible."""
        environment = self.environment()
        index = self._index(environment)
        used = self._generators(index)
        rows = len(used)
        before = [g.get_state() for g in used]
        index.view(rows, -1)[0] = -1
        environment.sample(index, used)
        assert torch.equal(before[0], used[0].get_state()), "a row that pulls nothing must draw nothing"
        after = [g.get_state() for g in used]
        environment.sample(torch.full_like(index, -1), used)
        same = all(torch.equal(state, g.get_state()) for state, g in zip(after, used, strict=True))
        assert same, "pulling nothing in any row must draw nothing"

    def test_rewards_average_to_their_means(self) -> None:
        """Averages are within six standard errors of known means, rewards are no noisier than `noise_std`, rewards of many arms
        rise with their means, and the noise of one call is not that of the next."""
        environment = self.environment()
        means, noise = environment.means, environment.noise_std
        if self.samples and not math.isnan(noise) and not means.isnan().any():
            shape, A = environment.arms.shape[:-2], environment.arms.shape[-2]
            for arm in (0, A - 1):
                index = torch.full((*shape, self.samples), arm, device=environment.arms.device)
                used = self._generators(index)
                rewards, later = (environment.sample(index, used).double() for _ in range(2))
                off = (rewards.mean(dim=-1) - means[..., arm].double()).abs()
                scale = max(1.0, float(means.abs().max()))
                most = 6 * noise / math.sqrt(self.samples) + 1e-6 * scale
                assert (off <= most).all(), f"rewards of arm {arm} must average to its mean within {most}, they are {off} off"
                spread, largest = rewards.std(dim=-1), noise * (1 + 6 / math.sqrt(self.samples)) + 1e-6 * scale
                assert (spread <= largest).all(), f"rewards of arm {arm} have a standard deviation of {spread}, > {largest}"
                again = (rewards == later).all(dim=-1) & (rewards != rewards[..., :1]).any(dim=-1)
                assert not again.any(), "a further call with the same generators must draw further noise: advance them"
            index = torch.randint(A, (*shape, self.samples), generator=generator(1)).to(environment.arms.device)
            self._check_follow(self._sample(environment, index), environment.expected(index), noise, "rewards of many arms")

    def _check_follow(self, rewards: Tensor, expected: Tensor, noise: float, what: str) -> None:
        """The differences of rewards from their means, `... x n`, have neither a mean nor a slope on these means."""
        above, q = (rewards - expected).double(), expected.shape[-1]
        scale = 1e-6 * max(1.0, float(expected.abs().max()))
        centred = (expected - expected.mean(dim=-1, keepdim=True)).double()
        for weights, fault in ((torch.ones_like(centred), "average to"), (centred, "rise with")):
            off, norm = (above * weights).sum(dim=-1).abs(), weights.norm(dim=-1)
            most = norm * (6 * noise + scale * math.sqrt(q))
            assert (off <= most).all(), f"{what} must {fault} their means, arm by arm and in the order of the index"

    # ------------------------------------------------------------------ workers, and runs

    def test_there_is_one_task_per_pull(self) -> None:
        """Each task can be pickled, and returns a finite number."""
        environment = self.environment()
        index = self._index(environment)
        tasks = environment.tasks(index, self._generators(index))
        pulls = int((index >= 0).sum())
        assert len(tasks) == pulls, f"{pulls} places are pulled, so tasks() must return {pulls} tasks, got {len(tasks)}"
        for task in tasks:
            reward = float(pickle.loads(pickle.dumps(task))())
            assert math.isfinite(reward), f"a task must return a finite reward, got {reward}"

    def test_tasks_give_the_same_rewards_in_any_order(self) -> None:
        """Everything random is drawn before the tasks are handed out."""
        environment = self.environment()
        index = self._index(environment)
        runs = []
        for order in (None, 1, 2):
            tasks = list(enumerate(self.environment().tasks(index, self._generators(index))))
            if order is not None:
                random.Random(order).shuffle(tasks)
            runs.append([reward for _, reward in sorted((place, float(task())) for place, task in tasks)])
        assert runs[0] == runs[1] == runs[2], "tasks must give the same rewards in whatever order they are evaluated"

    def test_tasks_are_rewards_of_their_arms(self) -> None:
        """Tasks are in row-major order, each as near to the known mean of its arm as known noise allows, and as noisy as
        `sample`."""
        environment = self.environment()
        index, noise = self._index(environment), environment.noise_std
        expected = environment.expected(index)[index >= 0].tolist()
        rewards = [float(task()) for task in environment.tasks(index, self._generators(index))]
        if not math.isnan(noise) and not any(map(math.isnan, expected)):
            scale = max(1.0, *map(abs, expected))
            for place, (reward, mean) in enumerate(zip(rewards, expected, strict=True)):
                far = abs(reward - mean) > 10 * noise + 1e-6 * scale
                assert not far, f"task {place} must draw a reward of mean {mean} ± {noise}, got {reward}: rows come in order"
            if self.samples:
                self._check_many_tasks(environment)

    def _check_many_tasks(self, environment: Environment) -> None:
        """A tenth of `samples` tasks in each of two rows, or those of the arms."""
        shape, A = environment.arms.shape[:-2] or torch.Size([2]), environment.arms.shape[-2]
        index = torch.randint(A, (*shape, max(self.samples // 10, 1)), generator=generator(2)).to(environment.arms.device)
        tasks = environment.tasks(index, self._generators(index))
        rewards, expected = torch.tensor([float(task()) for task in tasks]).double(), environment.expected(index).double()
        drawn = self._sample(environment, index) - expected
        self._check_follow(rewards, expected.reshape(-1).cpu(), environment.noise_std, "rewards of many tasks")
        most = 1e-6 * max(1.0, float(expected.abs().max()))
        silent = bool((rewards - expected.reshape(-1).cpu()).abs().max() <= most)
        assert not silent or bool(drawn.abs().max() <= most), "tasks must have noise as sample() has"

    def test_a_run_is_reproducible(self) -> None:
        """`run` with a policy that draws arms records the same rewards each time."""
        histories = []
        for _ in range(2):
            environment = self.environment()
            shape = environment.arms.shape[:-2]
            if len(shape) > 1:  # a bandit has one batch dimension at most
                return
            rows = [generator(row) for row in range(shape.numel())]
            histories.append(run(uniform(), environment, 10, generator=rows if shape else rows[0]).pulls)
        for name in ("arm", "reward"):
            first, again = (pulls[name].tolist() for pulls in histories)
            assert first == again, f"two runs with the same generators must record the same values of {name!r}"
        regret = torch.tensor(histories[0]["regret"].tolist())
        assert (regret.isnan() | (regret >= 0)).all(), "a run must never record a negative regret"

    # ------------------------------------------------------------------ what the laws pull

    def _index(self, environment: Environment) -> Tensor:
        """Picks with repetitions and padding: two rows, or those of the arms."""
        A, shape = environment.arms.shape[-2], environment.arms.shape[:-2] or torch.Size([2])
        rows = shape.numel()
        index = torch.randint(A, (rows, 5), generator=generator(0))
        index[:, 0] = torch.arange(rows) % A
        index[::2, 2] = -1
        index[1::2, 1] = -1
        index[1::2, 4] = -1
        return index.reshape(*shape, 5).to(environment.arms.device)

    def _generators(self, index: Tensor) -> list[torch.Generator]:
        return [generator(10 + row) for row in range(index.shape[:-1].numel())]

    def _sample(self, environment: Environment, index: Tensor) -> Tensor:
        return environment.sample(index, self._generators(index))
