"""The catalogue: guarantee, cost and options of every policy, in one place.

`policies.registry`, the command `torchbandits policies` and the table in docs/choosing/policies.md are generated from it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

from torchbandits.policies.ada_bkb import ada_bkb
from torchbandits.policies.auto import auto
from torchbandits.policies.base import Policy
from torchbandits.policies.batch_bkb import batch_bkb
from torchbandits.policies.bkb import bkb
from torchbandits.policies.bpe import bpe
from torchbandits.policies.cbrap import cbrap
from torchbandits.policies.compressed_gp import compressed_gp
from torchbandits.policies.epsilon_greedy import epsilon_greedy
from torchbandits.policies.gp_bucb import gp_bucb
from torchbandits.policies.gp_ucb import gp_ucb
from torchbandits.policies.igp_ucb import igp_ucb
from torchbandits.policies.irgp_ucb import irgp_ucb
from torchbandits.policies.kriging_believer import kriging_believer
from torchbandits.policies.lb_gp_ucb import lb_gp_ucb
from torchbandits.policies.lin_ucb import lin_ucb
from torchbandits.policies.lse import lse
from torchbandits.policies.lucb import lucb
from torchbandits.policies.mini_gp_ucb import mini_gp_ucb
from torchbandits.policies.pi_gp_ucb import pi_gp_ucb
from torchbandits.policies.qpo import qpo
from torchbandits.policies.reds import reds
from torchbandits.policies.regularized_evolution import regularized_evolution
from torchbandits.policies.rff_ucb import rff_ucb
from torchbandits.policies.soful import soful
from torchbandits.policies.sup_kernel_ucb import sup_kernel_ucb
from torchbandits.policies.thompson_sampling import thompson_sampling
from torchbandits.policies.uniform import uniform


@dataclass(frozen=True)
class Option:
    """One argument of a policy; `default` is source text, or "required" if there is no default."""

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Entry:
    """The description of one policy, in phrases that fit a table.

    Attributes:
        factory: Function that makes the policy; its name is the policy's name.
        paper: Authors, year, theorem or algorithm.
        guarantee: Regret bound, and the options under which it holds; "none" where nothing is proved.
        cost: Cost of a step, in A arms, u distinct arms pulled, m dictionary points or features.
        batch: Number of picks of one `ask`.
        kernels: Supported kernels; "–" for policies without a kernel.
        memory: Which of the pulls are kept.
        choose: Phrase that completes "choose it when".
    """

    factory: Callable[..., Policy]
    paper: str
    guarantee: str
    cost: str
    batch: str
    kernels: str
    memory: str
    choose: str

    @property
    def name(self) -> str:
        """Name of the policy in configurations and as `tb.<name>`."""
        return self.factory.__name__

    @property
    def summary(self) -> str:
        """The first paragraph of the factory's documentation."""
        return " ".join((inspect.getdoc(self.factory) or "").partition("\n\n")[0].split())

    @property
    def options(self) -> tuple[Option, ...]:
        """The factory's arguments in order, each with its documentation."""
        section = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(self.factory) or "", re.DOTALL | re.MULTILINE)
        told = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.MULTILINE)
        meanings = {name: " ".join(text.split()) for name, text in told}
        return tuple(
            Option(name, "required" if p.default is p.empty else _typed(p.default), meanings.get(name, ""))
            for name, p in inspect.signature(self.factory).parameters.items()
        )


