"""Writes the reference of the public names from the package itself, one heading per stage."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import buttress

# The package that a name comes from -> heading; in the order of the page.
HEADINGS = {
    "data": "Data",
    "models": "Models",
    "threats": "Threat models",
    "attacks": "Attacks",
    "engine": "Attacks",
    "training": "Training",
    "evaluation": "Evaluation",
    "results": "Comparison",
    "analysis": "Analysis",
    "studies": "Studies",
    "report": "Report",
    "export": "Export",
}
# Names beside those of `buttress` that pages and tutorials use, by heading.
FURTHER = {
    "Attacks": ["engine.configured.ConfiguredAttack", "engine.result.AttackResult"],
    "Comparison": [
        "results.ComparisonRow",
        *(
            f"statistics.{name}"
            for name in (
                "wilson_interval", "mcnemar", "paired_difference", "score_interval",
                "bootstrap_mean_interval", "mcnemar_power", "detectable_difference",
                "summarize_seeds", "summarize_seeds_and_images", "seed_difference", "holm",
                "spearman", "spearman_p_value", "auc",
            )
        ),
    ],
    "Studies": [
        "studies.load_study", "studies.expand_study", "studies.plan_study",
        "studies.runner.run_study", "studies.runner.RunnerOptions",
    ],
    "Report": ["report.write_study_report", "report.write_site"],
    "Export": ["export.ExportResult"],
    "Runs": ["results.run.Run"],
    "Errors": [
        f"errors.{name}"
        for name in ("ButtressError", "UserError", "UnknownNameError", "DataError", "RunError",
                     "CorruptFileError")
    ],
}  # fmt: skip


def reference() -> str:
    """Every public name with its signature and docstring, below the heading of its stage."""
    public: dict[str, list[str]] = {}
    for name in buttress.__all__:
        value = getattr(buttress, name)
        if callable(value) and value.__name__ == name:  # not an alias, the version or a module
            heading = HEADINGS[value.__module__.split(".")[1]]
            public.setdefault(heading, []).append(name)
    pieces = []
    for heading in dict.fromkeys((*HEADINGS.values(), *FURTHER)):
        paths = [*public.get(heading, ()), *FURTHER.get(heading, ())]
        lines = [directive(f"buttress.{path}") for path in paths]
        lines += attack_objects() if heading == "Attacks" else []
        text = "\n\n".join(lines)
        pieces.append(f"## {heading}\n\n```{{eval-rst}}\n{text}\n```\n")
    return "\n".join(pieces)


def directive(path: str) -> str:
    """The autodoc directive of a name."""
    module, _, name = path.rpartition(".")
    value = getattr(__import__(module, fromlist=[name]), name)
    if not inspect.isclass(value):
        return f".. autofunction:: {path}"
    if issubclass(value, Exception):
        return f".. autoexception:: {path}"
    members = ", ".join(own_members(value))
    return f".. autoclass:: {path}" + (
        f"\n   :members: {members}\n   :undoc-members:" if members else ""
    )


def own_members(value: type) -> Iterable[str]:
    """Public methods and properties that the class itself defines, in order."""
    kinds = (property, classmethod, staticmethod)
    for name, member in vars(value).items():
        is_method = inspect.isfunction(member) or isinstance(member, kinds)
        if not name.startswith("_") and (is_method or hasattr(member, "func")):
            yield name


def attack_objects() -> list[str]:
    """The signature of each class of ``bt.attacks`` with its summary; formulas are elsewhere."""
    from buttress.attacks import ATTACKS

    names = {entry.value.__name__: entry for entry in ATTACKS}
    return [
        f".. py:function:: buttress.attacks.{name}{signature(name)}\n\n   "
        f"{entry.summary} `buttress list attacks` calls it ``{entry.name}``."
        for name, entry in sorted(names.items())
    ]


def signature(name: str) -> str:
    """The arguments of an attack object; its annotations are left out to keep it short."""
    found = inspect.signature(getattr(buttress.attacks, name))
    empty = inspect.Parameter.empty
    short = [p.replace(annotation=empty) for p in found.parameters.values()]
    return str(found.replace(parameters=short, return_annotation=inspect.Signature.empty))
