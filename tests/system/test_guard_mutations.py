"""Deliberate errors in what guards against false and lost results, each caught by a named test."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation import test_broken_models as broken
from evaluation import test_evaluate as evaluation
from evaluation import test_input_audit as audit
from evaluation.unnormalized import IMAGENET_STATISTICS
from mutations import SAYS_NO, Mutation, applied
from studies.runner import test_lock as locks
from system import test_files as files

FOLDER, PATCH = object(), object()  # stand for the fixtures of a test
NOT_FINITE = evaluation.test_outputs_that_are_not_finite_under_attack_count_as_fooled
DEFENCE = broken.test_a_broken_defence_is_not_trustworthy
NOT_NORMALIZED = broken.test_a_missing_normalization_with_common_statistics_is_found
ON_DISK = files.test_file_and_folder_reach_the_disk
CONTAINER = locks.test_in_a_container_with_the_same_host_name_only_the_age_counts
SCOPE = "(self.host, self.boot_id, self.pid_namespace) == _process_scope()"

M = Mutation

MUTATIONS = [
    # What is not finite.
    M("outputs that are not finite are robust", "evaluation.run_entry:_predict",
      "((predictions == labels) & is_finite)", "((predictions == labels) | ~is_finite)",
      NOT_FINITE, ("pgd-linf", math.nan)),
    # Checks that do not trust gradients.
    M("gradients are not checked", "evaluation.cross_check:AttackChecks.run",
      'run_checks(subject, "attack")', "[]", DEFENCE,
      ("flipped gradient sign", "loss_does_not_increase")),
    M("outputs are not checked", "evaluation.evaluate:evaluate_model",
      '*run_checks(subject, "model")', "", DEFENCE,
      ("grad mode, other outputs", "gradient_mode_dependent_outputs")),
    M("robust images are not queried", "evaluation.cross_check:cross_check",
      "check.query(check.robust, FULL_QUERIES, progress)", "pass",
      broken.test_images_that_only_queries_fool_count_in_the_worst_case, (PATCH,)),
    M("examples of the copy are not tried", "evaluation.cross_check:RobustImages.transfer",
      "if copy is None:", "if True:",
      broken.test_the_ensemble_fast_is_not_fooled, ("decoy head", "L2")),
    # The images.
    M("images are not audited", "evaluation.evaluate:evaluate_model",
      '*run_checks(images, "data"), ', "", audit.test_a_checkpoint_on_the_train_split_is_a_warning),
    M("copies count as images", "evaluation.doctor.images:EvaluatedImages.duplicate_groups",
      "if hashes is None:", "if True:", audit.test_copies_do_not_narrow_the_interval),
    M("tensors of the model are not looked at", "evaluation.doctor.memorized:_image_rows",
      "yield tensor.flatten(1)", "pass", broken.test_evaluated_images_within_a_model_are_found),
    M("two pairs of statistics are tried", "evaluation.doctor.normalization:_candidate_statistics",
      "in COMMON_STATISTICS if", "in COMMON_STATISTICS[:1] if",
      NOT_NORMALIZED, (IMAGENET_STATISTICS, 32)),
    M("the first images are looked at", "evaluation.evaluate:_check_first_images",
      "range(0, len(data), step)", "range(len(data))",
      broken.test_a_missing_normalization_that_the_first_images_do_not_show_is_found),
    M("permuted labels are another form", "evaluation.doctor.normalization:_best_transform",
      "if label_permutation(predictions, labels):", "if False:",
      audit.test_swapped_classes_are_no_other_order_of_channels),
    # Files and locks.
    M("nobody waits for a lock", "system.locks:lock_folder",
      "if not lock.acquire():", "if not lock.acquire() and False:",
      evaluation.test_a_second_evaluation_waits_for_the_first, (FOLDER,)),
    M("a process of a container is looked for here", "system.locks:LockHolder.has_exited",
      SCOPE, "self.host == _process_scope()[0]", CONTAINER, (FOLDER, "pid_namespace")),
    M("the file is not synced", "system.files:atomic_write",
      "sync_to_disk(temporary)", "pass", ON_DISK, (FOLDER, PATCH)),
    M("the folder is not synced", "system.files:atomic_write",
      "sync_to_disk(path.parent)", "pass", ON_DISK, (FOLDER, PATCH)),
    M("leftovers stay", "system.files:_remove_leftovers",
      "path.unlink(missing_ok=True)", "pass",
      evaluation.test_what_a_killed_evaluation_left_is_removed, (FOLDER,)),
]  # fmt: skip


def run_test(mutation: Mutation, folder: Path, patch: pytest.MonkeyPatch) -> None:
    fixtures: dict[Any, Any] = {FOLDER: folder, PATCH: patch}
    known = (FOLDER, PATCH)
    mutation.caught_by(*(fixtures[a] if a in known else a for a in mutation.args))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_an_error_is_caught(
    mutation: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied(mutation, monkeypatch)
    with pytest.raises(SAYS_NO):
        run_test(mutation, tmp_path, monkeypatch)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_the_same_source_unchanged_passes(
    mutation: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied(replace(mutation, new=mutation.old), monkeypatch)
    run_test(mutation, tmp_path, monkeypatch)