def _typed(default: object) -> str:
    return str(getattr(default, "__name__", None) or repr(default))


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        auto,
        paper="Hvarfner et al. 2024; Salinas et al. 2020",
        guarantee="none",
        cost="O(A u)",
        batch="one, or as many as you ask for",
        kernels="its own, fitted",
        memory="exact, a dictionary once memory ends",
        choose="you know no kernel, no noise and no scale",
    ),
    Entry(
        gp_ucb,
        paper="Srinivas et al. 2010, Thm 1",
        guarantee="O(√(T γ_T log(A T))) for f drawn from the prior",
        cost="O(A u)",
        batch="one",
        kernels="any",
        memory="exact",
        choose="at most a few thousand distinct arms will be pulled, one at a time",
    ),
    Entry(
        igp_ucb,
        paper="Chowdhury & Gopalan 2017, Thm 3",
        guarantee="O(√T (B √γ_T + γ_T)) for f of RKHS norm ≤ B",
        cost="O(A u)",
        batch="one",
        kernels="any",
        memory="exact",
        choose="the same, and f is fixed with a known RKHS norm",
    ),
    Entry(
        gp_bucb,
        paper="Desautels et al. 2014, Thm 2",
        guarantee="C times that of IGP-UCB",
        cost="O(A u) a distinct arm",
        batch="grows by itself",
        kernels="any",
        memory="exact",
        choose="the same, and evaluations run in parallel",
    ),
    Entry(
        bkb,
        paper="Calandriello et al. 2019, Thm 2",
        guarantee="that of IGP-UCB up to logs, with probability 1 − 2δ, under `widths.BKB` and the theorem's q̄; none at the "
        "defaults",
        cost="O((A + u) m²)",
        batch="one",
        kernels="any",
        memory="sampled dictionary",
        choose="many distinct arms, one evaluation at a time",
    ),
    Entry(
        batch_bkb,
        paper="Calandriello et al. 2020, Thm 2",
        guarantee="55 C̃³ times that of GP-UCB, with probability 1 − 2δ, under `widths.BBKB`, λ ≥ 1 and the theorem's q̄; none "
        "at the defaults",
        cost="O((A + u) m²) a batch, O(1) in A a pick",
        batch="grows by itself",
        kernels="any",
        memory="sampled dictionary",
        choose="everything is large: arms, pulls, batches",
    ),
    Entry(
        ada_bkb,
        paper="Rando et al. 2022",
        guarantee="that of BKB up to logs, on a box, under `widths.BKB` and BKB's q̄; none at the defaults",
        cost="O((L + u) m²), L leaves of its tree; O(A) a split",
        batch="one",
        kernels="any (arms); RBF, Matérn (box)",
        memory="sampled dictionary",
        choose="the domain is a box, or holds too many arms to sweep",
    ),
    Entry(
        compressed_gp,
        paper="Bedi et al. 2020, Thm 1–2",
        guarantee="none at the defaults; that of GP-UCB plus O(√ε T), linear in T, for UCB and EI with ε > 0",
        cost="O(A u) a pull that is kept, O(A) one that is not",
        batch="one",
        kernels="any",
        memory="informative pulls",
        choose="an exact posterior must stay small for ever, or EI or PI is wanted",
    ),
    Entry(
        mini_gp_ucb,
        paper="Calandriello et al. 2022, Thm 1",
        guarantee="C times that of GP-UCB, with at most log det(V/λ)/log((C² + 1)/2) + 1 switches",
        cost="O(A u) a switch",
        batch="one arm, many times",
        kernels="any",
        memory="exact",
        choose="the same arm again is cheaper than another one, and runs are long",
    ),
    Entry(
        pi_gp_ucb,
        paper="Janz et al. 2020, Thm 3",
        guarantee="sublinear for Matérn kernels with ν > 1 and λ = 1 + 2/T; none for others",
        cost="O(A), and O(P²) a cell of P arms that holds the pull",
        batch="one",
        kernels="any",
        memory="cells",
        choose="the kernel is Matérn, features are few and the arms fill a box",
    ),
    Entry(
        bpe,
        paper="Li & Scarlett 2022, Thm 1",
        guarantee="O*(√(T γ_T)) for f of RKHS norm ≤ Ψ",
        cost="O(A u) a distinct arm, O(A²) a pick up to 1,024 arms",
        batch="at most ⌈log₂ log₂ T⌉ + 1 in all",
        kernels="any",
        memory="exact",
        choose="rewards come a few times only, in large batches, and T is known",
    ),
    Entry(
        reds,
        paper="Salgia et al. 2024 (arXiv 2310.15351), by its abstract",
        guarantee="Õ(√(T γ_T)) for f of RKHS norm ≤ Ψ, if the first batch is as long as the theorem asks",
        cost="O(A u) a distinct arm, O(1) a pick",
        batch="doubles from ⌈√T⌉ on",
        kernels="any",
        memory="exact",
        choose="the same, and picks must cost nothing",
    ),
    Entry(
        sup_kernel_ucb,
        paper="Valko et al. 2013, Thm 1",
        guarantee="Õ(√(T d̃)) for f of RKHS norm ≤ F and rewards of order 1",
        cost="O(A u) a level, ½ log₂ T levels",
        batch="one",
        kernels="any",
        memory="exact, and an exact one a level",
        choose="a row of reference is wanted: the best rate proved, and poor practice",
    ),
    Entry(
        thompson_sampling,
        paper="Chowdhury & Gopalan 2017, Thm 4; Mutný & Krause 2018, Thm 4 (qff)",
        guarantee="γ_T √(dT) up to logs for exact with λ = 1 + 2/T; √T up to logs for qff whose nodes grow with T; none for "
        "this implementation of nystrom, rff or batches",
        cost="O(A m) a pick, O(A²) a pick up to 2,000 arms unless qff or rff",
        batch="fixed",
        kernels="any (exact, nystrom); RBF, Matérn, Tanimoto (rff); RBF (qff)",
        memory="exact, sampled dictionary or features",
        choose="many workers run at once and come free at different times",
    ),
    Entry(
        rff_ucb,
        paper="Rahimi & Recht 2007, for the features",
        guarantee="none",
        cost="O(A m + m²)",
        batch="one",
        kernels="RBF, Matérn, Tanimoto",
        memory="features",
        choose="a baseline is wanted that shows variance starvation",
    ),
    Entry(
        lin_ucb,
        paper="Abbasi-Yadkori et al. 2011, Thm 3",
        guarantee="O(d √T log T) for f(x) = θᵀx and λ ≥ max(1, ‖x‖²)",
        cost="O(A d + d²), d features of an arm",
        batch="one",
        kernels="–",
        memory="d x d matrix",
        choose="rewards are linear in the features",
    ),
    Entry(
        cbrap,
        paper="Yu et al. 2017",
        guarantee="that of LinUCB in m dimensions plus a term linear in T times the error of the projection",
        cost="O(A m + m²)",
        batch="one",
        kernels="–",
        memory="m x m matrix",
        choose="the same, with so many features that a random projection must do",
    ),
    Entry(
        soful,
        paper="Kuzborskij et al. 2019",
        guarantee="O((1 + ε)^(3/2) d √T) up to logs for f(x) = θᵀx, λε what the sketch lost",
        cost="O(A d + d m²)",
        batch="one",
        kernels="–",
        memory="sketch of 2m rows",
        choose="the same, and the arms pulled nearly span few dimensions",
    ),
    Entry(
        irgp_ucb,
        paper="Takeno et al. 2023 (arXiv 2302.01511)",
        guarantee="expected regret O(√(T γ_T log A)) for f drawn from the prior, under a width that does not grow",
        cost="O(A u)",
        batch="one",
        kernels="any",
        memory="exact",
        choose="the same as for gp_ucb, and it explores too much",
    ),
    Entry(
        kriging_believer,
        paper="Sugiura et al. 2026 (arXiv 2603.01470), by its abstract",
        guarantee="none",
        cost="O(A u)",
        batch="fixed",
        kernels="any",
        memory="exact",
        choose="workers come free at different times, and are to act on different beliefs about what is pending",
    ),
    Entry(
        qpo,
        paper="Fromer et al. 2024 (arXiv 2410.06333)",
        guarantee="none",
        cost="O(A u), and O(r³ + r² S) an ask for S draws of r leaders",
        batch="fixed",
        kernels="any",
        memory="exact",
        choose="one batch is to hold the best arm as probably as possible",
    ),
    Entry(
        lb_gp_ucb,
        paper="Ziomek et al. 2024 (arXiv 2410.10384), Thm 4.1",
        guarantee="that of IGP-UCB at the best lengthscale θ up to O((θ₀/θ)^d d ln(θ₀/θ) + d ln g(T)), for f of norm ≤ N there",
        cost="O(K A u), K lengthscales",
        batch="one",
        kernels="RBF, Matérn",
        memory="exact, one a lengthscale",
        choose="a guarantee is wanted, and the lengthscale is not known",
    ),
    Entry(
        lucb,
        paper="Kalyanakrishnan et al. 2012, for independent arms",
        guarantee="none for regret; the arms at the time of stopping are the k best up to ε, for f drawn from the prior",
        cost="O(A u)",
        batch="fixed",
        kernels="any",
        memory="exact",
        choose="you want to know the k best arms, and what is pulled on the way does not matter",
    ),
    Entry(
        lse,
        paper="Gotovos et al. 2013, Alg. 1",
        guarantee="none for regret; the classification at the time of stopping is right up to ε, for f drawn from the prior",
        cost="O(A u)",
        batch="fixed",
        kernels="any",
        memory="exact",
        choose="you want to know which arms are above a level",
    ),
    Entry(
        epsilon_greedy,
        paper="Slivkins 2019, Thm 1.6",
        guarantee="O(T^(2/3) (A log T)^(1/3)) with ε_t = (A log t / t)^(1/3); none at the default",
        cost="O(u)",
        batch="fixed",
        kernels="–",
        memory="averages",
        choose="a baseline is wanted that learns without features",
    ),
    Entry(
        regularized_evolution,
        paper="Real et al. 2019, Alg. 1",
        guarantee="none",
        cost="O(A d), O(1) in A with neighbours given",
        batch="fixed",
        kernels="–",
        memory="averages, and the last members",
        choose="a baseline is wanted that mutates, as in architecture search",
    ),
    Entry(
        uniform,
        paper="–",
        guarantee="none",
        cost="O(1)",
        batch="fixed",
        kernels="–",
        memory="–",
        choose="every regret needs a baseline",
    ),
)


def markdown_table() -> str:
    """The catalogue as the Markdown table of docs/choosing/policies.md."""
    cost = "cost of a step (A arms, u distinct pulled, m dictionary or features)"
    headers = ("policy", "memory", "batch", cost, "regret guarantee", "any kernel?", "choose it when")
    lines = [headers, ("---",) * len(headers)]
    for e in CATALOGUE:
        kernels = {"any": "yes", "–": "–"}.get(e.kernels, e.kernels)
        guarantee = e.guarantee if e.guarantee == "none" else f"{e.guarantee} ({e.paper})"
        lines.append((f"`{e.name}`", e.memory, e.batch, e.cost, guarantee, kernels, e.choose))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
