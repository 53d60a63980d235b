"""The model card: results, warnings, training and provenance of exported weights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from buttress import __version__
from buttress.export.leaderboard import LeaderboardRecord, ModelCredit
from buttress.export.verified import VerifiedResults, public_dataset_name
from buttress.report.formatting import safe_link
from buttress.results.core import AccuracyEstimate
from buttress.results.evaluation import Evaluation
from buttress.results.robustbench import LEADERBOARD_DATASETS, leaderboard_dataset
from buttress.results.run import CheckpointName
from buttress.results.run_results import RunResults

WORST_CASE_TITLE = "worst-case robust accuracy"
PIPELINE_TAG = "image-classification"


@dataclass(frozen=True)
class ExportContent:
    """Content of a model card."""

    run: RunResults
    checkpoint: CheckpointName
    credit: ModelCredit
    description: Mapping[str, Any]  # content of buttress.json
    parameters: int
    source: str  # the Python file beside the weights, if there is one
    verified: VerifiedResults
    records: Sequence[LeaderboardRecord]


@dataclass(frozen=True)
class CardRow:
    title: str
    threat: str
    estimate: AccuracyEstimate


class RawText(str):
    """Text for a place where Markdown is not read."""


def render_model_card(content: ExportContent) -> str:
    """The text of ``README.md``, with the metadata block of Hugging Face in front."""
    env = Environment(
        loader=PackageLoader("buttress.export", "."),
        autoescape=False,  # this is Markdown, not HTML: `escape_markdown` escapes every value
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=escape_markdown,
        keep_trailing_newline=True,
    )
    env.filters.update(verbatim=RawText, percent=lambda share: f"{100 * share:.2f}%")
    text = env.get_template("card.md.j2").render(
        metadata=yaml.safe_dump(hub_metadata(content), sort_keys=False, allow_unicode=True),
        run=content.run,
        credit=content.credit,
        link=safe_link(content.credit.link),
        facts=content.description,
        dataset=public_dataset_name(content.run.spec.dataset),
        has_board=leaderboard_dataset(content.run.spec.dataset) in LEADERBOARD_DATASETS.values(),
        tables=[card_table(s) for s in content.verified.evaluations],
        refused=content.verified.rejected,
        warnings=list(dict.fromkeys([*content.run.warnings, *content.verified.warnings])),
        records=content.records,
        source=content.source,
        model=model_facts(content),
        training=training_facts(content.run),
        origin=origin_facts(content),
        spec=spec_json(content.run),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def hub_metadata(content: ExportContent) -> dict[str, Any]:
    """Metadata block for the Hugging Face Hub."""
    run = content.run
    tags = [
        "adversarial-robustness",
        "buttress",
        run.objective,
        *([run.category] if run.category else []),
    ]
    results = [hub_result(s) for s in content.verified.evaluations]
    index = {"model-index": [{"name": content.credit.name, "results": results}]} if results else {}
    return {"library_name": "buttress", "pipeline_tag": PIPELINE_TAG, "tags": tags, **index}


def hub_result(suite: Evaluation) -> dict[str, Any]:
    name = public_dataset_name(suite.dataset)
    return {
        "task": {"type": PIPELINE_TAG},
        "dataset": {"name": name, "type": name.replace(":", "-"), "split": suite.split},
        "metrics": [
            {
                "type": "accuracy",
                "name": f"accuracy, {row.title} {row.threat}".strip()
                + f", {row.estimate.n} images",
                "value": round(row.estimate.accuracy, 4),
            }
            for row in card_rows(suite)
        ],
    }


def card_table(suite: Evaluation) -> dict[str, Any]:
    return {
        "dataset": public_dataset_name(suite.dataset),
        "split": suite.split,
        "images": len(suite),
        "suite": suite.suite,
        "rows": card_rows(suite),
    }


def card_rows(suite: Evaluation) -> list[CardRow]:
    """Rows per attack, then worst-case robust accuracy if the suite is complete."""
    table_rows = [CardRow(n, r.definition.threat, r.estimate) for n, r in suite.results.items()]
    if suite.unreadable or suite.missing_entries:
        return table_rows
    return [*table_rows, CardRow(WORST_CASE_TITLE, "", suite.estimate())]


def model_facts(content: ExportContent) -> dict[str, str]:
    facts = content.description
    settings = {
        "architecture": str(facts["model"]),
        "category": content.run.category,
        "arguments": json.dumps(facts["model_args"]) if facts["model_args"] else "",
        "parameters": f"{content.parameters:,}",
        "images": f"{facts['in_channels']} x {facts['image_size']} x {facts['image_size']}",
        "mean": ", ".join(f"{v:g}" for v in facts["mean"]),
        "std": ", ".join(f"{v:g}" for v in facts["std"]),
        "classes": ", ".join(facts["classes"][:20])
        + (" ..." if len(facts["classes"]) > 20 else ""),
    }
    return {k: v for k, v in settings.items() if v}


def training_facts(run: RunResults) -> dict[str, str]:
    recipe, spec = run.spec.recipe, run.spec
    args = json.dumps(recipe.objective.args) if recipe.objective.args else ""
    facts = {
        "data": public_dataset_name(spec.dataset)
        + (f", the first {spec.limit} images" if spec.limit else ""),
        "recipe": recipe.name,
        "source of the recipe": recipe.source,
        "objective": f"{recipe.objective.name} {args}".strip(),
        "threat model": run.training_threat or "none",
        "epochs": str(recipe.epochs),
        "batch size": str(recipe.batch_size),
        "optimizer": f"{recipe.optimizer.name}, lr {recipe.optimizer.lr:g}, "
        f"weight decay {recipe.optimizer.weight_decay:g}",
        "schedule": recipe.schedule.name,
        "averaged weights": recipe.weight_averaging.kind if recipe.weight_averaging else "",
        "extra training data": public_dataset_name(recipe.extra_data.dataset)
        if recipe.extra_data
        else "",
        "checkpoint selected on": f"{recipe.select_on} images",
        "fine-tuned from": str(run.header.get("finetuned_from", {}).get("source", "")),
        "seed": str(spec.seed),
    }
    return {k: v for k, v in facts.items() if v}


def origin_facts(content: ExportContent) -> dict[str, str]:
    header = content.run.header
    versions = header.get("versions")
    version_items = versions.items() if isinstance(versions, Mapping) else ()
    facts = {
        "exported by": f"Buttress {__version__}",
        "checkpoint": f"the {content.checkpoint} epoch",
        "SHA-256 of model.safetensors": str(content.description["weights_sha256"]),
        "key of the run": str(header.get("key", "")),
        "command": strip_folders(str(header.get("command", ""))),
        "trained": str(header.get("time", "")),
        "machine": str(header.get("platform", "")),
        "versions": ", ".join(f"{name} {version}" for name, version in version_items),
    }
    return {k: v for k, v in facts.items() if v}


def spec_json(run: RunResults) -> str:
    spec = run.spec.model_dump(mode="json", exclude_defaults=True)
    return strip_folders(json.dumps(spec, indent=1, ensure_ascii=False))


def strip_folders(text: str) -> str:
    """Replace absolute paths by their last part, as folder names may be private."""
    return re.sub(r"(?<![\w.~/])~?/(?:[^\s\"'/:]+/)+", "", text)


def escape_markdown(value: Any) -> Any:
    """A value as text that Markdown and HTML leave as it is, on one line."""
    if isinstance(value, RawText) or not isinstance(value, str):
        return value
    line = " ".join(value.split())
    escaped = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", line)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
