r"""Upper bound of a model's L2 Lipschitz constant, propagated through its graph.

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

from buttress.analysis.methods.spectral_norms import (
    LayerCall,
    SpectralNorms,
    foldable_batchnorms,
    operator_norm,
    trace_layers,
)
from buttress.models import parameter_components
from buttress.models.eval_mode import eval_mode
from buttress.models.parts import CONVOLUTIONS

LOG_ZERO = -math.inf  # the logarithm of the constant of what does not depend on the image
UNIT_LIPSCHITZ_MODULES = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.Unflatten, nn.ReLU)
ACTIVATION_MODULES = (
    nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.ReLU6, nn.Hardtanh, nn.Hardsigmoid, nn.Mish,
)  # fmt: skip
AVERAGE_POOL_MODULES = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
# Functions by name: what only moves numbers or cuts some off, and curves of one number.
UNIT_LIPSCHITZ_FUNCTIONS = (
    "relu", "relu_", "dropout", "flatten", "unflatten", "reshape", "view", "permute", "transpose",
    "contiguous", "squeeze", "unsqueeze", "getitem", "chunk", "split", "unbind", "roll", "to",
    "float", "clone",
)  # fmt: skip
ACTIVATION_FUNCTIONS = (
    "gelu", "silu", "hardswish", "leaky_relu", "elu", "tanh", "sigmoid", "softplus", "relu6",
)  # fmt: skip


class NoLipschitzBound(Exception):
    """Why a model has no upper bound."""


def lipschitz_upper_bounds(
    model: nn.Module, x: Tensor, norms: SpectralNorms, outputs: Mapping[str, Tensor]
) -> tuple[dict[str, float], str]:
    """Natural logarithms of bounds from the image to the modules named, and to "" for the logits.

    ``outputs`` holds what each module gives for the first image, by which its place in the graph
    is found. Where an operation has no constant, what comes before it still has its bound; the
    text says why the rest has none, and is empty where all is bounded.
    """
    has_attention = "attention_qkv" in parameter_components(model).values()
    walk, reason = None, ""
    with eval_mode(model), torch.no_grad():
        try:
            walk = LipschitzInterpreter(trace_layers(model), norms, outputs)
            walk.run(x[:1])
        except NoLipschitzBound as error:
            reason = str(error)
        except Exception as error:  # a user's model may raise anything
            reason = f"the model cannot be traced ({type(error).__name__}: {_one_line(error)})"
    if reason and has_attention:
        reason = "attention multiplies activations with each other and has no Lipschitz constant"
    return ({} if walk is None else walk.bounds), reason


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


class LipschitzInterpreter(fx.Interpreter):
    """Run a graph and keep the logarithm of each node's Lipschitz constant."""

    def __init__(
        self, graph: fx.GraphModule, norms: SpectralNorms, outputs: Mapping[str, Tensor]
    ) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.extra_traceback = False  # it would be part of the reason given to the user
        self.norms, self.folded, self.outputs = norms, foldable_batchnorms(graph), outputs
        self.log_constants: dict[fx.Node, float] = {}
        self.bounds: dict[str, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.log_constants[n] = self._log_constant(n, value)
        for name in self._module_names(n) & set(self.outputs):
            # At once: a later operation may write into this very tensor.
            if isinstance(value, Tensor) and torch.equal(value, self.outputs[name][:1]):
                self.bounds[name] = self.log_constants[n]
        if n.op == "output":
            self.bounds[""] = self.log_constants[n]
        return value

    @staticmethod
    def _module_names(node: fx.Node) -> set[str]:
        """The modules whose output a node may be: itself, and those it is inside of."""
        own = {str(node.target)} if node.op == "call_module" else set()
        return own | {str(name) for name in node.meta.get("nn_module_stack", {})}

    def _log_constant(self, node: fx.Node, value: Any) -> float:
        if node.op == "placeholder":
            return 0.0
        moving = [a for a in node.all_input_nodes if self.log_constants[a] > LOG_ZERO]
        if not moving or not _is_feature(value):
            return LOG_ZERO
        if node.op == "output":
            return self.log_constants[moving[0]]
        if node.op == "call_module":
            return self._module_constant(node)
        return self._function_constant(node, value, moving)

    def _module_constant(self, node: fx.Node) -> float:
        source, name = node.args[0], str(node.target)
        module = self.module.get_submodule(name)
        assert isinstance(source, fx.Node)
        if isinstance(module, _BatchNorm) and source.op == "call_module":
            conv = str(source.target)
            if self.folded.get(conv, ("",))[0] == name:
                start = source.args[0]
                assert isinstance(start, fx.Node)
                layer = self.module.get_submodule(conv)
                call = LayerCall(conv, layer, tuple(self.env[start].shape[1:]))
                return self.log_constants[start] + _safe_log(self.norms.norm(call, module))
        return self.log_constants[source] + _safe_log(
            self._module_factor(name, module, self.env[source])
        )

    def _module_factor(self, name: str, module: nn.Module, source: Tensor) -> float:
        if isinstance(module, (nn.Linear, *CONVOLUTIONS, _BatchNorm)):
            return self.norms.norm(LayerCall(name, module, tuple(source.shape[1:])))
        if isinstance(module, UNIT_LIPSCHITZ_MODULES):
            return 1.0
        if isinstance(module, ACTIVATION_MODULES):
            return max_derivative(module)
        if isinstance(module, AVERAGE_POOL_MODULES):
            return operator_norm(module, source[:, :1])  # channels do not meet
        if isinstance(module, nn.MaxPool2d):
            return max_pool_constant(module.kernel_size, module.stride)
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            return normalization_constant(module.weight, module.eps)
        raise NoLipschitzBound(
            f"{name or 'the model'} ({type(module).__name__}) has no known Lipschitz constant"
        )

    def _function_constant(self, node: fx.Node, value: Any, moving: list[fx.Node]) -> float:
        name = node.target if isinstance(node.target, str) else node.target.__name__
        logs = [self.log_constants[a] for a in moving]
        if name in UNIT_LIPSCHITZ_FUNCTIONS:
            return logs[0]
        if name in ("add", "iadd", "sub", "isub") and not node.kwargs:
            return _log_sum(
                [
                    self.log_constants[a] + self._broadcast_log(a, value)
                    for a in _graph_nodes(node.args)
                ]
            )
        if (other := self._constant_operand(name, node)) is not None:
            return logs[0] + self._broadcast_log(moving[0], value) + self._scale_log(name, other)
        if name in ("cat", "stack"):
            return _log_sum([2 * self.log_constants[a] for a in _graph_nodes(node.args[0])]) / 2
        factor = self._elementwise_constant(name, node, value, self.env[moving[0]])
        if factor is None or len(moving) > 1:
            raise NoLipschitzBound(
                f"the operation {name} at {node.name} has no known Lipschitz constant"
            )
        return logs[0] + _safe_log(factor)

    def _elementwise_constant(
        self, name: str, node: fx.Node, value: Any, source: Tensor
    ) -> float | None:
        """The constants of functions of one activation; None where there is none."""
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if name == "mean":
            return math.sqrt(value.numel() / source.numel())
        if name in ACTIVATION_FUNCTIONS and callable(node.target):
            apply = node.target
            return max_derivative(lambda v: apply(v, *args[1:], **kwargs))
        if name == "pad" and kwargs.get("mode", "constant") == "constant" and len(args) < 3:
            return 1.0
        if name in ("avg_pool2d", "adaptive_avg_pool2d") and callable(node.target):
            pool = node.target
            return operator_norm(lambda v: pool(v, *args[1:], **kwargs), source[:, :1])
        if name == "layer_norm":
            return normalization_constant(*_normalization_args(args, kwargs, 2, 4))
        if name == "group_norm":
            return normalization_constant(*_normalization_args(args, kwargs, 2, 4))
        return None

    def _constant_operand(self, name: str, node: fx.Node) -> Any:
        """What an activation is multiplied with or divided by, if that is no activation too."""
        if name not in ("mul", "imul", "truediv") or len(node.args) != 2:
            return None
        fixed = [
            a for a in node.args if not isinstance(a, fx.Node) or self.log_constants[a] == LOG_ZERO
        ]
        if len(fixed) != 1 or (name == "truediv" and fixed[0] is node.args[0]):
            return None
        return fixed[0]

    def _scale_log(self, name: str, other: Any) -> float:
        """The logarithm of the largest factor that a constant multiplies or divides with."""
        operand = self.env[other] if isinstance(other, fx.Node) else other
        size = torch.as_tensor(operand).abs().double()
        return _safe_log(float((1 / size if name == "truediv" else size).max()))

    def _broadcast_log(self, node: fx.Node, value: Tensor) -> float:
        """What an operand gains by being repeated until it has the shape of the result."""
        value_of_node = self.env[node]
        if not isinstance(value_of_node, Tensor) or value_of_node.numel() == 0:
            return 0.0
        return math.log(max(1.0, value.numel() / value_of_node.numel())) / 2


def _normalization_args(
    rest: Any, kwargs: Any, weight: int, eps: int
) -> tuple[Tensor | None, float]:
    """Weight and eps of a call to a normalization function."""
    weight_value = kwargs.get("weight", rest[weight] if len(rest) > weight else None)
    return weight_value, float(kwargs.get("eps", rest[eps] if len(rest) > eps else 1e-5))


def normalization_constant(weight: Tensor | None, eps: float) -> float:
    r"""LayerNorm and GroupNorm: :math:`\max |\gamma| / \sqrt{eps}`, near constant inputs."""
    largest = 1.0 if weight is None else float(weight.detach().abs().max())
    return largest / math.sqrt(eps)


def max_pool_constant(kernel: Any, stride: Any) -> float:
    """A maximum over windows: the root of how many windows one input can be in."""
    sides = [v if isinstance(v, tuple) else (v, v) for v in (kernel, stride)]
    return math.sqrt(math.prod(-(-k // s) for k, s in zip(*sides, strict=True)))


def max_derivative(function: Any) -> float:
    """Largest derivative of a scalar function, searched on a fine grid."""
    with torch.enable_grad():
        points = torch.linspace(-30, 30, 60_001, dtype=torch.float64, requires_grad=True)
        (slopes,) = torch.autograd.grad(function(points * 1).sum(), points)
    return float(slopes.abs().max())


def _is_feature(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_is_feature(v) for v in value)
    return isinstance(value, Tensor) and value.is_floating_point()


def _graph_nodes(args: Any) -> list[fx.Node]:
    return [a for a in args if isinstance(a, fx.Node)]


def _log_sum(logs: list[float]) -> float:
    """The logarithm of a sum."""
    return float(torch.logsumexp(torch.tensor(logs, dtype=torch.float64), 0))


def _safe_log(value: float) -> float:
    return math.log(value) if value > 0 else LOG_ZERO
