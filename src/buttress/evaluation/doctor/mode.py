"""Is the model in evaluation mode?"""

from __future__ import annotations

from buttress.evaluation.doctor.core import CHECKS, Patient, finding
from buttress.evaluation.doctor.watch import in_training
from buttress.records.diagnosis import Finding


@CHECKS.register("training_mode", tags=("look",))
def training_mode(patient: Patient) -> Finding | None:
    """Modules are in training mode, where dropout drops and BatchNorm looks at the batch."""
    kinds = in_training(patient.model)
    if not kinds:
        return None
    acting = [k for k in kinds if "Dropout" in k or "BatchNorm" in k]
    names = f" ({', '.join(acting)} act differently there)" if acting else ""
    return finding(
        training_mode,
        "warning",
        f"the model was in training mode{names}; it was evaluated in evaluation mode and put back",
        "call model.eval() before you measure anything yourself",
        {"modules": ", ".join(kinds[:5])},
    )
