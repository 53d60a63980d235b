"""Read analysis files; an invalid file raises `ValueError` with the reason."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
    model_validator,
)

from buttress.errors import ButtressError
from buttress.results.core import read_record_json
from buttress.results.diagnosis import Diagnosis

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def validate_png(text: str) -> str:
    """``text`` if it is a base64 PNG: nothing else may enter a data address."""
    try:
        is_png = base64.b64decode(text, validate=True).startswith(PNG_SIGNATURE)
    except binascii.Error:
        is_png = False
    if not is_png:
        raise ValueError("images must be base64-encoded PNG")
    return text


Png = Annotated[str, AfterValidator(validate_png)]


class AnalysisView(BaseModel):
    """What pages show of a result; other fields of its file are not read."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)


class SparsityComponent(AnalysisView):
    component: str
    sparsity: float
    weights: int


class SparsityView(AnalysisView):
    """Fraction of weights smaller than ``threshold`` times the largest, and their histogram."""

    threshold: float
    largest_weight: float  # that the threshold is relative to
    sparsity: float
    weights: int
    components: tuple[SparsityComponent, ...]
    edges: tuple[float, ...] = Field(min_length=2)  # (n + 1,)
    counts: dict[str, tuple[NonNegativeInt, ...]]  # component -> (n,)

    @model_validator(mode="after")
    def _check_bins(self) -> SparsityView:
        if any(len(counts) != len(self.edges) - 1 for counts in self.counts.values()):
            raise ValueError("a histogram needs one count per bin")
        return self


class EpsCurveResult(AnalysisView):
    """Accuracy against eps."""

    attack: str
    norm: str
    eps: tuple[float, ...] = Field(min_length=1)
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    images: int

    @model_validator(mode="after")
    def _check_lengths(self) -> EpsCurveResult:
        if len({len(self.eps), len(self.accuracy), len(self.low), len(self.high)}) != 1:
            raise ValueError("eps, accuracy, low and high must have the same length")
        return self


class GalleryExampleView(AnalysisView):
    """One image before and after the attack; the pictures are base64 PNG."""

    id: str
    label: str
    clean_prediction: str
    adversarial_prediction: str
    clean_confidence: float
    adversarial_confidence: float
    perturbation_size: float = Field(alias="distance")
    clean: Png
    perturbation: Png
    adversarial: Png

    @property
    def is_robust(self) -> bool:
        return self.adversarial_prediction == self.label


class GalleryView(AnalysisView):
    attack: str
    threat: str = ""
    examples: tuple[GalleryExampleView, ...]

    @model_validator(mode="before")
    @classmethod
    def _name_classes(cls, result: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the numbers of classes by their names, where they have one."""
        names = dict(enumerate(result.get("classes", [])))
        keys = ("label", "clean_prediction", "adversarial_prediction")
        examples = [{**e, **{k: names.get(e[k], e[k]) for k in keys}} for e in result["examples"]]
        return {**result, "examples": examples}


AnalysisResult = SparsityView | EpsCurveResult | GalleryView | Diagnosis
VIEWS: dict[str, type[AnalysisResult]] = {
    "sparsity": SparsityView,
    "curve": EpsCurveResult,
    "gallery": GalleryView,
    "doctor": Diagnosis,
}


def parse_analysis(content: Mapping[str, Any]) -> AnalysisResult | None:
    """The result in a file, None for an analysis without a figure here.

    Raises:
        ValueError: the file does not have the form of its analysis.
    """
    view = VIEWS.get(str(content.get("analysis")))
    if view is None:
        return None
    try:
        return view.model_validate(content["result"])
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"unexpected content: {error!r}") from None


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
