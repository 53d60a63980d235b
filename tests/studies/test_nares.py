"""NARes from a local copy: a made-up file in its format decides the claims on depth and width."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from buttress.cli.main import run_cli
from buttress.errors import UserError
from buttress.studies.nares import read_nares

DEPTHS, WIDTHS = (4, 5, 7, 9, 11), (8, 10, 12, 14, 16)


def record(depths: tuple[int, ...], widths: tuple[int, ...], pgd: float) -> dict[str, Any]:
    arch = {f"D{i}": d for i, d in enumerate(depths, 1)}
    arch |= {f"W{i}": w for i, w in enumerate(widths, 1)}
    test = {"test_clean_acc": 87.5, "Linf_pgd_acc": pgd, "Linf_aa_acc": None}
    params = 1e5 * sum(d * w for d, w in zip(depths, widths, strict=True))
    return {"arch_id": 1, "arch": arch, "MACs": 5.3e9, "Params": params, "train": [{"seed": 0}],
            "test_best": [test]}  # fmt: skip


def write(path: Path, sign: float) -> Path:
    """Depth and width help in the first two stages, and in the last by ``sign``."""
    records = [record(d, (10, 10, 10), 50 + 0.3 * d[0] + 0.2 * d[1] + sign * 0.4 * d[2])
               for d in product(DEPTHS, repeat=3)]  # fmt: skip
    records += [record((5, 5, 5), w, 50 + 0.3 * w[0] + 0.2 * w[1] + sign * 0.4 * w[2])
                for w in product(WIDTHS, repeat=3) if w != (10, 10, 10)]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def test_rows_have_stages_sizes_and_accuracies(tmp_path: Path) -> None:
    rows = read_nares(write(tmp_path / "cifar10.jsonl", -1))
    assert len(rows) == 249
    assert rows[0] == {
        "d1": "4", "w1": "10", "d2": "4", "w2": "10", "d3": "4", "w3": "10", "params_m": "12",
        "gmacs": "5.3", "clean": "87.5", "fgsm": "", "pgd": "50.4", "cw": "", "autoattack": "",
    }  # fmt: skip


@pytest.mark.parametrize(("study", "claim"), [("depth-grid", "R3"), ("width", "R4")])
@pytest.mark.parametrize(("sign", "outcome"), [(-1, "holds"), (1, "does not hold")])
def test_claims_are_decided_on_it(
    study: str, claim: str, sign: float, outcome: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = write(tmp_path / "cifar10.jsonl", sign)
    args = ["study", "report", study, "--out", str(tmp_path / "out"), "--json"]
    assert run_cli([*args, "--table", f"nares={file}"]) == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    (claims,) = (c["other_tables"] for c in answer["claims"] if c["id"] == claim)
    assert [(o["table"], o["outcome"]) for o in claims] == [("nares", outcome)]
    assert run_cli(args) == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert not any(o["table"] == "nares" for c in answer["claims"] for o in c["other_tables"])


def test_other_files_and_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text(json.dumps({"arch": {"D1": 5}}))
    with pytest.raises(UserError, match="line 1: expected a record of NARes"):
        read_nares(tmp_path / "bad.jsonl")
    args = ["study", "report", "depth-grid", "--out", str(tmp_path), "--table"]
    for table, message in (("nares", "must be NAME=FILE"), ("other=x", "has no table 'other'")):
        assert run_cli([*args, table]) == 2
        assert message in capsys.readouterr().err
