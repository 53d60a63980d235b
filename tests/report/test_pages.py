from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from buttress.errors import UserError
from buttress.report import write_report
from buttress.statistics import summarize_seeds_and_images, wilson_interval
from buttress.system.files import write_text
from report_runs import (
    ROBUST,
    STANDARD,
    epoch,
    gallery,
    make_run,
    make_spec,
    report_pages,
    words,
    write_analysis,
    write_flags,
)

OWN = ("data:", "#", "index.html", "models/", "../index.html", "compare.html", "../compare.html#")


def interval(hits: int) -> str:
    """As the pages write the interval of so many of ten images."""
    low, high = wilson_interval(hits, 10)
    return f"{100 * low:.1f}\N{EN DASH}{100 * high:.1f}"


def test_first_sentence_names_the_winner(runs: Path, tmp_path: Path) -> None:
    pages = report_pages(runs, tmp_path / "out")

    said = words(pages["index.html"])

    assert (
        "vit_tiny trained with pgd_at is the most robust: worst-case robust "
        "accuracy 40% on 10 test images" in said
    )
    assert f"The best standard model, resnet_tiny, has 0% ({interval(0)})." in said
    assert f"Most robust to pgd-linf resnet_tiny pgd_at 70% {interval(7)}" in said
    assert "Second is resnet_tiny trained with pgd_at with 30% against 40%" in said
    assert "the difference is not significant" in said  # one image apart


def test_worst_case_is_the_mean_of_minima_with_its_interval(runs: Path, tmp_path: Path) -> None:
    page = report_pages(runs, tmp_path / "out")["index.html"]

    rows = re.findall(r"<tr.*?</tr>", page, flags=re.S)
    vit = next(words(r) for r in rows if "vit_tiny" in r)

    shown = [f"{10 * k:.1f} {interval(k)}" for k in (4, 9, 6, 6)]
    assert " ".join(shown) in vit
    assert vit.startswith("1 vit_tiny transformer")


def test_model_page_has_every_part(runs: Path, tmp_path: Path) -> None:
    pages = report_pages(runs, tmp_path / "out")

    page = next(p for name, p in pages.items() if name.startswith("models/vit_tiny"))

    said = words(page)
    for part in (
        "Worst-case robust accuracy 40%",
        "rank 1 of 3",
        "trained on",
        "not trained on",
        "By class",
    ):
        assert part in said
    for part in ("Adversarial examples", "Loss", "Learning rate", "Weights", "convolution"):
        assert part in said
    assert "lipschitz (figure not available)" in said
    assert "Compare with another model" in said
    assert "buttress train --made-up" in said
    assert page.count("data:image/png;base64,") == 18


def test_by_class_counts_labels(runs: Path, tmp_path: Path) -> None:
    pages = report_pages(runs, tmp_path / "out")

    page = next(p for name, p in pages.items() if name.startswith("models/vit_tiny"))

    label = re.search(r'aria-label="Worst-case robust accuracy by class\. ([^"]*)"', page)
    assert label is not None
    # Images 0 to 3 survive and labels repeat 0..4: class 4 keeps none, the others one of two.
    assert label[1] == "class 4 0%; class 0 50%; class 1 50%; class 2 50%; class 3 50%"


