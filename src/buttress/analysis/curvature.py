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

from buttress.analysis.sample import Sample
from buttress.analysis.subject import DoesNotApply
from buttress.analysis.weights import filter_norms

Graph = tuple[Tensor, ...]  # gradients that can be derived once more


class Curvature:
    """The Hessian H of the mean loss at the weights as they are now; the model is not changed.

    With ``relative`` it is D H D, where D multiplies each weight by the length of its filter: the
    Hessian in units of filters. Rescaling a filter where the network undoes it changes nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        sample: Sample,
        weights: Mapping[str, nn.Parameter],
        *,
        relative: bool = False,
    ) -> None:
        self.model, self.sample = model, sample
        self.leaves = {n: p.detach().clone().requires_grad_(True) for n, p in weights.items()}
        self.units = [filter_norms(p) for p in weights.values()] if relative else None

    @property
    def size(self) -> int:
        return sum(leaf.numel() for leaf in self.leaves.values())

    def gradient(self) -> dict[str, Tensor]:
        """Of the mean loss, by the name of the parameter."""
        total = [torch.zeros_like(leaf) for leaf in self.leaves.values()]
        for loss in self._losses():
            for kept, part in zip(total, self._derive(loss, create_graph=False), strict=True):
                kept += part
        return dict(zip(self.leaves, total, strict=True))

    def product(self, vector: Tensor) -> Tensor:
        """The Hessian times a vector."""
        parts = self._scaled(self._split(vector))
        total = [torch.zeros_like(part) for part in parts]
        with second_derivatives():
            for graph in self._graphs():
                for kept, part in zip(total, self._again(graph, parts), strict=True):
                    kept += part
        return torch.cat([part.flatten() for part in self._scaled(total)])

    def _losses(self) -> Iterator[Tensor]:
        """The share of each batch in the mean loss."""
        for x, y in self.sample.batches():
            with torch.enable_grad():
                logits = functional_call(self.model, self.leaves, (x,))
                yield F.cross_entropy(logits, y, reduction="sum") / len(self.sample)

    def _graphs(self) -> Iterator[Graph]:
        """One for each batch. A single one serves all products; several would fill the memory."""
        if len(list(self.sample.batches())) == 1:
            yield self._only
            return
        for loss in self._losses():
            yield self._derive(loss, create_graph=True)

    @cached_property
    def _only(self) -> Graph:
        return self._derive(next(self._losses()), create_graph=True)

    def _derive(self, loss: Tensor, *, create_graph: bool) -> Graph:
        if not loss.requires_grad:  # no weight here has a part in the output
            return tuple(torch.zeros_like(leaf) for leaf in self.leaves.values())
        leaves = list(self.leaves.values())
        return torch.autograd.grad(
            loss, leaves, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )

    def _again(self, graph: Graph, vectors: list[Tensor]) -> Graph:
        bent = [(g, v) for g, v in zip(graph, vectors, strict=True) if g.requires_grad]
        leaves = list(self.leaves.values())
        if not bent:
            return tuple(torch.zeros_like(leaf) for leaf in leaves)
        return torch.autograd.grad(
            [g for g, _ in bent],
            leaves,
            grad_outputs=[v for _, v in bent],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )

    def _split(self, vector: Tensor) -> list[Tensor]:
        leaves = list(self.leaves.values())
        pieces = vector.to(leaves[0]).split([leaf.numel() for leaf in leaves])
        return [piece.view_as(leaf) for piece, leaf in zip(pieces, leaves, strict=True)]

    def _scaled(self, parts: list[Tensor]) -> list[Tensor]:
        if self.units is None:
            return parts
        return [part * unit for part, unit in zip(parts, self.units, strict=True)]


@contextlib.contextmanager
def second_derivatives() -> Iterator[None]:
    """Fused attention has no second derivative; its plain form does. Who has none is told so."""
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    except RuntimeError as error:
        if "not implemented" not in str(error) and "double backward" not in str(error):
            raise
        why = str(error).strip().splitlines()[0]
        raise DoesNotApply(f"an operation of the network has no second derivative: {why}") from None
