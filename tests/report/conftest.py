from __future__ import annotations

from pathlib import Path

import pytest

from buttress.results.core import write_record_json
from buttress.results.run import Run
from buttress.results.study_result import write_study_result
from report_runs import (
    DRAWING,
    ROBUST,
    SECOND,
    STANDARD,
    curve,
    gallery,
    make_answer,
    make_run,
    make_spec,
    sparsity,
    write_analysis,
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three whole runs with all analyses."""
    root = tmp_path / "runs"
    made = [
        make_run(root / "a", make_spec("vit_tiny"), ROBUST, category="transformer"),
        make_run(root / "b", make_spec("resnet_tiny"), SECOND, category="cnn"),
        make_run(root / "c", make_spec("resnet_tiny", "standard"), STANDARD, category="cnn"),
    ]
    for index, run in enumerate(made):
        write_analysis(run, "sparsity", sparsity(0.2 + 0.1 * index))
        write_analysis(run, "curve", curve(0.9, 4.0 + index))
        write_analysis(run, "gallery", gallery())
        write_analysis(run, "lipschitz", {"constant": 3})
        write_analysis(run, "stability", {}, summary="Images move 0.4 on average", svg=DRAWING)
    return root


@pytest.fixture
def study(runs: Path) -> Path:
    """The root of three runs and of a study about the first of them, with a picture of its own."""
    root = runs.parent
    path = write_study_result(root, make_answer(keys=(Run(runs / "a").header["key"], "gone-123")))
    about = {"analysis": "across", "result": {}, "summary": "All runs in one picture"}
    write_record_json(path.parent / "across.json", about)
    (path.parent / "across.svg").write_text(DRAWING)
    return root