def test_missing_attack_is_missing_and_unranked(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_run(root / "a", make_spec("vit_tiny"), ROBUST)
    perfect = {"clean": [1] * 10, "pgd-linf": [1] * 10}
    make_run(root / "b", make_spec("resnet_tiny"), perfect)

    page = report_pages(root, tmp_path / "out")["index.html"]

    row = next(r for r in re.findall(r"<tr.*?</tr>", page, flags=re.S) if "resnet_tiny" in r)
    assert words(row).startswith("\N{EN DASH} resnet_tiny")
    assert words(row).count("missing") == 2  # the attack and the worst case
    assert "vit_tiny trained with pgd_at: worst-case robust accuracy 40% on 10" in words(page)
    assert "1 model of 2 with an incomplete evaluation: not ranked." in words(page)


FLAT = {
    "check": "zero_gradient",
    "severity": "untrustworthy",
    "message": "the gradient is flat",
    "evidence": {"flat_gradient_fraction": 1.0},
    "remedy": "look for rounding",
}


@pytest.mark.parametrize("where", ["records", "doctor", "doctor of other weights"])
def test_an_untrustworthy_number_is_marked_and_unranked(tmp_path: Path, where: str) -> None:
    root = tmp_path / "runs"
    make_run(root / "a", make_spec("vit_tiny"), ROBUST)
    bad = make_run(root / "b", make_spec("resnet_tiny"))
    for name in ROBUST:
        write_flags(bad, name, [1] * 10, findings=[FLAT] if where == "records" else [])
    if where != "records":
        said = {
            "threat": "Linf:0.1", "dataset": "digits", "split": "test", "images": 10, "seed": 0,
            "weights_digest": "abc" if where == "doctor" else "other",
            "data_fingerprint": "", "checks": [],
            "findings": [FLAT],
        }  # fmt: skip
        write_analysis(bad, "doctor", said)

    pages = report_pages(root, tmp_path / "out")

    row = next(
        r for r in re.findall(r"<tr.*?</tr>", pages["index.html"], flags=re.S) if "resnet_tiny" in r
    )
    own = words(next(p for name, p in pages.items() if "resnet_tiny" in name))
    if where == "doctor of other weights":
        assert words(row).startswith("1 resnet_tiny")
        assert "not trustworthy" not in words(row)
        return
    assert words(row).startswith("\N{EN DASH} resnet_tiny")
    assert "not trustworthy" in words(row)
    assert "vit_tiny trained with pgd_at: worst-case robust accuracy 40% on 10" in words(
        pages["index.html"]
    )
    assert "1 model of 2 with a result that is not trustworthy: not ranked." in words(
        pages["index.html"]
    )
    assert "the gradient is flat; look for rounding" in own
    assert "not ranked" in own
    assert ("All checks" in own) == (where == "doctor")


def test_attacks_that_the_suite_names_but_nobody_ran_are_missing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a")
    write_flags(run, "clean", [1] * 4, suite_entries=["clean", "pgd-linf"])

    said = words(report_pages(tmp_path / "runs", tmp_path / "out")["index.html"])

    assert "No model has a complete evaluation" in said


def test_same_name_with_other_settings_is_another_column(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_run(root / "a", make_spec("vit_tiny"), ROBUST)
    weak = make_run(root / "b", make_spec("resnet_tiny"), ROBUST)
    write_flags(weak, "pgd-l2", [1] * 10, args={"steps": 1})

    said = words(report_pages(root, tmp_path / "out")["index.html"])

    assert "pgd-l2 L2:1 steps=1" in said
    assert "pgd-l2 L2:1 steps=20" in said
    assert "No model has a complete evaluation" in said


def test_other_images_are_another_table(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_run(root / "a", make_spec("vit_tiny"), ROBUST)
    make_run(root / "b", make_spec("resnet_tiny"), {k: v[:5] for k, v in ROBUST.items()})

    page = report_pages(root, tmp_path / "out")["index.html"]

    assert page.count('class="leaderboard"') == 2


@pytest.mark.parametrize("change", [{"weights_digest": "other"}, {"data_fingerprint": "other"}])
def test_records_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    run = make_run(tmp_path / "runs" / "a", flags=ROBUST)
    write_flags(run, "pgd-l2", ROBUST["pgd-l2"], **change)

    said = words(report_pages(tmp_path / "runs", tmp_path / "out")["index.html"])

    assert "No model has a complete evaluation" in said
    assert "runs/a/eval/quick/pgd-l2: not the same" in said


def test_everything_from_records_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&"
    spec = make_spec(evil)
    run = make_run(tmp_path / "runs" / "a", spec, category=evil)
    flags = [1, 0, 1, 1, 0]
    write_flags(run, "clean", flags, warnings=[evil], class_names=[evil] * 5, command=evil)
    write_flags(run, "pgd-l1", flags, threat=evil, attack=evil, args={evil: evil})
    write_analysis(run, "gallery", {**gallery(1), "classes": [evil] * 5, "attack": evil})
    make_run(tmp_path / "runs" / "b", make_spec(evil, seed=1), done=False).fail(evil)

    pages = report_pages(tmp_path / "runs", tmp_path / "out")

    assert len(pages) == 3
    for page in pages.values():
        assert "<script>alert" not in page
        assert page.count("<script") <= 2  # our own
    assert evil in words(pages["index.html"])


def test_hostile_picture_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a", flags=ROBUST)
    wrong = gallery(1)
    wrong["examples"][0]["clean"] = '" onerror="alert(1)'
    write_analysis(run, "gallery", wrong)

    pages = report_pages(tmp_path / "runs", tmp_path / "out")

    assert "onerror" not in "".join(pages.values())
    assert "analysis/gallery.json is unreadable; run the analysis again" in words(
        pages["index.html"]
    )


def test_pages_ask_the_network_for_nothing(runs: Path, tmp_path: Path) -> None:
    pages = report_pages(runs, tmp_path / "out")

    for name, page in pages.items():
        addresses = re.findall(r"""(?:src|href|action)=["']?([^"'\s>]+)|url\(([^)]*)\)""", page)
        for address in (a or b for a, b in addresses):
            assert address.startswith(OWN), (name, address)
        assert "@import" not in page
        assert "default-src 'none'" in page


def test_links_lead_to_pages(runs: Path, tmp_path: Path) -> None:
    pages = report_pages(runs, tmp_path / "out")

    assert set(re.findall(r'href="(models/[^"]+)"', pages["index.html"])) == set(pages) - {
        "index.html",
        "compare.html",
    }
    assert 'href="compare.html"' in pages["index.html"]


def test_failed_and_unfinished_runs_are_listed(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_run(root / "a", make_spec("vit_tiny"), ROBUST)
    make_run(root / "b", make_spec("deit_tiny"), done=False).fail("loss is not finite")
    make_run(root / "c", make_spec("cait_tiny"), STANDARD, done=False)
    make_run(root / "d", make_spec("xcit_tiny"))

    said = words(report_pages(root, tmp_path / "out")["index.html"])

    assert "deit_tiny runs/b failed loss is not finite" in said
    assert "cait_tiny runs/c started" in said
    assert "training is not finished (state: started)" in said  # a mark in the table
    assert "xcit_tiny runs/d not evaluated" in said


def test_corrupt_files_are_named(runs: Path, tmp_path: Path) -> None:
    record = runs / "a" / "eval" / "quick" / "pgd-l2.parquet"
    record.write_bytes(record.read_bytes()[:-40])
    write_text(runs / "b" / "analysis" / "sparsity.json", "{")
    write_text(runs / "b" / "train.jsonl", "{")
    write_text(runs / "c" / "run.json", "{}")

    pages = report_pages(runs, tmp_path / "out")

    said = words(pages["index.html"])
    assert "runs/a/eval/quick/pgd-l2.parquet is unreadable; evaluate again" in said
    assert "runs/b/analysis/sparsity.json is unreadable; run the analysis again" in said
    assert "runs/c unreadable runs/c/run.json is corrupt" in said
    assert (
        "resnet_tiny trained with pgd_at: worst-case robust accuracy 30% on 10" in said
    )  # the other one has no worst case
    model = next(p for name, p in pages.items() if name.startswith("models/resnet_tiny"))
    assert "runs/b/train.jsonl" in words(model)
    assert str(tmp_path) not in "".join(pages.values())


def test_warnings_are_marks_with_text(tmp_path: Path) -> None:
    warnings = {"pgd-l2": ["gradients vanish"]}
    make_run(tmp_path / "runs" / "a", flags=ROBUST, warnings=warnings)

    page = report_pages(tmp_path / "runs", tmp_path / "out")["index.html"]

    assert words(page).count("!1 gradients vanish") == 1
    assert (
        page.count('href="#b1-note-1" title="gradients vanish"') == 3
    )  # cell, worst case, sentence


def test_warning_about_the_model_is_shown_once_per_row(tmp_path: Path) -> None:
    warnings = {name: ["returns probabilities"] for name in ROBUST}
    make_run(tmp_path / "runs" / "a", flags=ROBUST, warnings=warnings)

    page = report_pages(tmp_path / "runs", tmp_path / "out")["index.html"]

    table = page[page.index("<tbody>") : page.index("</tbody>")]
    assert table.count('title="returns probabilities"') == 1


def test_seeds_have_their_own_rows_and_pages(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / "runs" / str(seed), make_spec(seed=seed), ROBUST)

    pages = report_pages(tmp_path / "runs", tmp_path / "out")

    assert len(pages) == 5
    assert "vit_tiny seed 2" in words(pages["index.html"])
    assert "and 1 more" in words(pages["index.html"])


def seeds_table(page: str) -> str:
    result = re.search(r'<table class="seeds".*?</table>', page, flags=re.S)
    return "" if result is None else words(result[0])


def test_runs_that_differ_in_the_seed_only_are_shown_as_mean_and_spread(tmp_path: Path) -> None:
    flags = [{**ROBUST, "pgd-linf": [1] * k + [0] * (10 - k)} for k in (2, 4, 6)]
    for seed, given in enumerate(flags):
        make_run(tmp_path / "runs" / str(seed), make_spec(seed=seed), given)
    make_run(tmp_path / "runs" / "other", make_spec("resnet_tiny"), ROBUST)

    said = seeds_table(report_pages(tmp_path / "runs", tmp_path / "out")["index.html"])

    # Survivors: 2, 4 and 4 of 10 (pgd-l2 keeps 0 to 3 and 6 to 7); clean 9 of 10 each time.
    survived = [[a and b for a, b in zip(g["pgd-linf"], g["pgd-l2"], strict=True)] for g in flags]
    spread = summarize_seeds_and_images(survived)
    low, high = spread.interval
    assert "vit_tiny pgd_at 0, 1, 2 33.3 ± 11.5" in said
    assert f"{100 * low:.1f}\N{EN DASH}{100 * high:.1f} 90.0 ± 0.0 40.0 ± 20.0" in said
    assert "resnet_tiny" not in said


def test_one_seed_makes_no_table_of_seeds(runs: Path, tmp_path: Path) -> None:
    assert seeds_table(report_pages(runs, tmp_path / "out")["index.html"]) == ""


def test_training_curves_have_bands_where_the_images_are_counted(tmp_path: Path) -> None:
    history = [{**epoch(e), "val_images": 40} for e in (1, 2, 3)]
    make_run(tmp_path / "runs" / "a", history=history)
    make_run(tmp_path / "runs" / "b", make_spec("resnet_tiny"))

    pages = report_pages(tmp_path / "runs", tmp_path / "out")

    has = {n: "bands are 95% intervals" in p for n, p in pages.items() if n != "index.html"}
    assert sorted(has.values()) == [False, True]


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_to_report_says_what_to_do(tmp_path: Path, exists: bool) -> None:
    root = tmp_path / "runs"
    if exists:
        root.mkdir()

    with pytest.raises(UserError, match=r"run\.json|no such folder"):
        write_report([root], tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_same_records_same_bytes(runs: Path, tmp_path: Path) -> None:
    assert report_pages(runs, tmp_path / "x") == report_pages(runs, tmp_path / "y")


def test_overlapping_roots_count_runs_once(runs: Path, tmp_path: Path) -> None:
    write_report([runs, runs / "a"], tmp_path / "out")

    assert len(list((tmp_path / "out" / "models").iterdir())) == 3


def test_report_does_not_import_torch() -> None:
    code = "import sys, buttress.report; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_two_hundred_runs_take_seconds(tmp_path: Path) -> None:
    for index in range(200):
        flags = {k: (v * 20)[index % 7 :][:180] for k, v in ROBUST.items()}
        make_run(tmp_path / "runs" / f"r{index}", make_spec(f"model_{index}"), flags)

    start = time.perf_counter()
    write_report([tmp_path / "runs"], tmp_path / "out")

    assert time.perf_counter() - start < 20
    page = (tmp_path / "out" / "index.html").read_text()
    assert "The figures show 8 of 200 models" in page
    assert len(page) < 1_000_000
