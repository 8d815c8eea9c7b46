"""The study of variance starvation, compared with dense formulas in NumPy."""

import numpy as np
import torch

from torchbandits.experiments.reproduction import StarvationConfig
from torchbandits.experiments.starvation import DTC, EXACT, SOR, posteriors, study, subset_of_regressors

CONFIG = StarvationConfig(lengthscale=0.1, noise_std=0.2, evaluations=(4, 12), repetitions=2)


def gram(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * ((a[:, None] - b[None, :]) / 0.1) ** 2)


def test_the_posteriors_are_their_formulas():
    generator = np.random.default_rng(0)
    x, y, grid = generator.random(12) / 2, generator.normal(size=12), np.linspace(0, 1, 30)
    tensors = [torch.from_numpy(values).unsqueeze(-1) for values in (x, grid)]
    found = posteriors(CONFIG, tensors[0], torch.from_numpy(y), 0)[EXACT](tensors[1])
    inverse = np.linalg.inv(gram(x, x) + 0.04 * np.eye(12))
    np.testing.assert_allclose(found.mean.detach(), gram(grid, x) @ inverse @ y, atol=1e-7)
    variance = 1 - np.einsum("ij,jk,ik->i", gram(grid, x), inverse, gram(grid, x))
    np.testing.assert_allclose(found.variance.detach(), variance, atol=1e-7)
    sor = subset_of_regressors(CONFIG, tensors[0][:5], tensors[0], torch.from_numpy(y))(tensors[1])
    inner = np.linalg.inv(gram(x[:5], x) @ gram(x, x[:5]) + 0.04 * gram(x[:5], x[:5]))
    np.testing.assert_allclose(sor.mean, gram(grid, x[:5]) @ inner @ gram(x[:5], x) @ y, atol=1e-5)
    np.testing.assert_allclose(
        sor.variance, 0.04 * np.einsum("ij,jk,ik->i", gram(grid, x[:5]), inner, gram(grid, x[:5])), atol=1e-5
    )


def test_the_study_keeps_curves_of_one_repetition_and_shares_of_all():
    table, facts = study(CONFIG, 2)
    shares = table[table["measure"] == "variance_kept"]
    assert len(shares) == 8
    assert set(shares["repetitions"]) == {2}
    kept = {(line["experiment"], line["policy"]): line["mean"] for _, line in shares.iterrows()}
    assert kept["12 evaluations", DTC] > 0.95
    assert kept["12 evaluations", SOR] < 0.05
    assert all(len(values) == 2 for values in facts.values())
    assert set(table[table["measure"] == "posterior"]["policy"]) == {EXACT, DTC, SOR, "RFF", "f", "evaluations"}
