"""The contract of a policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from torchbandits.display import described
from torchbandits.errors import UnsupportedError
from torchbandits.policies.state import State
from torchbandits.types import Arms, Evidence, FitReport, Points, Pulls, Selection

__all__ = ["Policy", "State"]

FROM_BOX = "a box has no list of arms to replace: make a new Bandit on the arms, and observe() the data."

# Metadata of a field that earlier versions of a policy lacked: journals and saved states contain it only if it is given.
LATER = {"described": "if given"}

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", bound=State, default=Any)
else:
    from typing import TypeVar

    # Defaults are for Python 3.13 on.
    S = TypeVar("S", bound=State)


class Policy(ABC, Generic[S]):
    """A rule that selects arms. Policies are frozen: everything that is learned is stored in a `State`, whose class belongs to
    the family of the policy."""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Names of the outcomes of a pull, which are the last batch dimension; empty for policies of a single reward."""
        return ()

    @property
    def known(self) -> tuple[str, ...]:
        """Names of outcomes that are known for all arms beforehand, and not told."""
        return ()

    @property
    def ranks_known(self) -> bool:
        """Whether these outcomes enter by their ranks, as the rewards of its models do."""
        return False

    @property
    def draws_on_update(self) -> bool:
        """Whether `update` may advance the generators."""
        return True

    @property
    def most_picks(self) -> int | None:
        """The maximum number of picks of one `select`, or None if it is not known beforehand."""
        return None

    @property
    def full_batch(self) -> int:
        """The maximum number of picks of one `select`; 1 if it is not known beforehand."""
        return self.most_picks or 1

    @property
    def needs_costs(self) -> bool:
        """Whether picks depend on the costs of arms. If so, costs must be given."""
        return False

    @property
    def streams(self) -> bool:
        """Whether arms may be read piece by piece from a source; otherwise they must be one tensor."""
        return False

    @property
    def learns_failures(self) -> bool:
        """Whether arms that are likely to fail, given those that failed, are left out. Guarantees do not allow this."""
        return False

    @property
    def memory_of_failures(self) -> int | None:
        """Bytes that the model of failures may take, if `learns_failures`; None for its default."""
        return None

    @property
    def pulls_once(self) -> bool:
        """Whether `select` leaves out arms of which a pull is pending."""
        return False

    @property
    def shards(self) -> bool:
        """Whether arms may be distributed over ranks, with one `Shard` per rank."""
        return False

    def __repr__(self) -> str:
        """The attributes that differ from the defaults of the class, in one line."""
        return described(self)

    @abstractmethod
    def init(self, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> S:
        """Make a fresh state on `A x d` or `batch_shape x A x d` arms, with one generator per batch row. Policies that stream
        (`streams`) accept an `ArmSource` too."""

    def init_box(self, box: Tensor, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> S:
        """Make a fresh state on a box, `2 x d` or `batch_shape x 2 x d`, for policies that search the box for their picks."""
        raise UnsupportedError(
            "this policy chooses among given arms: pass arms= instead of bounds=, such as points that fill the box, "
            "bounds[0] + (bounds[1] - bounds[0]) * torch.quasirandom.SobolEngine(d, scramble=True, seed=0).draw(10_000); "
            "a box is for ada_bkb, uniform and the policies of one Gaussian process (gp_ucb, batch_bkb, thompson_sampling …)."
        )

    @abstractmethod
    def select(
        self, state: S, *, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, Evidence]:
        """Select the next batch, and return it with its `Evidence`. The state is unchanged.

        Args:
            state: State of this policy; its pending picks are hallucinated.
            limit: `batch_shape`, maximum number of picks of each row.
            available: `batch_shape x A` booleans, the arms on offer; None for all arms.
            exactly: Number of picks, in place of the batch rule (rows with fewer arms on offer pick fewer).
        """

    @abstractmethod
    def update(self, state: S, pulls: Pulls) -> S:
        """Learn from pulls. Returns the same state, with its buffers replaced."""

    def draws_on_select(self, state: S) -> bool:
        """Whether `select` may advance the generators."""
        return True

    def opens(self, state: S) -> bool:
        """Whether the last `select` may have returned first picks, which end a batch before the policy's own picks."""
        return False

    def learns_together(self, state: S) -> bool:
        """Whether one `update_together` of several tells equals separate updates up to rounding. False if the result depends on
        the order of the tells, or on draws between them."""
        return False

    def update_together(self, state: S, pulls: Pulls, sizes: Sequence[int]) -> S:
        """Learn several consecutive tells in one update, and count them as separate tells. Returns the state.

        Args:
            state: State of this policy.
            pulls: Pulls of all tells, at arms, `batch_shape x q`, in the order in which they were told.
            sizes: Number of the q columns that belong to each tell.
        """
        for part in pulls.split(sizes):
            state = self.update(state, part)
            state.add_told_(part.num_rewards)
        return state

    def noise_variance(self, state: S) -> float | None:
        """Noise variance of a reward of weight 1, reward units squared, or None if rewards cannot be weighted. A reward with
        noise variance v has the weight noise_variance / v."""
        return None

    @property
    def takes_blocks(self) -> bool:
        """Whether rewards may be told with the block in which they were measured."""
        return False

    def known_arms(self, state: S) -> Tensor | None:
        """Arms of which another pull would teach little, `batch_shape x A` booleans; None if there are none, and for policies
        whose guarantees do not allow to leave them out."""
        return None

    def set_arms(self, state: S, arms: Arms) -> S:
        """Return a state with the same data on other arms. The given state is unchanged, and pending picks are not carried
        over.

        Args:
            state: State of this policy.
            arms: `A' x d` or `batch_shape x A' x d`; may be a source if the policy `streams`.

        Raises:
            UnsupportedError: For a policy whose state is bound to its arms.
        """
        raise UnsupportedError(
            "this policy is bound to the arms it started with: make a new Bandit on the new arms, and observe() the data."
        )

    def scores_at(self, state: S, points: Points) -> Tensor:
        """The scores of any points, `batch_shape x n x d` to `batch_shape x n`. Differentiable; pending picks reduce variances.

        Raises:
            UnsupportedError: For a policy without scores, or with scores of given arms only.
        """
        raise UnsupportedError("this policy has no score at points; use gp_ucb, bkb or batch_bkb to have one.")

    def refit(self, state: S, *, noise: bool = False, rows: Tensor | None = None, **options: Any) -> FitReport:
        """Fit the kernel of the state's posterior to the observations, and update the state accordingly.

        Args:
            state: State of this policy; its buffers are replaced.
            noise: Whether to fit the noise variance too, and λ with it.
            rows: `batch_shape` booleans, the rows to fit; by default all rows.
            options: As for `fitting.fit_kernel_`.
        """
        raise UnsupportedError("this policy keeps no posterior whose kernel could be fitted: use gp_ucb, bkb or batch_bkb.")

    @abstractmethod
    def width(self, state: S) -> Tensor:
        """The current multiplier of the standard deviation, `batch_shape`; NaN for policies without a width."""

    def width_on_host(self, state: S) -> Tensor:
        """The width on the host, for arms on a device."""
        return self.width(state).cpu()

    @abstractmethod
    def bounds(self, state: S) -> tuple[Tensor, Tensor] | None:
        """Largest upper and largest lower confidence bound over the arms, `batch_shape` each; None without a posterior."""
