"""NARes: 15,625 adversarially trained WideResNets on CIFAR-10, from a local copy of its file.

``cifar10.jsonl`` of github.com/zhichao-lu/arch-dataset-adv-robustness has one model per line:
``arch`` with blocks D1 to D3 and widening factors W1 to W3, ``MACs``, ``Params`` and, of the best
checkpoint, ``test_best`` with ``test_clean_acc`` and ``Linf_ATTACK_acc``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from buttress.errors import UserError

STAGES = (1, 2, 3)
ACCURACIES = {
    "clean": "test_clean_acc",
    "fgsm": "Linf_fgsm_acc",
    "pgd": "Linf_pgd_acc",
    "cw": "Linf_cw_acc",
    "autoattack": "Linf_aa_acc",
}
MILLION = 1e6


def read_nares(path: Path) -> list[dict[str, str]]:
    """Read one row per model: d1 to d3, w1 to w3, params_m, gmacs, and accuracies in percent."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(_parse_row(json.loads(line)))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            raise UserError(
                f"{path}, line {number}: expected a record of NARes with arch.D1 to arch.W3, "
                "MACs, Params and test_best; use its file cifar10.jsonl"
            ) from None
    if not rows:
        raise UserError(f"{path} contains no records of NARes")
    scale = 100.0 if max(float(row["clean"] or 0) for row in rows) <= 1 else 1.0  # from fractions
    for row in rows:
        row.update({name: f"{float(row[name]) * scale:g}" for name in ACCURACIES if row[name]})
    return rows


def _parse_row(record: dict[str, Any]) -> dict[str, str]:
    arch, test = record["arch"], record["test_best"][0]
    row = {f"{key.lower()}{stage}": str(int(arch[f"{key}{stage}"])) for stage in STAGES
           for key in "DW"}  # fmt: skip
    row["params_m"] = f"{_in_units(record['Params'], MILLION):g}"
    row["gmacs"] = f"{_in_units(record['MACs'], 1000 * MILLION):g}"
    accuracies = {name: test.get(key) for name, key in ACCURACIES.items()}
    return row | {name: "" if v is None else f"{float(v):g}" for name, v in accuracies.items()}


def _in_units(value: float, unit: float) -> float:
    """A count in ``unit``; one that is small enough is taken to be in that unit already."""
    return float(value) / unit if float(value) > MILLION else float(value)
