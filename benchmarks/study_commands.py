"""How status, plan, report and site of a study grow with its runs.

    python benchmarks/study_commands.py --runs 1000,10000 --out docs/measured/scale.md

Makes up finished runs (valid files of four attacks on 1,000 images, random results) and measures
the commands on them, each in a process of its own: wall time, CPU time and peak memory, the start
of Python included, and the largest page. With ``--folder`` the made-up runs are kept there, and
those that are there are not made again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from buttress.results.attack_record import AttackRecord, write_attack_record
from buttress.results.run import Run, provenance
from buttress.studies import RunJob, StudySpec, expand_study, load_study, make_jobs
from buttress.studies.jobs import tasks_of_job

IMAGES = 1000
SEEDS = 5
PROVENANCE = provenance("made up")
COMMANDS = ("study status", "study plan", "study report", "site")


class CommandCost(NamedTuple):
    runs: int
    command: str
    seconds: float
    cpu_seconds: float
    megabytes: float
    page_kilobytes: float  # the largest page


def make_study(runs: int) -> StudySpec:
    """The quickstart on CIFAR-10 with many learning rates and five seeds."""
    quickstart = load_study("quickstart")
    rates = {
        f"lr {i}": {"overrides": [f"optimizer.lr={1e-3 * (1 + i / 1000):.7f}"]}
        for i in range(-(-runs // (8 * SEEDS)))
    }
    grid = {
        **quickstart.grid,
        "base": {"dataset": "cifar10"},
        "axes": {**quickstart.grid["axes"], "rate": rates},
        "seeds": list(range(SEEDS)),
        "analyses": [],
        "test_limit": IMAGES,
    }
    update = {"name": f"many-{runs}", "grid": grid, "scales": ("digits",)}
    return quickstart.model_copy(update=update)


def write_fake_run(work: RunJob) -> None:
    """Writes a run as training and evaluation would have left it."""
    run, spec = Run(work.folder), work.spec
    run.open(spec, "made up", "cnn")
    rows = [
        {"epoch": e, "loss": 1 / e, "train_accuracy": 0.5, "lr": 0.1, "eps": 0.0,
         "val_clean": 0.5, "val_robust": 0.3, "best": e == 1, "seconds": 1.0}
        for e in range(1, spec.recipe.epochs + 1)
    ]  # fmt: skip
    run.write_history(rows)
    best = {"best_epoch": 1, "best_val_clean": 0.5, "best_val_robust": 0.3}
    last = {"last_val_clean": 0.5, "last_val_robust": 0.3, "selected_on": "val"}
    rest = {"epochs": len(rows), "events": [], "warnings": [], "seconds": float(len(rows))}
    write_fake_records(work)
    run.finish({**best, **last, **rest, "seconds_here": float(len(rows))})


def write_fake_records(work: RunJob) -> None:
    """Writes the records of all attacks, each with verdicts of its own."""
    generator = np.random.default_rng(zlib.crc32(work.key.encode()))
    ids, labels = np.arange(IMAGES), np.arange(IMAGES) % 10
    attacks = [task for task in tasks_of_job(work) if task.kind == "attack"]
    names = [task.file.stem for task in attacks]
    correct = np.ones(IMAGES, dtype=bool)
    for position, task in enumerate(attacks):
        correct = correct & (generator.random(IMAGES) < 0.8)
        meta = {**task.identity, "suite_position": position, "seconds": 1.0, "forward_passes": 10.0,
                "backward_passes": 10.0, "warnings": [], "suite": "quickstart", "seed": 0,
                "class_names": [str(c) for c in range(10)], "suite_entries": names,
                "dataset": "cifar10", "split": "test", "weights_digest": "made up",
                "data_fingerprint": "made up", "nonfinite_images": 0, "stages": [],
                "model_optimizations": [], **PROVENANCE}  # fmt: skip
        predictions = np.where(correct, labels, (labels + 1) % 10)
        flat = np.zeros(IMAGES, dtype=np.float32)
        write_attack_record(
            task.file,
            AttackRecord(names[position], ids, labels, predictions, correct, flat, flat, meta),
        )


def command_line(command: str, file: Path, root: Path) -> list[str]:
    buttress = [sys.executable, "-m", "buttress.cli.main"]
    if command == "site":
        return [*buttress, "report", str(root / "runs"), "--site", "--out", str(root / "site")]
    return [*buttress, *command.split(), str(file), "--out", str(root), "--json"]


def measure_command(command: str, file: Path, root: Path, runs: int) -> CommandCost:
    call = command_line(command, file, root)
    started = time.perf_counter()
    child = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, code, usage = os.wait4(child.pid, 0)
    child.returncode = code
    if code:
        raise SystemExit(f"{' '.join(call)} ended with {code}")
    seconds = time.perf_counter() - started
    folder = root / ("site" if command == "site" else "studies")
    writes_pages = command in ("site", "study report")
    largest = max(p.stat().st_size for p in folder.rglob("*.html")) if writes_pages else 0
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return CommandCost(runs, command, seconds, cpu_seconds, usage.ru_maxrss / 1024, largest / 1024)


def measure_study(runs: int, folder: Path) -> list[CommandCost]:
    root, file = folder / f"results-{runs}", folder / f"many-{runs}.yaml"
    study = make_study(runs)
    content = study.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    works = make_jobs(expand_study(study, "digits"), root)[:runs]
    for work in works:
        if not Run(work.folder).is_trained:
            write_fake_run(work)
    return [measure_command(command, file, root, len(works)) for command in COMMANDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", default="1000,10000")
    parser.add_argument("--folder", type=Path, help="keep the made-up runs here")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for count in args.runs.split(","):
            rows += measure_study(int(count), folder)
    lines = ["| runs | command | seconds | CPU seconds | peak memory, MB | largest page, KB |",
             "| ---: | --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for r in rows:
        page = f"{r.page_kilobytes:.0f}" if r.page_kilobytes else ""
        numbers = f"{r.seconds:.1f} | {r.cpu_seconds:.1f} | {r.megabytes:.0f} | {page}"
        name = "report --site" if r.command == "site" else r.command
        lines.append(f"| {r.runs} | `{name}` | {numbers} |")
    print("\n".join(lines))
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
