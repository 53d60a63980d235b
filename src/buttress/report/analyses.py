"""Read analysis files; an invalid file raises `ValueError` with the reason."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buttress.errors import ButtressError
from buttress.results.core import read_record_json
from buttress.results.diagnosis import Diagnosis

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class SparsityComponent:
    name: str
    sparsity: float
    weights: int


@dataclass(frozen=True)
class SparsityView:
    """Fraction of weights smaller than ``threshold`` times the largest, and their histogram."""

    threshold: float
    largest_weight: float  # that the threshold is relative to
    sparsity: float
    weights: int
    components: tuple[SparsityComponent, ...]
    edges: tuple[float, ...]  # (n + 1,)
    counts: Mapping[str, tuple[int, ...]]  # component -> (n,)


@dataclass(frozen=True)
class EpsCurveResult:
    """Accuracy against eps."""

    attack: str
    norm: str
    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    images: int


@dataclass(frozen=True)
class GalleryExampleView:
    """One image before and after the attack; the pictures are base64 PNG."""

    id: str
    label: str
    clean_prediction: str
    adversarial_prediction: str
    clean_confidence: float
    adversarial_confidence: float
    perturbation_size: float
    clean: str
    perturbation: str
    adversarial: str

    @property
    def is_robust(self) -> bool:
        return self.adversarial_prediction == self.label


@dataclass(frozen=True)
class GalleryView:
    attack: str
    threat: str
    examples: tuple[GalleryExampleView, ...]


AnalysisResult = SparsityView | EpsCurveResult | GalleryView | Diagnosis


def parse_analysis(content: Mapping[str, Any]) -> AnalysisResult | None:
    """The result in a file, None for an analysis without a figure here.

    Raises:
        ValueError: the file does not have the form of its analysis.
    """
    readers: dict[str, Callable[[Mapping[str, Any]], AnalysisResult]] = {
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
        raise ValueError(f"unexpected content: {error!r}") from None


def parse_sparsity(result: Mapping[str, Any]) -> SparsityView:
    parts = result["components"]
    edges = to_floats(result["edges"])
    counts = {str(k): tuple(int(c) for c in v) for k, v in result["counts"].items()}
    if any(count < 0 for row in counts.values() for count in row):
        raise ValueError("histogram counts must be >= 0")
    if len(edges) < 2 or any(len(c) != len(edges) - 1 for c in counts.values()):
        raise ValueError("a histogram needs one count per bin")
    return SparsityView(
        threshold=float(result["threshold"]),
        largest_weight=float(result["largest_weight"]),
        sparsity=float(result["sparsity"]),
        weights=int(result["weights"]),
        components=tuple(
            SparsityComponent(str(p["component"]), float(p["sparsity"]), int(p["weights"]))
            for p in parts
        ),
        edges=edges,
        counts=counts,
    )


def parse_curve(result: Mapping[str, Any]) -> EpsCurveResult:
    eps, accuracy = to_floats(result["eps"]), to_floats(result["accuracy"])
    low, high = to_floats(result["low"]), to_floats(result["high"])
    if not eps or len({len(eps), len(accuracy), len(low), len(high)}) != 1:
        raise ValueError("eps, accuracy, low and high must have the same length")
    attack, norm = str(result["attack"]), str(result["norm"])
    return EpsCurveResult(attack, norm, eps, accuracy, low, high, int(result["images"]))


def parse_gallery(result: Mapping[str, Any]) -> GalleryView:
    classes = [str(c) for c in result.get("classes", [])]
    examples = tuple(parse_example(e, classes) for e in result["examples"])
    return GalleryView(str(result["attack"]), str(result.get("threat", "")), examples)


def parse_example(raw: Mapping[str, Any], classes: list[str]) -> GalleryExampleView:
    return GalleryExampleView(
        id=str(raw["id"]),
        label=class_name(raw["label"], classes),
        clean_prediction=class_name(raw["clean_prediction"], classes),
        adversarial_prediction=class_name(raw["adversarial_prediction"], classes),
        clean_confidence=float(raw["clean_confidence"]),
        adversarial_confidence=float(raw["adversarial_confidence"]),
        perturbation_size=float(raw["distance"]),
        clean=validate_png(raw["clean"]),
        perturbation=validate_png(raw["perturbation"]),
        adversarial=validate_png(raw["adversarial"]),
    )


def class_name(index: int | str, classes: list[str]) -> str:
    """The name of a class; its number where there is no name."""
    has_name = isinstance(index, int) and 0 <= index < len(classes)
    return classes[int(index)] if has_name else str(index)


def validate_png(text: str) -> str:
    """``text`` if it is a base64 PNG: nothing else may enter a data address."""
    try:
        is_png = base64.b64decode(text, validate=True).startswith(PNG_SIGNATURE)
    except binascii.Error:
        is_png = False
    if not is_png:
        raise ValueError("images must be base64-encoded PNG")
    return text


def to_floats(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


MAX_SVG_BYTES = 4_000_000  # bytes; a larger drawing would make the page slow to open


@dataclass(frozen=True)
class AnalysisPicture:
    """One analysis: its sentence, its figure as a data URL if it has one, or why it has none."""

    name: str
    summary: str = ""  # caption and alternative text
    data_uri: str = ""
    reason: str = ""  # why it does not apply

    @property
    def alt_text(self) -> str:
        return self.summary or f"Figure of the analysis {self.name}"


def read_picture(file: Path) -> AnalysisPicture | None:
    """What ``NAME.json`` says, with ``NAME.svg`` beside it; None if the file cannot be read."""
    try:
        content = read_record_json(file)
    except (ButtressError, OSError):
        return None
    name = str(content.get("analysis") or file.stem)
    if reason := content.get("does_not_apply"):
        return AnalysisPicture(name, reason=str(reason))
    summary = str(content.get("summary") or "")
    return AnalysisPicture(name, summary, svg_data_uri(file.with_suffix(".svg")))


def read_pictures(files: Iterable[Path]) -> tuple[AnalysisPicture, ...]:
    return tuple(picture for f in files if (picture := read_picture(f)) is not None)


def svg_data_uri(path: Path) -> str:
    """An SVG file as a data address; empty if there is none that can be shown.

    A browser runs no script and follows no link of a drawing that is shown as an image.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    if len(content) > MAX_SVG_BYTES or b"<svg" not in content[:2000]:
        return ""
    return f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"
