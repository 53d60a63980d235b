"""Does the loss rise along the gradient, and does a ball without limits leave nothing?"""

from __future__ import annotations

from buttress.attacks.call import How, create_attack, run_attack
from buttress.attacks.core import Attack
from buttress.attacks.freeze import frozen
from buttress.attacks.loop import last_point
from buttress.attacks.losses import margin
from buttress.attacks.problem import Problem
from buttress.evaluation.doctor.core import CHECKS, LOOK, Patient, finding
from buttress.evaluation.doctor.guessing import NEAR_CHANCE
from buttress.records.diagnosis import Finding
from buttress.streams import Streams
from buttress.threat import Threat

ASCENT: dict[str, object] = {"steps": 10, "rel_step": 0.1, "start": "clean"}
STUCK = 0.2  # of the images: where ten small steps along the gradient do not raise the margin
UNBOUNDED: dict[str, object] = {"steps": 20, "rel_step": 0.25, "restarts": 2}
LEFT = 0.05  # of the images may be left in a ball that holds a grey image: the attack may miss some


@CHECKS.register("loss_does_not_rise", tags=("attack",), paper="arXiv:1902.06705")
def loss_does_not_rise(patient: Patient) -> Finding | None:
    """Small steps along the gradient do not bring an image nearer to another class."""
    x, y = patient.x[:LOOK], patient.y[:LOOK]
    ids = patient.data.ids[:LOOK]
    problem = Problem(patient.model, x, y, patient.threat, Streams(patient.seed, "doctor", ids))
    with frozen(patient.model):
        end = last_point(_ascent(), problem)
    rise = margin(patient.answer(end), y) - margin(patient.logits[:LOOK], y)
    right = patient.right[:LOOK]
    if not right.any():
        return None
    stuck = float((rise[right] <= 0).float().mean())
    if stuck <= STUCK:
        return None
    return finding(
        loss_does_not_rise,
        "untrustworthy",
        f"{ASCENT['steps']} small steps along the gradient do not bring {stuck:.0%} of the images "
        "nearer to another class: the gradient does not show where the loss rises",
        "look for randomness, rounding, saturation or a detached layer; attack without gradients "
        "(square)",
        {"stuck": stuck, "mean_rise": float(rise[right].mean())},
    )


@CHECKS.register("survives_any_eps", tags=("attack",), paper="arXiv:1902.06705")
def survives_any_eps(patient: Patient) -> Finding | None:
    """Images survive in a ball in which each can become the same grey image."""
    x, y = patient.x[:LOOK], patient.y[:LOOK]
    norm = patient.threat.norm
    grey = patient.threat.distance(x, x.new_full(x.shape, 0.5))
    whole = Threat(norm, 0.5 if norm == "Linf" else float(grey.max()))
    how = How(patient.seed, stop_when_broken=True)
    ids = patient.data.ids[:LOOK]
    out = run_attack(
        create_attack("pgd", **UNBOUNDED), patient.model, x, y, whole, ids=ids, how=how
    )
    left = 1 - float(out.broken.float().mean())
    guess = 1 / patient.data.num_classes
    if left <= LEFT or float(patient.right.float().mean()) <= NEAR_CHANCE * guess:
        return None
    return finding(
        survives_any_eps,
        "untrustworthy",
        f"{left:.0%} of the images survive pgd in {whole}, where each can be turned into the same "
        "grey image: the attack fails, not the adversary",
        "look for masked gradients: randomness, rounding, saturation or a detached layer",
        {"left": left, "eps": whole.eps},
    )


def _ascent() -> Attack:
    return create_attack("pgd", **ASCENT)
