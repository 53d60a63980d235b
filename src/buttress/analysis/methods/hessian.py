"""Gradient and Hessian of the mean loss with respect to weights, as products with flat vectors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from buttress.analysis.methods.weight_directions import filter_norms
from buttress.analysis.subject import AnalysisNotApplicable, ImageSample

GradientGraph = tuple[Tensor, ...]  # gradients that can be derived once more


class LossHessian:
    """The Hessian H of the mean loss at the weights as they are now; the model is not changed.

    With ``relative`` it is D H D, where D multiplies each weight by the length of its filter: the
    Hessian in units of filters. Rescaling a filter where the model undoes it changes nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        sample: ImageSample,
        weights: Mapping[str, nn.Parameter],
        *,
        relative: bool = False,
    ) -> None:
        self.model, self.sample = model, sample
        self.parameters = {n: p.detach().clone().requires_grad_(True) for n, p in weights.items()}
        self.filter_scales = [filter_norms(p) for p in weights.values()] if relative else None

    @property
    def size(self) -> int:
        return sum(leaf.numel() for leaf in self.parameters.values())

    def gradient(self) -> dict[str, Tensor]:
        """Of the mean loss, by the name of the parameter."""
        total = [torch.zeros_like(leaf) for leaf in self.parameters.values()]
        for loss in self._losses():
            for accumulated, part in zip(
                total, self._gradient(loss, create_graph=False), strict=True
            ):
                accumulated += part
        return dict(zip(self.parameters, total, strict=True))

    def hessian_vector_product(self, vector: Tensor) -> Tensor:
        parts = self._scale(self._split_vector(vector))
        total = [torch.zeros_like(part) for part in parts]
        with require_second_derivatives():
            for graph in self._gradient_graphs():
                for accumulated, part in zip(
                    total, self._vector_product(graph, parts), strict=True
                ):
                    accumulated += part
        return torch.cat([part.flatten() for part in self._scale(total)])

    def image_curvatures(self, vector: Tensor) -> Tensor:
        """(N,) v' H_i v of the Hessian H_i of each image's own loss; their mean is v' H v.

        To first order in the weights of the images this is what each one adds to an eigenvalue
        with the eigenvector v.
        """
        all_images, curvatures = self.sample, []
        try:
            for k in range(len(all_images)):
                self.sample = all_images.select(slice(k, k + 1))
                self.__dict__.pop("_single_graph", None)
                product = self.hessian_vector_product(vector)
                curvatures.append(float(vector.double() @ product.double()))
        finally:
            self.sample = all_images
            self.__dict__.pop("_single_graph", None)
        return torch.tensor(curvatures, dtype=torch.float64)

    def _losses(self) -> Iterator[Tensor]:
        """The share of each batch in the mean loss."""
        for x, y in self.sample.batches():
            with torch.enable_grad():
                logits = functional_call(self.model, self.parameters, (x,))
                yield F.cross_entropy(logits, y, reduction="sum") / len(self.sample)

    def _gradient_graphs(self) -> Iterator[GradientGraph]:
        """One for each batch. A single one serves all products; several would fill the memory."""
        if len(list(self.sample.batches())) == 1:
            yield self._single_graph
            return
        for loss in self._losses():
            yield self._gradient(loss, create_graph=True)

    @cached_property
    def _single_graph(self) -> GradientGraph:
        return self._gradient(next(self._losses()), create_graph=True)

    def _gradient(self, loss: Tensor, *, create_graph: bool) -> GradientGraph:
        if not loss.requires_grad:  # no weight here has a part in the output
            return tuple(torch.zeros_like(leaf) for leaf in self.parameters.values())
        leaves = list(self.parameters.values())
        return torch.autograd.grad(
            loss, leaves, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )

    def _vector_product(self, graph: GradientGraph, vectors: list[Tensor]) -> GradientGraph:
        differentiable = [(g, v) for g, v in zip(graph, vectors, strict=True) if g.requires_grad]
        leaves = list(self.parameters.values())
        if not differentiable:
            return tuple(torch.zeros_like(leaf) for leaf in leaves)
        return torch.autograd.grad(
            [g for g, _ in differentiable],
            leaves,
            grad_outputs=[v for _, v in differentiable],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )

    def _split_vector(self, vector: Tensor) -> list[Tensor]:
        leaves = list(self.parameters.values())
        pieces = vector.to(leaves[0]).split([leaf.numel() for leaf in leaves])
        return [piece.view_as(leaf) for piece, leaf in zip(pieces, leaves, strict=True)]

    def _scale(self, parts: list[Tensor]) -> list[Tensor]:
        if self.filter_scales is None:
            return parts
        return [part * unit for part, unit in zip(parts, self.filter_scales, strict=True)]


@contextlib.contextmanager
def require_second_derivatives() -> Iterator[None]:
    """Use plain attention, which has second derivatives; raise if an operation has none."""
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    except RuntimeError as error:
        if "not implemented" not in str(error) and "double backward" not in str(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise AnalysisNotApplicable(
            "the Hessian cannot be computed: an operation of the model has no second "
            f"derivative ({reason})"
        ) from None
