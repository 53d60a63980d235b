"""Seven kinds of false or lost results: what an earlier version did, and what this one does.

    python benchmarks/reproductions.py --before TREE --out docs/measured/reproductions.md

``TREE`` is another checkout of this repository. Each reproduction runs in a process of its own,
with the sources of one of the two, and prints one line. The result of this version must be the
right one, and that of the other must not.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM

import reproduced_commands as commands
import reproduced_models as models

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Reproduction:
    text: str  # begins with the number of its kind
    run: Callable[[], str]
    right: str  # pattern of the right result
    test: str  # which guards against it

    def is_right(self, result: str) -> bool:
        return re.fullmatch(self.right, result) is not None


BROKEN_TESTS = "evaluation/test_broken_models.py"
FAST_TEST = f"{BROKEN_TESTS}::test_the_ensemble_fast_is_not_fooled"
NORMALIZATION_TEST = f"{BROKEN_TESTS}::test_a_missing_normalization_with_common_statistics_is_found"
RESUME_TESTS = "training/test_resume.py"
LAST_TEST = (
    f"{RESUME_TESTS}::test_a_last_checkpoint_lost_after_the_best_final_epoch_is_written_again"
)
AUDIT_TESTS = "evaluation/test_input_audit.py"
AUDIT_TEST = f"{AUDIT_TESTS}::test_a_mistake_in_the_images_is_a_finding"
CLI_TESTS = "cli/test_cli.py"
START_TEST = "cli/test_interrupted_start.py::test_interrupted_while_it_imports"
SIGNAL_TEST = f"{CLI_TESTS}::test_stopped_by_a_signal_it_exits_130"
UNTRUSTWORTHY = r".*, untrustworthy"
FOOLED = r"\d%, untrustworthy"
FINISHED = "exit code 0"
ONE_LINE = "exit code [12], one line: buttress: .*"
R = Reproduction

REPRODUCTIONS = [
    R("1: `fast` in Linf, sign of the gradient flipped (true: 0%)",
      lambda: models.fast_on("flipped gradient sign"), FOOLED, FAST_TEST),
    R("1: the same in L2", lambda: models.fast_on("flipped gradient sign", "L2:2"),
      FOOLED, FAST_TEST),
    R("1: the same in L1", lambda: models.fast_on("flipped gradient sign", "L1:20"),
      FOOLED, FAST_TEST),
    R("1: `fast`, pseudo-random gradient (true: 0%)",
      lambda: models.fast_on("pseudo-random gradient"), FOOLED, FAST_TEST),
    R("1: `fast`, imitated smooth gradient (true: 0%)",
      lambda: models.fast_on("imitated smooth gradient"), FOOLED, FAST_TEST),
    R("1: `fast`, decoy head for gradients (true: 0%)",
      lambda: models.fast_on("decoy head"), FOOLED, FAST_TEST),
    R("1: `fast`, logits clamped at 4 (true: at most 3%)",
      lambda: models.fast_on("logits clamped at 4"), FOOLED, FAST_TEST),
    R("1: `fast`, label of the nearest test image added to the logits",
      lambda: models.fast_on("label leak beside a network"), UNTRUSTWORTHY, FAST_TEST),
    R("1: `fast`, labels of test images weighted by their distance",
      lambda: models.fast_on("smooth label leak"), UNTRUSTWORTHY, FAST_TEST),
    R("1: `fast`, other outputs by `torch.is_grad_enabled()` (true: 0%)",
      lambda: models.fast_on("grad mode, other outputs"), FOOLED, FAST_TEST),
    R("1: `fast`, leaked labels by `torch.is_grad_enabled()`",
      lambda: models.fast_on("grad mode, leaked labels"), UNTRUSTWORTHY, FAST_TEST),
    R("1: the doctor, leaked labels by `torch.is_grad_enabled()`",
      lambda: models.doctor_on("grad mode, leaked labels"), UNTRUSTWORTHY,
      f"{BROKEN_TESTS}::test_the_doctor_notices_a_model_that_looks_at_the_grad_mode"),
    *(R(f"2: {value} under attack (true: 0%)",
        lambda value=value: models.fast_on(f"{value} under attack"), FOOLED,  # type: ignore[misc]
        "evaluation/test_evaluate.py::"
        "test_outputs_that_are_not_finite_under_attack_count_as_fooled")
      for value in ("nan", "inf")),
    *(R(f"3: a model that needs (x - 0.5) / 0.25, without it, {images} images",
        lambda images=images: models.no_normalization((0.5,), (0.25,), images),  # type: ignore[misc]
        ".*`not_normalized`.*", NORMALIZATION_TEST) for images in (32, 64)),
    R("3: a model that needs the mean and std of ImageNet, without them, 64 images",
      lambda: models.no_normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 64),
      ".*`not_normalized`.*", NORMALIZATION_TEST),
    R("3: a missing normalization that the first 64 of 192 images do not show",
      models.no_normalization_behind_the_first, ".*`not_normalized`.*",
      f"{BROKEN_TESTS}::test_a_missing_normalization_that_the_first_images_do_not_show_is_found"),
    R("3: labels in reverse order", lambda: models.clean_on("labels in reverse"),
      "clean accuracy .*%, `permuted_labels`",
      f"{BROKEN_TESTS}::test_labels_in_another_order_are_named"),
    R("4: `last.pt` lost, the last epoch being the best; the same command again",
      lambda: commands.damaged_last_checkpoint(is_lost=True), FINISHED, LAST_TEST),
    R("4: `last.pt` truncated, the last epoch being the best; the same command again",
      lambda: commands.damaged_last_checkpoint(is_lost=False), FINISHED, LAST_TEST),
    R("4: killed between `best.pt` and `last.pt` with `epochs=1`, the same command again",
      lambda: commands.killed_while_writing("last.pt"), FINISHED,
      "system/test_crash_points.py::test_every_point"),
    R("4: killed while `run.json` is written, the same command again",
      lambda: commands.killed_while_writing("run.json"), FINISHED,
      f"{RESUME_TESTS}::test_a_kill_while_the_first_file_is_written_leaves_a_folder_to_train_in"),
    R("5: two class folders swapped", lambda: models.findings_of_images(models.swap_classes),
      ".*`permuted_labels`", AUDIT_TEST),
    R("5: `val/` is a copy of `train/`",
      lambda: models.findings_of_images(models.copy_training_images), ".*`training_images`",
      AUDIT_TEST),
    R("5: each image five times", lambda: models.findings_of_images(models.repeat_images),
      ".*`duplicate_images`", AUDIT_TEST),
    R("5: evaluation on the run's own training split", models.own_training_split,
      "untrustworthy, .*`training_images`.*",
      f"{AUDIT_TESTS}::test_evaluation_on_the_training_images_of_a_run"),
    R("5: a class that is empty in `val/`", lambda: models.findings_of_images(models.empty_class),
      ".*`empty_classes`", AUDIT_TEST),
    R("5: three images beside the class folders",
      lambda: models.findings_of_images(models.stray_images), ".*`dropped_files`", AUDIT_TEST),
    R("6: clocks at random speed, as on a busy machine", models.records_and_clocks, "1 different.*",
      "evaluation/test_clock.py::test_records_do_not_depend_on_a_clock"),
    R("7: the disk is full (100 KiB)", lambda: commands.on_disk("size=100k"), ONE_LINE,
      f"{RESUME_TESTS}::test_a_disk_that_fills_up_within_a_checkpoint_is_an_error_of_the_disk"),
    R("7: the working directory was deleted", commands.deleted_directory, ONE_LINE,
      f"{CLI_TESTS}::test_a_deleted_working_directory_is_one_line"),
    R("7: `train --out /proc/x/run`", commands.unwritable_folder, ONE_LINE,
      f"{CLI_TESTS}::test_an_output_folder_that_cannot_exist_is_one_line"),
    R("7: an evaluation killed in its second record, the same command again",
      commands.leftovers_of_an_evaluation, "exit code 0, 0 .part files left",
      "evaluation/test_evaluate.py::test_what_a_killed_evaluation_left_is_removed"),
    R("7: two `train` in one folder", commands.two_trainings, "waits: .* is locked by .*",
      f"{RESUME_TESTS}::test_a_second_training_waits_for_the_first"),
    R("7: a lock of a living process in another PID namespace", commands.lock_of_a_container,
      "refused", "studies/runner/test_lock.py::"
      "test_in_a_container_with_the_same_host_name_only_the_age_counts"),
    *(R(f"7: {number.name} while modules are imported (130 is documented)",
        lambda number=number: commands.exit_code_in_imports(number),  # type: ignore[misc]
        "exit code 130", START_TEST) for number in (SIGTERM, SIGINT)),
    R("7: SIGTERM in training", lambda: commands.exit_code_in_training(SIGTERM),
      "exit code 130", SIGNAL_TEST),
    R("7: `done.json` replaced by a folder, the same command again",
      lambda: commands.folder_in_place_of("done.json"), ".*'run/done.json'.* move away .*",
      f"{CLI_TESTS}::test_a_file_replaced_by_a_folder_or_the_reverse_is_one_line"),
    R("7: absolute paths in runs, records, exports and pages", commands.absolute_paths, "0 of .*",
      "cli/test_own_models.py::test_no_absolute_path_in_records_exports_and_pages"),
    R("7: one letter of `run.json` changed, the same command again", commands.damaged_header,
      "exit code 0, .*run.json.*", f"{RESUME_TESTS}::test_a_damaged_file_is_named_and_made_again"),
    R("7: a written file and its name reach the disk", commands.synced_folder,
      "1 file and 1 folder synced", "system/test_files.py::test_file_and_folder_reach_the_disk"),
]  # fmt: skip


def result_of(case: Reproduction, tree: Path) -> str:
    """What a reproduction prints with the sources of a tree."""
    paths = os.pathsep.join([str(tree / "src"), str(ROOT / "tests")])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    line = [sys.executable, __file__, "--one", case.text]
    done = subprocess.run(line, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise RuntimeError(f"{case.text} with {tree}:\n{done.stderr}")
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--out", type=Path, default=Path("docs/measured/reproductions.md"))
    parser.add_argument("--only", default="", help="cases whose text has this")
    parser.add_argument("--one", help="run this reproduction here, and print its result")
    options = parser.parse_args()
    if options.one:
        print(next(case for case in REPRODUCTIONS if case.text == options.one).run())
        return
    lines, wrong = ["| case | before | now | test |", "| --- | --- | --- | --- |"], []
    for case in REPRODUCTIONS:
        if options.only not in case.text:
            continue
        before, now = (result_of(case, tree) for tree in (options.before.resolve(), ROOT))
        lines.append(f"| {case.text} | {before} | {now} | `tests/{case.test}` |")
        print(lines[-1], flush=True)
        if case.is_right(before) or not case.is_right(now):
            wrong.append(lines[-1])
    if not options.only:
        options.out.write_text("\n".join(lines) + "\n")
    if wrong:
        raise SystemExit("\n".join(["not reproduced, or not mended:", *wrong]))


if __name__ == "__main__":
    main()
