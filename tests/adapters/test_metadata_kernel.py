"""Kernels of metadata: a ridge regression on their terms is a Gaussian process."""

from __future__ import annotations

import numpy as np
import torch
from tests.oracles.metadata_kernel import kernel_matrix, process_prediction
from torch import Tensor

from headstart.adapters.head_prior import MetadataKernel
from headstart.core.types import Description
from headstart.linalg.ridge import LooRidge, make_groups

WIDTHS = (4, 1, 6)  # a vector, a number, another vector


def vectors(features: int = 30) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(features, sum(WIDTHS), generator=generator)


def prepared(metadata: Tensor, widths: tuple[int, ...] = WIDTHS) -> MetadataKernel:
    kernel = MetadataKernel(metadata, widths)
    kernel.prepare(metadata)
    return kernel


def test_products_of_terms_are_the_kernel() -> None:
    metadata = vectors()
    kernel = prepared(metadata)
    terms = kernel.terms(metadata)
    positions, owners = kernel.groups(0)
    assert owners == [0, 2]  # a number has none
    for group, (start, end) in zip(positions, kernel.spans, strict=True):
        expected = torch.tensor(
            kernel_matrix(metadata[:, start:end].tolist(), scale=0.5), dtype=torch.float64
        )
        torch.testing.assert_close(terms[:, group] @ terms[:, group].T, expected, atol=2e-3, rtol=0)


def test_a_regression_on_terms_predicts_as_a_gaussian_process() -> None:
    metadata, new = vectors()[:, :4], vectors(50)[30:, :4]
    kernel = prepared(metadata, (4,))
    targets = torch.stack([torch.sin(5 * metadata[:, 0]), metadata[:, 1] * metadata[:, 2]], dim=1).double()
    description = Description.of(kernel.terms(metadata), [])
    regression = LooRidge(make_groups(description.numbers, description.groups))
    regression.strengths[0] = 3.0
    regression.fit(description.numbers, targets, torch.ones(30))
    matrix, constant = regression.linear_map(30)
    predicted = kernel.terms(new) @ matrix + constant
    of_similarities = kernel.use(matrix)
    torch.testing.assert_close(kernel.similarities(new).double() @ of_similarities + constant, predicted)
    expected = process_prediction(metadata.tolist(), targets.tolist(), new.tolist(), strength=3.0)
    torch.testing.assert_close(predicted, torch.tensor(expected, dtype=torch.float64), atol=5e-3, rtol=0)


def test_one_feature_in_numpy_has_the_same_similarities() -> None:
    metadata = vectors()
    kernel = prepared(metadata)
    expected = kernel.similarities(metadata).numpy()
    for line in (0, 7):
        np.testing.assert_allclose(kernel.similarities(metadata[line].numpy()), expected[line], atol=1e-5)


def test_categories_have_no_kernel() -> None:
    one_hot = torch.eye(5).repeat(4, 1)
    kernel = prepared(one_hot, (5,))
    assert kernel.groups(0) == ([], [])
    assert not kernel.terms(one_hot).any()


def test_landmarks_are_bounded() -> None:
    metadata = vectors(300)
    assert prepared(metadata).width == 2 * 256
    many = prepared(torch.rand(20, 27), (3,) * 9)
    assert many.width == 0
    assert many.terms(torch.rand(4, 27)).shape == (4, 0)


def test_kernels_that_are_not_chosen_are_not_computed() -> None:
    metadata = vectors()
    kernel, chosen = prepared(metadata), torch.zeros(2 * 30, 3)
    chosen[30:] = 1.0
    before = kernel.similarities(metadata)
    kernel.use(chosen)
    after = kernel.similarities(metadata)
    assert not after[:, :30].any()
    torch.testing.assert_close(after[:, 30:], before[:, 30:])
