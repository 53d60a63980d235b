r"""An upper bound of a network's Lipschitz constant in L2, followed through its graph.

Layer after layer constants multiply; where branches are added they add, where they are joined
the squares add: :math:`L(f + g) \le L(f) + L(g)`, :math:`L([f, g]) \le \sqrt{L(f)^2 + L(g)^2}`. So
the bound also holds for residual and dense connections, where the plain product of layer norms is
none. An operation that has no constant ends it: a product of two activations, as in attention
(Kim et al., "The Lipschitz Constant of Self-Attention", arXiv:2006.04710).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from buttress.analysis.spectral import Call, Norms, folded_of, operator_norm, traced
from buttress.attacks.freeze import frozen
from buttress.models import component_of
from buttress.models.parts import CONVOLUTIONS

NONE = -math.inf  # the logarithm of the constant of what does not depend on the image
SAME = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.Unflatten, nn.ReLU)
CURVES = (
    nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.ReLU6, nn.Hardtanh, nn.Hardsigmoid, nn.Mish,
)  # fmt: skip
MEANS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
# Functions by name: what only moves numbers or cuts some off, and curves of one number.
MOVES = (
    "relu", "relu_", "dropout", "flatten", "unflatten", "reshape", "view", "permute", "transpose",
    "contiguous", "squeeze", "unsqueeze", "getitem", "chunk", "split", "unbind", "roll", "to",
    "float", "clone",
)  # fmt: skip
CURVE_NAMES = (
    "gelu", "silu", "hardswish", "leaky_relu", "elu", "tanh", "sigmoid", "softplus", "relu6",
)  # fmt: skip


class NoBound(Exception):
    """Why a network has no bound here."""


def upper_bounds(
    model: nn.Module, x: Tensor, norms: Norms, outputs: Mapping[str, Tensor]
) -> tuple[dict[str, float], str]:
    """Natural logarithms of bounds from the image to the modules named, and to "" for the logits.

    ``outputs`` holds what each module gives for the first image, by which its place in the graph
    is found. Where an operation has no constant, what comes before it still has its bound; the
    text says why the rest has none, and is empty where all is bounded.
    """
    has_attention = "attention_qkv" in component_of(model).values()
    walk, reason = None, ""
    with frozen(model), torch.no_grad():
        try:
            walk = Walk(traced(model), norms, outputs)
            walk.run(x[:1])
        except NoBound as error:
            reason = str(error)
        except Exception as error:  # any user's network may refuse in its own way
            reason = f"the network cannot be traced ({type(error).__name__}: {_line(error)})"
    if reason and has_attention:
        reason = "attention multiplies activations with each other and has no Lipschitz constant"
    return ({} if walk is None else walk.found), reason


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


class Walk(fx.Interpreter):
    """Runs a graph and keeps the logarithm of each node's constant beside its value."""

    def __init__(self, graph: fx.GraphModule, norms: Norms, outputs: Mapping[str, Tensor]) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.extra_traceback = False  # it would be part of the reason given to the user
        self.norms, self.folded, self.outputs = norms, folded_of(graph), outputs
        self.logs: dict[fx.Node, float] = {}
        self.found: dict[str, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.logs[n] = self._constant(n, value)
        for name in self._places(n) & set(self.outputs):
            # At once: a later operation may write into this very tensor.
            if isinstance(value, Tensor) and torch.equal(value, self.outputs[name][:1]):
                self.found[name] = self.logs[n]
        if n.op == "output":
            self.found[""] = self.logs[n]
        return value

    @staticmethod
    def _places(node: fx.Node) -> set[str]:
        """The modules whose output a node may be: itself, and those it is inside of."""
        own = {str(node.target)} if node.op == "call_module" else set()
        return own | {str(name) for name in node.meta.get("nn_module_stack", {})}

    def _constant(self, node: fx.Node, value: Any) -> float:
        if node.op == "placeholder":
            return 0.0
        moving = [a for a in node.all_input_nodes if self.logs[a] > NONE]
        if not moving or not _is_feature(value):
            return NONE
        if node.op == "output":
            return self.logs[moving[0]]
        if node.op == "call_module":
            return self._of_module(node)
        return self._of_function(node, value, moving)

    def _of_module(self, node: fx.Node) -> float:
        source, name = node.args[0], str(node.target)
        module = self.module.get_submodule(name)
        assert isinstance(source, fx.Node)
        if isinstance(module, _BatchNorm) and source.op == "call_module":
            conv = str(source.target)
            if self.folded.get(conv, ("",))[0] == name:
                start = source.args[0]
                assert isinstance(start, fx.Node)
                layer = self.module.get_submodule(conv)
                call = Call(conv, layer, tuple(self.env[start].shape[1:]))
                return self.logs[start] + _log(self.norms.of(call, module))
        return self.logs[source] + _log(self._factor(name, module, self.env[source]))

    def _factor(self, name: str, module: nn.Module, source: Tensor) -> float:
        if isinstance(module, (nn.Linear, *CONVOLUTIONS, _BatchNorm)):
            return self.norms.of(Call(name, module, tuple(source.shape[1:])))
        if isinstance(module, SAME):
            return 1.0
        if isinstance(module, CURVES):
            return steepest_slope(module)
        if isinstance(module, MEANS):
            return operator_norm(module, source[:, :1])  # channels do not meet
        if isinstance(module, nn.MaxPool2d):
            return overlap(module.kernel_size, module.stride)
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            return normalisation(module.weight, module.eps)
        raise NoBound(f"{name or 'the network'} ({type(module).__name__}) has no known constant")

    def _of_function(self, node: fx.Node, value: Any, moving: list[fx.Node]) -> float:
        name = node.target if isinstance(node.target, str) else node.target.__name__
        logs = [self.logs[a] for a in moving]
        if name in MOVES:
            return logs[0]
        if name in ("add", "iadd", "sub", "isub") and not node.kwargs:
            return _add([self.logs[a] + self._spread(a, value) for a in _nodes(node.args)])
        if (other := self._constant_side(name, node)) is not None:
            return logs[0] + self._spread(moving[0], value) + self._multiple(name, other)
        if name in ("cat", "stack"):
            return _add([2 * self.logs[a] for a in _nodes(node.args[0])]) / 2
        factor = self._simple(name, node, value, self.env[moving[0]])
        if factor is None or len(moving) > 1:
            raise NoBound(f"the operation {name} at {node.name} has no known constant")
        return logs[0] + _log(factor)

    def _simple(self, name: str, node: fx.Node, value: Any, source: Tensor) -> float | None:
        """The constants of functions of one activation; None where there is none."""
        rest, given = self.fetch_args_kwargs_from_env(node)
        if name == "mean":
            return math.sqrt(value.numel() / source.numel())
        if name in CURVE_NAMES and callable(node.target):
            apply = node.target
            return steepest_slope(lambda v: apply(v, *rest[1:], **given))
        if name == "pad" and given.get("mode", "constant") == "constant" and len(rest) < 3:
            return 1.0
        if name in ("avg_pool2d", "adaptive_avg_pool2d") and callable(node.target):
            pool = node.target
            return operator_norm(lambda v: pool(v, *rest[1:], **given), source[:, :1])
        if name == "layer_norm":
            return normalisation(*_affine(rest, given, 2, 4))
        if name == "group_norm":
            return normalisation(*_affine(rest, given, 2, 4))
        return None

    def _constant_side(self, name: str, node: fx.Node) -> Any:
        """What an activation is multiplied with or divided by, if that is no activation too."""
        if name not in ("mul", "imul", "truediv") or len(node.args) != 2:
            return None
        fixed = [a for a in node.args if not isinstance(a, fx.Node) or self.logs[a] == NONE]
        if len(fixed) != 1 or (name == "truediv" and fixed[0] is node.args[0]):
            return None
        return fixed[0]

    def _multiple(self, name: str, other: Any) -> float:
        """The logarithm of the largest factor that a constant multiplies or divides with."""
        known = self.env[other] if isinstance(other, fx.Node) else other
        size = torch.as_tensor(known).abs().double()
        return _log(float((1 / size if name == "truediv" else size).max()))

    def _spread(self, node: fx.Node, value: Tensor) -> float:
        """What an operand gains by being repeated until it has the shape of the result."""
        own = self.env[node]
        if not isinstance(own, Tensor) or own.numel() == 0:
            return 0.0
        return math.log(max(1.0, value.numel() / own.numel())) / 2


def _affine(rest: Any, given: Any, weight: int, eps: int) -> tuple[Tensor | None, float]:
    """Weight and eps of a call to a normalisation function."""
    found = given.get("weight", rest[weight] if len(rest) > weight else None)
    return found, float(given.get("eps", rest[eps] if len(rest) > eps else 1e-5))


def normalisation(weight: Tensor | None, eps: float) -> float:
    r"""LayerNorm and GroupNorm: :math:`\max |\gamma| / \sqrt{eps}`, near constant inputs."""
    largest = 1.0 if weight is None else float(weight.detach().abs().max())
    return largest / math.sqrt(eps)


def overlap(kernel: Any, stride: Any) -> float:
    """A maximum over windows: the root of how many windows one input can be in."""
    sides = [v if isinstance(v, tuple) else (v, v) for v in (kernel, stride)]
    return math.sqrt(math.prod(-(-k // s) for k, s in zip(*sides, strict=True)))


def steepest_slope(curve: Any) -> float:
    """The largest slope of a function of one number, looked for on a fine grid."""
    with torch.enable_grad():
        points = torch.linspace(-30, 30, 60_001, dtype=torch.float64, requires_grad=True)
        (slopes,) = torch.autograd.grad(curve(points * 1).sum(), points)
    return float(slopes.abs().max())


def _is_feature(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_is_feature(v) for v in value)
    return isinstance(value, Tensor) and value.is_floating_point()


def _nodes(args: Any) -> list[fx.Node]:
    return [a for a in args if isinstance(a, fx.Node)]


def _add(logs: list[float]) -> float:
    """The logarithm of a sum."""
    return float(torch.logsumexp(torch.tensor(logs, dtype=torch.float64), 0))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else NONE
