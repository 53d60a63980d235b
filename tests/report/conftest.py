from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import (
    ROBUST,
    SECOND,
    STANDARD,
    curve,
    gallery,
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
    return root
