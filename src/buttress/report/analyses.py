"""Analysis files -> frozen results. A file of another form is named, never a crash."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from buttress.records.diagnosis import Diagnosis

PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Component:
    name: str
    ratio: float
    weights: int


@dataclass(frozen=True)
class Sparsity:
    """Share of weights smaller than ``threshold`` times the largest, and their histogram."""

    threshold: float
    largest: float
    ratio: float
    weights: int
    components: tuple[Component, ...]
    edges: tuple[float, ...]  # (n + 1,)
    counts: Mapping[str, tuple[int, ...]]  # component -> (n,)


@dataclass(frozen=True)
class Curve:
    """Accuracy as the adversary is allowed more."""

    attack: str
    norm: str
    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    images: int


@dataclass(frozen=True)
class Example:
    """One image before and after the attack; the pictures are base64 PNG."""

    id: str
    label: str
    clean_prediction: str
    adversarial_prediction: str
    clean_confidence: float
    adversarial_confidence: float
    distance: float
    clean: str
    perturbation: str
    adversarial: str

    @property
    def held(self) -> bool:
        return self.adversarial_prediction == self.label


@dataclass(frozen=True)
class Gallery:
    attack: str
    threat: str
    examples: tuple[Example, ...]


Analysis = Sparsity | Curve | Gallery | Diagnosis


def parse_analysis(content: Mapping[str, Any]) -> Analysis | None:
    """The result in a file, None for an analysis without a figure here.

    Raises:
        ValueError: the file does not have the form of its analysis.
    """
    readers: dict[str, Callable[[Mapping[str, Any]], Analysis]] = {
        "sparsity": parse_sparsity,
        "curve": parse_curve,
        "gallery": parse_gallery,
        "doctor": Diagnosis.model_validate,
    }
    reader = readers.get(str(content.get("analysis")))
    if reader is None:
        return None
    try:
        return reader(content["result"])
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"it does not have the form this version reads: {error!r}") from None


def parse_sparsity(result: Mapping[str, Any]) -> Sparsity:
    parts = result["components"]
    edges = floats(result["edges"])
    counts = {str(k): tuple(int(c) for c in v) for k, v in result["counts"].items()}
    if any(count < 0 for row in counts.values() for count in row):
        raise ValueError("its histogram counts less than nothing")
    if len(edges) < 2 or any(len(c) != len(edges) - 1 for c in counts.values()):
        raise ValueError("its histogram does not have one count between two edges")
    return Sparsity(
        threshold=float(result["threshold"]),
        largest=float(result["largest"]),
        ratio=float(result["ratio"]),
        weights=int(result["weights"]),
        components=tuple(
            Component(str(p["component"]), float(p["ratio"]), int(p["weights"])) for p in parts
        ),
        edges=edges,
        counts=counts,
    )


def parse_curve(result: Mapping[str, Any]) -> Curve:
    eps, accuracy = floats(result["eps"]), floats(result["accuracy"])
    low, high = floats(result["low"]), floats(result["high"])
    if not eps or len({len(eps), len(accuracy), len(low), len(high)}) != 1:
        raise ValueError("its eps, accuracy, low and high differ in length")
    attack, norm = str(result["attack"]), str(result["norm"])
    return Curve(attack, norm, eps, accuracy, low, high, int(result["images"]))


def parse_gallery(result: Mapping[str, Any]) -> Gallery:
    classes = [str(c) for c in result.get("classes", [])]
    examples = tuple(parse_example(e, classes) for e in result["examples"])
    return Gallery(str(result["attack"]), str(result.get("threat", "")), examples)


def parse_example(raw: Mapping[str, Any], classes: list[str]) -> Example:
    return Example(
        id=str(raw["id"]),
        label=class_name(raw["label"], classes),
        clean_prediction=class_name(raw["clean_prediction"], classes),
        adversarial_prediction=class_name(raw["adversarial_prediction"], classes),
        clean_confidence=float(raw["clean_confidence"]),
        adversarial_confidence=float(raw["adversarial_confidence"]),
        distance=float(raw["distance"]),
        clean=png(raw["clean"]),
        perturbation=png(raw["perturbation"]),
        adversarial=png(raw["adversarial"]),
    )


def class_name(index: int | str, classes: list[str]) -> str:
    """The name of a class; its number where there is no name."""
    known = isinstance(index, int) and 0 <= index < len(classes)
    return classes[int(index)] if known else str(index)


def png(text: str) -> str:
    """``text`` if it is a base64 PNG: nothing else may enter a data address."""
    try:
        is_png = base64.b64decode(text, validate=True).startswith(PNG)
    except binascii.Error:
        is_png = False
    if not is_png:
        raise ValueError("a picture in it is not a base64 PNG")
    return text


def floats(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
