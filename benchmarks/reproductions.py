"""Seven kinds of false or lost results: what an earlier version did, and what this one does.

    python benchmarks/reproductions.py --before TREE --out docs/measured/reproductions.md

``TREE`` is another checkout of this repository. Each reproduction runs in a process of its own,
with the sources of one of the two, and prints one line.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IGNORED_CHECKS = {"few_images", "near_chance_accuracy"}
COMMAND = "import sys; from buttress.cli.main import run; run(sys.argv[1:])"
TRAIN = ("train", "--model", "vit_tiny", "--data", "digits", "--recipe", "quickstart-standard",
         "--limit", "32", "--set", "epochs=1", "--device", "cpu")  # fmt: skip


def evaluated(model: Any, suite: list[str]) -> str:
    import buttress as bt
    from evaluation.broken_models import digits

    found: Any = bt.evaluate(model, digits("test"), suite)
    trusted = found.is_trustworthy if hasattr(found, "is_trustworthy") else found.trustworthy
    return f"{100 * found.worst_case:.0f}%, {'trustworthy' if trusted else 'untrustworthy'}"


def of_broken_model(name: str) -> str:
    """`fast` on a model that attacks fool everywhere."""
    from evaluation.broken_models import BROKEN, EPS

    return evaluated(BROKEN[name].make(), [f"fast:Linf:{EPS}"])


def no_normalization() -> str:
    """Brightness tells the class, but only after the normalization of ImageNet."""
    import torch

    import buttress as bt
    from buttress.data import Dataset

    mean, std = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))
    levels = torch.linspace(0.2, 0.8, 11)[:10]

    class Brightness(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)  # so that it has weights

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            centers = ((levels[:, None] - mean) / std).mean(1)
            period = 10 * (centers[1] - centers[0])
            phase = (x.mean((2, 3)).mean(1)[:, None] - centers) / period
            return 10 * torch.cos(2 * torch.pi * phase)

    labels = torch.arange(64) % 10
    noise = 0.02 * torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images = levels[labels].view(-1, 1, 1, 1) + noise
    data = Dataset.from_arrays(images, labels, classes=list("abcdefghij"))
    model = Brightness().eval()
    normalized = model((images - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)).argmax(1) == labels
    found = bt.evaluate(model, data, ["clean"])
    before, after = found.accuracy["clean"], float(normalized.float().mean())
    accuracies = f"{100 * before:.0f}%, normalized {100 * after:.0f}%"
    return f"clean accuracy {accuracies}: {findings_of(found)}"


def command(*args: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", COMMAND, *args]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=cwd)


def answer(done: subprocess.CompletedProcess[str]) -> str:
    """Exit code, and the last line of an error."""
    lines = [text.strip() for text in done.stderr.splitlines() if text.strip()]
    text = f"exit code {done.returncode}"
    if done.returncode == 0:
        return text
    kind = "a traceback" if "Traceback" in done.stderr else "one line"
    return f"{text}, {kind}: {lines[-1][:90] if lines else ''}".replace("|", "/")


def lost_checkpoint() -> str:
    """A training killed between its two checkpoints, the last epoch being the best."""
    with tempfile.TemporaryDirectory() as folder:
        command(*TRAIN, "--out", "run", cwd=folder)
        for name in ("last.pt", "done.json"):
            (Path(folder) / "run" / name).unlink()
        return answer(command(*TRAIN, "--out", "run", cwd=folder))


def killed_in_first_file() -> str:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / ".run.json.x1y2z3.part").write_text("{")
        return answer(command(*TRAIN, "--out", "run", cwd=folder))


def image_folder(root: Path) -> None:
    import numpy as np
    from PIL import Image

    source = np.random.default_rng(0)
    for split in ("train", "val"):
        for channel, name in enumerate(("red", "green", "blue")):
            (root / split / name).mkdir(parents=True)
            for number in range(8):
                pixels = source.integers(0, 100, (8, 8, 3), dtype=np.uint8)
                pixels[..., channel] += 150
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")


def warnings_of_images(change: Callable[[Path], None]) -> str:
    """What an evaluation says about an image folder with a mistake in it."""
    import torch

    import buttress as bt

    class Brightest(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 10 * x.mean((2, 3))[:, [2, 1, 0]]  # classes are sorted: blue, green, red

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "set"
        image_folder(root)
        change(root)
        found = bt.evaluate(
            Brightest().eval(), bt.load_dataset(f"folder:{root}", "test"), ["clean"]
        )
    return f"clean accuracy {100 * found.accuracy['clean']:.0f}%, {findings_of(found)}"


def findings_of(found: Any) -> str:
    names = {str(getattr(f, "check", "") or f.name) for f in found.findings}
    return ", ".join(f"`{name}`" for name in sorted(names - IGNORED_CHECKS)) or "no finding"


def swap_classes(root: Path) -> None:
    for old, new in (("red", "x"), ("blue", "red"), ("x", "blue")):
        (root / "val" / old).rename(root / "val" / new)


def copy_training_images(root: Path) -> None:
    shutil.rmtree(root / "val")
    shutil.copytree(root / "train", root / "val")


def repeat_images(root: Path) -> None:
    for path in [*(root / "val").rglob("*.png")]:
        for copy in range(4):
            shutil.copy(path, path.with_name(f"{path.stem}-{copy}.png"))


def records_and_clocks() -> str:
    """Losses of two evaluations whose clocks run at random speed."""
    import torch

    import buttress as bt
    from buttress.data import Dataset

    model = bt.create_model("resnet_tiny", num_classes=10, image_size=32, seed=0).eval()
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = Dataset.from_arrays(x, model(x).argmax(1), classes=list("abcdefghij"))
    clocks, losses = (time.perf_counter, time.monotonic), set()
    for seed in range(6):
        now, source = [0.0], random.Random(seed)

        def clock(now: list[float] = now, source: random.Random = source) -> float:
            now[0] += source.choice((1e-5, 1e-3, 0.1, 2.0)) * source.random()
            return now[0]

        time.perf_counter = time.monotonic = clock
        try:
            found = bt.evaluate(model, data, ["pgd:Linf:0.02", "fab-t:Linf:0.02"])
        finally:
            time.perf_counter, time.monotonic = clocks
        losses.add(b"".join(r.loss.tobytes() for r in found.records.values()))
    return f"{len(losses)} different sets of losses in 6 evaluations"


def unwritable_folder() -> str:
    return answer(command(*TRAIN, "--out", "/proc/x/run"))


def stopped_at_once() -> str:
    """SIGTERM half a second after the start."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-c", COMMAND, *TRAIN, "--out", "run"]
        process = subprocess.Popen(line, cwd=folder, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        return f"exit code {process.wait()}"


class Reproduction:
    def __init__(self, text: str, run: Callable[[], str], test: str) -> None:
        self.text, self.run, self.test = text, run, test


BROKEN_TESTS = "evaluation/test_broken_models.py"
RESUME_TESTS = "training/test_resume.py"
AUDIT_TEST = "evaluation/test_input_audit.py::test_a_mistake_in_the_images_is_a_finding"
REPRODUCTIONS = {
    **{
        f"1: {name}": Reproduction(
            f"1: `fast` on a model with {text} (true: 0%)",
            lambda name=name: of_broken_model(name),  # type: ignore[misc]
            f"{BROKEN_TESTS}::test_the_ensemble_fast_is_not_fooled",
        )
        for name, text in (
            ("flipped gradient sign", "the sign of the gradient flipped"),
            ("pseudo-random gradient", "a pseudo-random gradient"),
            ("imitated smooth gradient", "the gradient of another model"),
            ("decoy head", "a decoy head for gradients"),
        )
    },
    "2": Reproduction(
        "2: NaN under attack (true: 0%)",
        lambda: of_broken_model("nan under attack"),
        "evaluation/test_evaluate.py::test_outputs_that_are_not_finite_under_attack_count_as_fooled",
    ),
    "3": Reproduction(
        "3: a model that needs the normalization of ImageNet, evaluated without",
        no_normalization,
        f"{BROKEN_TESTS}::test_a_model_without_its_normalization_is_found",
    ),
    "4: checkpoint": Reproduction(
        "4: `last.pt` lost in the best final epoch, the same command again",
        lost_checkpoint,
        f"{RESUME_TESTS}::test_a_last_checkpoint_lost_after_the_best_final_epoch_is_written_again",
    ),
    "4: first file": Reproduction(
        "4: killed while `run.json` is written, the same command again",
        killed_in_first_file,
        f"{RESUME_TESTS}::test_a_kill_while_the_first_file_is_written_leaves_a_folder_to_train_in",
    ),
    "5: swapped": Reproduction(
        "5: two class folders swapped", lambda: warnings_of_images(swap_classes), AUDIT_TEST
    ),
    "5: copied": Reproduction(
        "5: `val/` is a copy of `train/`",
        lambda: warnings_of_images(copy_training_images),
        AUDIT_TEST,
    ),
    "5: repeated": Reproduction(
        "5: each image five times", lambda: warnings_of_images(repeat_images), AUDIT_TEST
    ),
    "6": Reproduction(
        "6: clocks at random speed, as on a busy machine",
        records_and_clocks,
        "evaluation/test_clock.py::test_records_do_not_depend_on_a_clock",
    ),
    "7: folder": Reproduction(
        "7: `train --out /proc/x/run`",
        unwritable_folder,
        "cli/test_cli.py::test_a_full_or_read_only_disk_is_one_line_and_loses_nothing",
    ),
    "7: signal": Reproduction(
        "7: SIGTERM in the first second (130 is documented)",
        stopped_at_once,
        "cli/test_interrupted_start.py::test_interrupted_while_it_imports",
    ),
}


def result_of(name: str, tree: Path) -> str:
    """What a reproduction prints with the sources of a tree."""
    paths = os.pathsep.join([str(tree / "src"), str(ROOT / "tests")])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    line = [sys.executable, __file__, "--one", name]
    done = subprocess.run(line, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} with {tree}:\n{done.stderr}")
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--out", type=Path, default=Path("docs/measured/reproductions.md"))
    parser.add_argument("--one", help="run this reproduction here, and print its result")
    options = parser.parse_args()
    if options.one:
        print(REPRODUCTIONS[options.one].run())
        return
    lines = ["| case | before | now | test |", "| --- | --- | --- | --- |"]
    for name, case in REPRODUCTIONS.items():
        results = " | ".join(result_of(name, tree) for tree in (options.before.resolve(), ROOT))
        lines.append(f"| {case.text} | {results} | `tests/{case.test}` |")
        print(lines[-1], flush=True)
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
