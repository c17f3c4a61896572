from __future__ import annotations

import torch

from headstart.backbones import Likelihood, LikelihoodConfig
from headstart.table.kinds import BINARY, RATING, REAL


def test_logit_inverts_mean_for_every_kind() -> None:
    for link in ("sigmoid", "identity"):
        likelihood = Likelihood(LikelihoodConfig(rating_link=link))
        codes = torch.tensor([BINARY, RATING, REAL])
        mean = torch.tensor([0.2, 0.7, 0.9])
        torch.testing.assert_close(likelihood.mean(likelihood.logit(mean, codes), codes), mean)


def test_logit_is_finite_at_the_ends() -> None:
    likelihood = Likelihood(LikelihoodConfig())
    ends = torch.tensor([0.0, 1.0])
    assert torch.isfinite(likelihood.logit(ends, torch.tensor([BINARY, RATING]))).all()


def test_codes_broadcast_against_a_matrix_of_logits() -> None:
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    logits = torch.tensor([[0.0, 3.0], [1.0, -2.0]])
    mean = likelihood.mean(logits, torch.tensor([BINARY, REAL]))
    torch.testing.assert_close(mean, torch.stack([logits[:, 0].sigmoid(), logits[:, 1]], dim=1))
