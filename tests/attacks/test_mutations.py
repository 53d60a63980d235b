"""Deliberate errors in the attacks: each is put into the real source and caught by a named test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attacks import test_apgd as apgd
from attacks import test_autoattack as autoattack
from attacks import test_contract as contract
from attacks import test_fast as fast
from attacks import test_hyperplane as hyperplane
from attacks import test_losses as losses
from attacks import test_oracles as oracles
from attacks import test_square as square
from engine import test_deal as deal
from engine import test_loop as loop
from engine import test_randomness as randomness
from mutations import SAYS_NO, Mutation, applied
from system import test_streams as streams
from threats import test_threat as threat

LINF = ("pgd", "Linf")
BALL = contract.test_stays_in_ball_and_box_and_beats_clean_and_noise
MARGIN = oracles.test_reaches_the_largest_margin_of_a_linear_model
SMALL = ("convolution", 10, 3, 7)
NEAREST = threat.test_projection_is_the_nearest_point.hypothesis.inner_test
BATCHES = contract.test_batches_change_nothing_in_float64
DROPPING = contract.test_dropping_broken_samples_changes_no_verdict
UNTOUCHED = contract.test_nothing_of_the_model_is_touched
OTHER_SEED = contract.test_same_seed_same_answer_other_seed_other_start
NOT_LABEL = contract.test_targets_are_never_the_label

M = Mutation


MUTATIONS = [
    # The step and the ball.
    M("the step goes down", "attacks.pgd:ProjectedGradientAttack.next_points",
      "step.add_(state.x_t)", "state.x_t - step", MARGIN, (*LINF, oracles.binary)),
    M("no projection", "attacks.pgd:ProjectedGradientAttack.next_points",
      "problem.project_(x_next)", "x_next", BALL, (*LINF, *SMALL)),
    M("the box is forgotten", "threats.norm_ball:NormBall.bounds",
      ".clamp_max_(1)", "", BALL, (*LINF, *SMALL)),
    M("L1 is rescaled, not projected", "threats.projections:project_l1",
      "sign, lengths.lengths, eps", "sign, room, eps",
      threat.test_projection_keeps_float32_in_ball_and_box, ("L1",)),
    M("L2 is scaled and then clipped", "threats.projections:project_l2",
      "(t[:, None] * size).minimum(room)", "size", NEAREST, ("L2", 3, 6, 0.9, 0.5)),
    M("the L1 step is dense", "threats.norm_ball:NormBall.step_direction",
      "max(1, round(density * flat.shape[1]))", "flat.shape[1]",
      threat.test_l1_ascent_skips_what_the_box_blocks),
    M("the L1 step of APGD is dense", "attacks.apgd_l1:_sparse_signs",
      "size < threshold", "size < 0", MARGIN, ("apgd-ce", "L1", oracles.binary)),
    M("points of the larger balls count", "attacks.apgd_l1:is_last_phase",
      "== 1", ">= 1", BALL, ("apgd-ce", "L1", *SMALL)),
    # Starts and random numbers.
    M("no random start", "attacks.pgd:ProjectedGradientAttack.init_state",
      'if self.start == "clean":', "if True:", OTHER_SEED, LINF),
    M("the start is biased", "threats.norm_ball:NormBall.random_point",
      ".sub_(1)", ".sub_(0.5)",
      threat.test_random_starts_are_centred_and_inside, ("Linf",)),
    M("all restarts draw the same", "system.rng:SampleRNG._draw",
      "self.sample_keys(restart)", "self.sample_keys(0)",
      contract.test_more_restarts_are_never_weaker, LINF),
    M("noise belongs to places in the batch", "system.rng:SampleRNG.sample_keys",
      "splitmix64(splitmix64(self.ids) ^ salt)",
      "splitmix64(splitmix64(torch.arange(len(draw_ids))) ^ salt)",
      BATCHES, (*LINF, 7)),
    M("the seed is ignored", "system.rng:SampleRNG.sample_keys",
      "_signed(derive_seed(self.seed, self.purpose, draw_id))",
      "_signed(derive_seed(self.purpose, draw_id))",
      streams.test_a_draw_depends_on_seed_purpose_restart_and_id_alone),
    M("the start is not stretched", "attacks.problem:Problem.random_start_on_sphere",
      "scale * threat.eps / size", "scale * threat.eps + 0 * size",
      apgd.test_starts_are_stretched_to_the_border_of_the_ball, ("L2",)),
    # What is raised, and towards which class.
    M("one hinge for the whole batch", "attacks.pgd:CarliniWagner.compute_loss",
      "margin_to_target(problem, state, logits).clamp_max(0)",
      "margin_to_target(problem, state, logits).sum().clamp_max(0).expand(len(logits))",
      contract.test_the_hinge_on_the_batch_sum_stops_everyone),
    M("a drawn target may be the label", "attacks.targets:choose_target",
      "(problem.y + 1 + (uniform", "(problem.y + (uniform", NOT_LABEL, ("random", 10)),
    M("a ranked target may be the label", "attacks.targets:sort_other_classes",
      ".scatter(1, y[:, None], -torch.inf)", "", NOT_LABEL, ("each", 3)),
    M("more targets than classes", "attacks.apgd:APGDT.num_runs",
      "min(self.targets, num_classes - 1 - self.skip_targets)", "self.targets",
      apgd.test_there_are_never_more_targets_than_other_classes, ("apgd-t", 3, 2)),
    M("the ratio divides by the second gap", "attacks.losses:dlr",
      "top[:, 2]", "top[:, 1]", losses.test_ratio_divides_by_the_first_less_the_third),
    # The rule for the step size.
    M("APGD never halves its step", "attacks.apgd:_halve_stalled_steps",
      "state.step_size / 2", "state.step_size",
      apgd.test_a_window_in_which_three_quarters_rise_halves_the_step),
    M("APGD forgets its best point", "attacks.apgd:_halve_stalled_steps",
      "copy_rows_(x_t, should_halve, state.best_x)", "pass",
      apgd.test_a_window_in_which_three_quarters_rise_halves_the_step),
    M("the first step is compared with the start", "attacks.apgd:_update_best",
      "output.loss.where(~is_start, state.prev_loss)", "output.loss",
      apgd.test_the_first_step_is_compared_with_zero),
    M("stagnation counts at once", "attacks.apgd:AutoPGD.init_state",
      "was_halved=zero == 0", "was_halved=zero == 1",
      apgd.test_stagnation_halves_the_step_but_not_at_the_first_checkpoint_nor_twice_in_a_row),
    M("the momentum points back", "attacks.apgd:AutoPGD.next_points",
      "x_t - state.x_prev", "state.x_prev - x_t",
      apgd.test_the_first_step_is_plain_and_later_ones_repeat_a_quarter_of_the_last_move,
      ("Linf",)),
    # The model.
    M("the model is in training mode", "models.eval_mode:eval_mode",
      "model.eval()", "model.train()", UNTOUCHED, LINF),
    M("the model stays in evaluation mode", "models.eval_mode:eval_mode",
      "module.training = mode", "pass", UNTOUCHED, LINF),
    M("parameters stay frozen", "models.eval_mode:eval_mode",
      "parameter.requires_grad_(required_grad)", "pass",
      contract.test_the_model_is_restored_after_an_exception),
    # The verdict.
    M("the last point, not the best", "engine.batching:BestPoints.update",
      "is_active & (margins > self.margin[index])", "is_active & (margins == margins)",
      BATCHES, ("noise", "Linf", 1)),
    M("points outside the ball count", "attacks.fab:FABBase.valid_mask",
      "return torch.zeros_like(fooled).index_put_((rows,), is_inside)", "return fooled.clone()",
      oracles.test_breaks_exactly_what_can_be_broken, ("fab-t", "Linf", 2)),
    M("logits that are not finite count as robust", "attacks.losses:is_misclassified",
      "| ~logits.isfinite().all(1)", "& logits.isfinite().all(1)",
      loop.test_logits_that_are_not_finite_count_as_fooled, ("pgd", float("inf"))),
    M("passes are not averaged", "attacks.problem:Problem.average_outputs",
      "logits.mean(0),", "logits[0],",
      randomness.test_logits_loss_and_gradient_are_means_over_passes),
    M("one lucky pass fools", "attacks.problem:Problem.average_outputs",
      "is_wrong.all(0),", "is_wrong.any(0),",
      autoattack.test_rand_averages_twenty_passes_at_every_point),
    # The loop.
    M("a pass is not counted", "attacks.problem:PassCounter.count_forward",
      "self.forward, index, passes", "self.forward, index, 0",
      contract.test_passes_are_counted),
    M("a sample that is in two rows counts once", "attacks.problem:_add_at",
      "total.index_add_(0, index, counts)", "total[index] += counts",
      loop.test_the_meter_counts_rows_and_neighbours_alike),
    M("what was not finite is forgotten", "attacks.problem:PassCounter._mark_non_finite",
      "self.non_finite |= _any_row(index, is_non_finite, len(self.non_finite))",
      "self.non_finite[index] = is_non_finite",
      loop.test_the_meter_counts_rows_and_neighbours_alike),
    M("neighbours need not be in order", "attacks.problem:Problem.counter_index",
      "not bool((rows.diff() == 1).all())", "len(rows) != rows[-1] - rows[0] + 1",
      loop.test_rows_are_a_slice_only_if_they_are_neighbours_in_order),
    M("gradients of some rows are counted for all", "attacks.problem:Problem._evaluate_some",
      "gradient), grad_rows)", "gradient))",
      loop.test_gradients_of_some_rows_are_those_of_all_rows),
    M("broken samples stay", "engine.batching:run_queue",
      "batch.is_active &= ~best.fooled[batch.rows]", "pass", DROPPING, LINF),
    M("later parts see everyone", "engine.ensemble:run_ensemble",
      "drop_fooled = options.stop_when_fooled or len(stages) > 1",
      "drop_fooled = options.stop_when_fooled",
      autoattack.test_samples_that_are_wrong_from_the_start_cost_one_pass),
    M("the queue loses its last run", "engine.batching:AttackRunQueue.__len__",
      "len(self.samples) * self.runs - self.num_taken",
      "max(len(self.samples) * self.runs - self.num_taken - 1, 0)", BATCHES, (*LINF, 1)),
    M("new rows go on where an old one is", "engine.batching:_Batch.concat",
      "self.state.concat(other.state)",
      "self.state.concat(self.state.select(torch.zeros_like(other.rows)))",
      loop.test_rows_that_come_and_go_change_nothing, ("pgd", 0)),
    M("new rows take over the old problem", "engine.batching:_Batch.concat",
      "problem.select(rows)", "problem.select(rows.flip(0))",
      loop.test_rows_that_come_and_go_change_nothing, ("pgd", 0)),
    # Square and FAB.
    M("all samples share their windows", "attacks.square.attack:Square.init_state",
      "sample_keys(run_index).to(problem.x.device)",
      "sample_keys(run_index)[:1].expand(len(run_index)).clone()",
      square.test_windows_belong_to_samples_not_to_batches, ("Linf",)),
    M("windows reach the last place", "attacks.square.windows:window_start",
      "(length - side).clamp_min(1)", "(length - side + 1)",
      square.test_every_place_but_the_last_is_drawn, (201, 3)),
    M("worse squares are kept", "attacks.square.attack:Square.next_points",
      "output.loss > state.best_margin", "output.loss < torch.inf",
      square.test_only_a_better_point_is_kept),
    M("a sprint keeps the last better query", "attacks.square.speculative:_first_in_group",
      "is_first[1:] = group_of[1:] != group_of[:-1]",
      "is_first[:-1] = group_of[1:] != group_of[:-1]",
      square.test_sprints_find_what_queries_one_by_one_find, (5, "Linf", 0.02)),
    M("a sprint goes on from the old best point",
      "attacks.square.speculative:SpeculativeQueries.run_pass",
      "query_column.index_select(0, accepted) + 1", "done.index_select(0, accepted_rows)",
      square.test_sprints_find_what_queries_one_by_one_find, (5, "Linf", 0.02)),
    M("queries of a pass go to the wrong image",
      "attacks.square.speculative:SpeculativeQueries._propose",
      "unfinished, first[:, None]", "unfinished, first.flip(0)[:, None]",
      square.test_sprints_find_what_queries_one_by_one_find, (5, "Linf", 0.02)),
    M("those that are ahead do not wait for newcomers",
      "attacks.square.attack:Square._evaluate_rows",
      "state.step - (~is_sequential).long()", "state.step + 0",
      square.test_images_that_come_later_change_nothing),
    M("classes are taken as they came", "engine.ensemble:update_target_order",
      "sort_other_classes(class_margins, problem.y)", "rank_targets(problem)",
      fast.test_later_parts_aim_where_earlier_ones_came_near),
    M("hopeless classes are aimed at", "engine.ensemble:_promising_runs",
      "ranks.to(num_promising) < num_promising.clamp_min(1)",
      "ranks.to(num_promising) < num_promising + 9",
      fast.test_later_parts_aim_where_earlier_ones_came_near),
    M("runs are made that nobody asked for", "engine.batching:AttackRunQueue._is_requested",
      "self.run_mask[samples, run_index]", "self.run_mask[samples, run_index] | True",
      fast.test_later_parts_aim_where_earlier_ones_came_near),
    M("whole images are dealt out only", "engine.processes:partition_runs",
      "run_mask & (owner == k)", "run_mask & (owner[:, :1] == k)",
      deal.test_an_image_over_is_cut_in_the_middle_of_its_runs),
    M("images are dealt out as they follow", "engine.processes:partition_runs",
      "torch.cat([images[k::num_workers] for k in range(num_workers)])", "images",
      deal.test_images_that_follow_each_other_go_to_different_processes),
    M("what the last process found counts", "engine.result:AttackResult.keep_better",
      "larger.where(same_success, other.fooled)", "larger | True",
      deal.test_the_better_of_two_points_counts),
    M("a larger margin beats a broken point", "engine.result:AttackResult.keep_better",
      "larger.where(same_success, other.fooled)", "larger",
      deal.test_the_better_of_two_points_counts),
    M("all runs in L1 are given up", "attacks.apgd_l1:should_stop_early",
      "_lookup(phases.is_back_at_eps, state) & ~state.fooled_in_phase",
      "_lookup(phases.is_back_at_eps, state)",
      apgd.test_a_run_goes_on_that_fooled_the_model_in_the_larger_ball),
    M("no run in L1 is given up", "attacks.apgd_l1:should_stop_early",
      "_lookup(phases.is_back_at_eps, state) & ~state.fooled_in_phase",
      "_lookup(phases.is_back_at_eps, state) & False",
      apgd.test_a_run_is_given_up_that_fooled_nothing_in_the_larger_ball, (0.12,)),
    M("what fooled in the largest ball is enough", "attacks.apgd_l1:next_l1_points",
      "state.fooled_in_phase & ~is_first", "state.fooled_in_phase",
      apgd.test_a_run_is_given_up_that_fooled_nothing_in_the_larger_ball, (0.12,)),
    M("the shortest move ignores the box", "attacks.hyperplane:Hyperplane.step_lengths",
      "signed_room.mul_(-offset.sign()[:, None]).add_(0.5)", "torch.full_like(point, 1e3)",
      hyperplane.test_the_move_is_feasible_and_as_short_as_can_be, ("Linf", 3)),
    M("the L1 move takes small slopes first", "attacks.hyperplane:Hyperplane._solve_l1",
      "top, indices = self._largest_slopes",
      "top, indices = self.size.topk(self.size.shape[1], dim=1, largest=False)",
      hyperplane.test_the_move_is_feasible_and_as_short_as_can_be, ("L1", 3)),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_an_error_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    applied(mutation, monkeypatch)
    with pytest.raises(SAYS_NO):
        mutation.caught_by(*mutation.args)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_the_same_source_unchanged_passes(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is the error that is caught above, not the way it is put in."""
    applied(replace(mutation, new=mutation.old), monkeypatch)
    mutation.caught_by(*mutation.args)


def test_names_of_errors_differ() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
