"""Made-up runs, written with the real writers."""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from buttress.config import ComponentSpec
from buttress.report import write_report
from buttress.results.attack_record import AttackRecord, write_attack_record
from buttress.results.core import write_record_json
from buttress.results.run import Run
from buttress.results.run_spec import OptimizerSpec, Recipe, RunSpec
from buttress.results.study_result import (
    ClaimResult,
    RankAgreement,
    StudyFigure,
    StudyResult,
    StudyTableRow,
    TableValue,
)

CLASSES = [f"class {c}" for c in range(5)]
SUITE = {
    "clean": ("clean", "", {}),
    "pgd-linf": ("pgd", "Linf:0.1", {"steps": 20}),
    "pgd-l2": ("pgd", "L2:1", {"steps": 20}),
    "pgd-l1": ("pgd", "L1:12", {"steps": 50}),
}

# Ten images. Under pgd-linf and pgd-l2 the robust model loses different ones: 6/10 survive each,
# but only 4/10 both, so that the minimum of means (0.6) is not the mean of minima (0.4).
ROBUST = {
    "clean": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
    "pgd-linf": [1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
    "pgd-l2": [1, 1, 1, 1, 0, 0, 1, 1, 0, 0],
}
# A better minimum of means (0.7), but a worse mean of minima (0.3).
SECOND = {
    "clean": [1] * 10,
    "pgd-linf": [1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "pgd-l2": [0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
}
STANDARD = {"clean": [1] * 10, "pgd-linf": [0] * 10, "pgd-l2": [1, *[0] * 9]}


def make_spec(model: str = "vit_tiny", objective: str = "pgd_at", seed: int = 0) -> RunSpec:
    return RunSpec(
        model=model,
        dataset="digits",
        num_classes=5,
        image_size=8,
        in_channels=1,
        mean=(0.5,),
        std=(0.25,),
        seed=seed,
        recipe=Recipe(
            name=f"small-{objective}",
            epochs=3,
            objective=ComponentSpec(name=objective),
            threat=None if objective == "standard" else "Linf:0.1",
            optimizer=OptimizerSpec(lr=0.1),
        ),
    )


def make_run(
    folder: Path,
    spec: RunSpec | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    category: str = "",
    done: bool = True,
    history: list[dict[str, Any]] | None = None,
    warnings: Mapping[str, list[str]] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> Run:
    """A run with one record per entry of ``flags``: attack -> right or wrong per image."""
    run = Run(folder)
    run.open(spec or make_spec(), "buttress train --made-up", category, origin)
    run.write_history(history or [epoch(e) for e in range(1, 4)])
    for name, correct in (flags or {}).items():
        write_flags(run, name, correct, warnings=(warnings or {}).get(name, []))
    if done:
        run.finish({"epochs": 3, "best_epoch": 2, "best_val_robust": 0.5, "seconds": 12.5})
    return run


def epoch(e: int) -> dict[str, Any]:
    return {
        "epoch": e,
        "lr": 0.1 / e,
        "loss": 2.0 / e,
        "train_accuracy": 0.2 * e,
        "val_clean": 0.25 * e,
        "val_robust": 0.15 * e if e != 2 else None,
        "seconds": 4.0,
        "best": e == 3,
    }


def write_flags(
    run: Run,
    name: str,
    correct: Any,
    *,
    suite: str = "quick",
    warnings: list[str] | None = None,
    **changes: Any,
) -> Path:
    flags = np.asarray(correct, dtype=bool)
    n = len(flags)
    attack, threat, args = SUITE.get(name, ("pgd", "Linf:0.2", {"steps": 5}))
    labels = np.arange(n) % len(CLASSES)
    made = {
        "attack": attack,
        "args": args,
        "threat": threat,
        "suite_position": list(SUITE).index(name) if name in SUITE else 9,
        "seed": 0,
        "dataset": "digits",
        "split": "test",
        "class_names": CLASSES,
        "weights_digest": "abc",
        "checkpoint": "best",
        "forward_passes": 21.0 if threat else 1.0,
        "backward_passes": 20.0 if threat else 0.0,
        "seconds": 3.25,
        "suite": suite,
        "warnings": warnings or [],
        "command": "buttress evaluate --made-up",
        "time": "2026-01-02T03:04:05+00:00",
        "python": "3.11.7",
        "platform": "Linux x86_64",
        "versions": {"buttress": "0.1.0", "torch": "2.6.0"},
        **changes,
    }
    record = AttackRecord(
        name=name,
        ids=np.arange(n),
        labels=labels,
        predictions=np.where(flags, labels, (labels + 1) % len(CLASSES)),
        correct=flags,
        loss=np.ones(n, np.float32),
        perturbation_size=np.zeros(n, np.float32),
        metadata=made,
    )
    path = run.suite_folder(suite) / f"{name}.parquet"
    write_attack_record(path, record)
    return path


DRAWING = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40">'
    '<circle cx="30" cy="20" r="9"/></svg>'
)


def write_analysis(
    run: Run,
    name: str,
    result: Mapping[str, Any],
    kind: str = "",
    *,
    summary: str = "",
    svg: str = "",
) -> Path:
    path = run.analysis_file(name)
    write_record_json(path, {"analysis": kind or name, "result": dict(result), "summary": summary})
    if svg:
        path.with_suffix(".svg").write_text(svg)
    return path


def make_answer(text: str = "", keys: tuple[str, ...] = ()) -> StudyResult:
    """An answer with one row measured and published, and one that is missing; ``text`` is told."""
    column = text or "worst_case"
    told = TableValue(value=0.4, low=0.2, high=0.7, published=0.5, images=10, seeds=1)
    rows = (
        StudyTableRow(labels=(text or "ViT",), values={column: told}, run_keys=keys),
        StudyTableRow(
            labels=(text or "CaiT",),
            values={column: TableValue(published=0.1, missing_reason="not run")},
        ),
        StudyTableRow(
            labels=(text or "ResNet",),
            values={
                column: told.model_copy(
                    update={"warnings": (text or "flat gradient",), "is_untrustworthy": True}
                )
            },
        ),
    )
    claim = ClaimResult(
        id="C1", statement=text or "ViT is best", published=text or "holds", outcome="undecided",
        evidence=text or "40 against 40", replicate_share=0.25,
    )  # fmt: skip
    return StudyResult(
        study=text or "made-up", scale="smoke", title=text or "A made-up study",
        question=text or "Which?", source=text or "a paper", description=text,
        axes=(text or "model",),
        columns=(column,), column_titles={column: text or "Worst case"},
        run_labels={key: text or f"ViT / adversarial {n}" for n, key in enumerate(keys)},
        figures=(
            StudyFigure(kind="scatter", title=text or "Points", x=column, columns=(column,)),
            StudyFigure(kind="analysis", title=text or "Joint", analysis="sparsity"),
        ),
        units={column: "percent"}, rows=rows, claims=(claim,),
        rank_agreement=(RankAgreement(column=column, rows=12, spearman=0.83, low=0.5, high=0.95),),
        notes=(text or "a note",), total_runs=3, finished_runs=2, analyses=("stability",),
        group_analyses=("across",), cost={"train_seconds": 75.0},
        settings={"suites": [text or "quick"]},
    )  # fmt: skip


def sparsity(fraction: float = 0.4) -> dict[str, Any]:
    edges = [round(-1 + k / 20, 3) for k in range(41)]
    bell = [round(20_000 * math.exp(-((e / 0.15) ** 2))) for e in edges[1:]]
    half = [c // 2 for c in bell]
    return {
        "threshold": 0.01,
        "largest_weight": 1.25,
        "sparsity": fraction,
        "weights": sum(bell),
        "components": [
            {"component": "convolution", "sparsity": fraction / 2, "weights": sum(half)},
            {"component": "attention", "sparsity": fraction * 1.2, "weights": sum(half)},
        ],
        "edges": edges,
        "counts": {"all": bell, "convolution": half, "attention": half[::-1]},
    }


def curve(start: float = 0.9, slope: float = 4.0) -> dict[str, Any]:
    eps = [0, 0.02, 0.05, 0.1, 0.15, 0.2]
    accuracy = [start * math.exp(-slope * e) for e in eps]
    return {
        "attack": "pgd",
        "norm": "Linf",
        "eps": eps,
        "accuracy": accuracy,
        "low": [max(0.0, a - 0.04) for a in accuracy],
        "high": [min(1.0, a + 0.04) for a in accuracy],
        "images": 397,
    }


def picture(seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 255, (8, 8), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def gallery(count: int = 6) -> dict[str, Any]:
    examples = [
        {
            "id": 100 + k,
            "label": k % 5,
            "clean_prediction": k % 5,
            "adversarial_prediction": (k + k % 2) % 5,
            "clean_confidence": 0.98,
            "adversarial_confidence": 0.61,
            "distance": 0.1,
            "clean": picture(k),
            "perturbation": picture(k + 50),
            "adversarial": picture(k + 99),
        }
        for k in range(count)
    ]
    return {
        "attack": "pgd-linf",
        "threat": "Linf:0.1",
        "classes": CLASSES,
        "examples": examples,
    }


def report_pages(root: Path, out: Path) -> dict[str, str]:
    """All pages of a report, by their path inside it."""
    write_report([root], out)
    return {p.relative_to(out).as_posix(): p.read_text() for p in sorted(out.rglob("*.html"))}


def words(page: str) -> str:
    """What a reader reads: no style, no tags, single spaces."""
    body = re.sub(r"<(style|script|svg)\b.*?</\1>", " ", page, flags=re.S)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", body).split()))
