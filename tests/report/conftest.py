from __future__ import annotations

from pathlib import Path

import pytest
from made_up import curve, gallery, make_run, make_spec, sparsity, write_analysis

from buttress.report import write_report

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


def report_pages(root: Path, out: Path) -> dict[str, str]:
    """All pages of a report, by their path inside it."""
    write_report([root], out)
    return {p.relative_to(out).as_posix(): p.read_text() for p in sorted(out.rglob("*.html"))}
