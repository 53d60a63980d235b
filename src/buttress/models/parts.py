"""Blocks and parameter components of a model, by the same rules for every family.

The rules read module types and the names that timm and most code use. A family they do not fit
states its own in its registration: ``components`` maps a regular expression over parameter names
to a component, ``blocks`` is a regular expression over module names with a group ``stage``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from torch import nn

from buttress.models.core import Classifier, find_model, is_known

Component = Literal[
    "convolution",
    "attention_qkv",
    "attention_output",
    "feed_forward",
    "head",
    "stem",
    "norm",
    "other",
]

HEAD_NAMES = re.compile(r"(head|heads|fc|classifier|head_dist|mlp_head)")
STEM_NAMES = re.compile(r"(stem|patch_embed|conv1|conv_stem|tokenizer|to_patch_embedding)")
ATTENTION_NAMES = re.compile(r"\w*(attn|attention|mhsa)\w*")
QKV_NAMES = re.compile(
    r"(to_)?(qkv|qk|kv|q|k|v|query|key|value)(_proj|_bias)?|in_proj(_weight|_bias)?"
)
OUTPUT_NAMES = re.compile(r"(proj|to_out|out_proj|o_proj|out|projection)")
FEED_FORWARD_NAMES = re.compile(r"(mlp|ffn|ff|feed_forward|leff)\w*")
NORM_NAMES = re.compile(r"\w*norm(act)?([123]d?)?", re.IGNORECASE)

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

# Where blocks are, most specific layout first; the first that occurs in a network holds.
BLOCK_PATTERNS = (
    r"layer(?P<stage>\d+)\.\d+",
    r"(stages|layers)\.(?P<stage>\d+)\.blocks\.\d+",
    r"(stages|layers|blocks)\.(?P<stage>\d+)\.\d+",
    r"features\.denseblock(?P<stage>\d+)\.denselayer\d+",
    r"(blocks|layers|cells|stages)\.\d+",
)


class NetworkBlock(NamedTuple):
    """A block of a model: a module whose output analyses may hook."""

    name: str
    module: nn.Module
    stage: int


def parameter_components(model: nn.Module) -> dict[str, Component]:
    """Map each parameter to its component of the model; a bias belongs to its weight."""
    family_rules: Mapping[str, Component] = _family_metadata(model).get("components", {})
    modules = dict(model.named_modules())
    root = _network_prefix(model)
    components: dict[str, Component] = {}
    for name, _ in model.named_parameters():
        inner = name.removeprefix(root)
        matches = [
            component for pattern, component in family_rules.items() if re.fullmatch(pattern, inner)
        ]
        components[name] = matches[0] if matches else _classify_parameter(inner, modules, root)
    return components


def network_blocks(model: nn.Module) -> list[NetworkBlock]:
    """The blocks of a model in order; without a known layout, its children with parameters."""
    root = _network_prefix(model)
    net = model.get_submodule(root.rstrip(".")) if root else model
    modules = dict(net.named_modules())
    family_pattern = _family_metadata(model).get("blocks")
    for layout in (family_pattern,) if family_pattern else BLOCK_PATTERNS:
        matches = [(n, m) for n in modules if (m := re.fullmatch(layout, n))]
        if matches:
            labels = [m.groupdict().get("stage", "") for _, m in matches]
            stages = {label: i for i, label in enumerate(dict.fromkeys(labels))}
            return [
                NetworkBlock(root + name, modules[name], stages[label])
                for (name, _), label in zip(matches, labels, strict=True)
            ]
    trainable = [(n, m) for n, m in net.named_children() if any(True for _ in m.parameters())]
    return [NetworkBlock(root + name, module, 0) for name, module in trainable]


def _network_prefix(model: nn.Module) -> str:
    """The prefix of the network's own names inside a model."""
    return "net." if isinstance(model, Classifier) else ""


def _family_metadata(model: nn.Module) -> Mapping[str, Any]:
    """What the family registered about itself, if it is one of ours."""
    if not isinstance(model, Classifier):
        return {}
    return find_model(model.name).metadata if is_known(model.name) else {}


def _classify_parameter(name: str, modules: Mapping[str, nn.Module], root: str) -> Component:
    """The component of a parameter by the module that owns it and the modules around that."""
    path = name.split(".")
    owners = [modules[root + ".".join(path[:depth])] for depth in range(1, len(path))]
    owner = owners[-1] if owners else None
    if owner is not None and NORM_NAMES.fullmatch(type(owner).__name__):
        return "norm"
    if (start := _attention_depth(path, owners)) is not None:
        return _classify_in_attention(path[start + 1 :], owner)
    if HEAD_NAMES.fullmatch(path[0]) and owners:
        return "head"
    if STEM_NAMES.fullmatch(path[0]) and owners:
        return "stem"
    if any(FEED_FORWARD_NAMES.fullmatch(part.lower()) for part in path[:-1]):
        return "convolution" if _is_spatial(owner) else "feed_forward"
    return "convolution" if isinstance(owner, CONVOLUTIONS) else "other"


def _attention_depth(path: list[str], owners: list[nn.Module]) -> int | None:
    """The depth of the innermost attention module around a parameter."""
    for depth in reversed(range(len(owners))):
        names = (path[depth].lower(), type(owners[depth]).__name__.lower())
        is_layer = isinstance(owners[depth], (nn.Linear, *CONVOLUTIONS))
        if not is_layer and any(ATTENTION_NAMES.fullmatch(name) for name in names):
            return depth
    return None


def _classify_in_attention(below: list[str], owner: nn.Module | None) -> Component:
    for part in below:
        if QKV_NAMES.fullmatch(part.lower()):
            return "attention_qkv"
        if OUTPUT_NAMES.fullmatch(part.lower()):
            return "attention_output"
    return "convolution" if isinstance(owner, CONVOLUTIONS) else "other"


def _is_spatial(module: nn.Module | None) -> bool:
    return isinstance(module, CONVOLUTIONS) and any(size > 1 for size in module.kernel_size)
