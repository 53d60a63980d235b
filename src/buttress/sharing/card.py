"""The model card: what a reader must know before using the weights, from records alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from buttress import __version__
from buttress.records.robustbench import DATASETS, board_dataset
from buttress.records.run import Which
from buttress.report.views import RunView, Share, SuiteView
from buttress.report.words import web_link
from buttress.sharing.leaderboard import BoardRecord, Credit
from buttress.sharing.measured import Measured, shown_dataset

WORST = "worst case"
IMAGES = "image-classification"


@dataclass(frozen=True)
class Exported:
    """What a card is about."""

    run: RunView
    which: Which
    credit: Credit
    facts: Mapping[str, Any]  # what buttress.json holds
    parameters: int
    source: str  # the Python file beside the weights, if there is one
    measured: Measured
    records: Sequence[BoardRecord]


@dataclass(frozen=True)
class Row:
    title: str
    threat: str
    share: Share


class Verbatim(str):
    """Text for a place where Markdown is not read."""


def write_card(found: Exported) -> str:
    """The text of ``README.md``, with the metadata block of Hugging Face in front."""
    made = Environment(
        loader=PackageLoader("buttress.sharing", "."),
        autoescape=False,  # this is Markdown, not HTML: `plain` escapes every value
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=plain,
        keep_trailing_newline=True,
    )
    made.filters.update(verbatim=Verbatim, percent=lambda share: f"{100 * share:.2f}%")
    text = made.get_template("card.md.j2").render(
        metadata=yaml.safe_dump(metadata(found), sort_keys=False, allow_unicode=True),
        run=found.run,
        credit=found.credit,
        link=web_link(found.credit.link),
        facts=found.facts,
        dataset=shown_dataset(found.run.spec.dataset),
        has_board=board_dataset(found.run.spec.dataset) in DATASETS.values(),
        tables=[table(s) for s in found.measured.suites],
        refused=found.measured.refused,
        doubts=doubts(found),
        records=found.records,
        source=found.source,
        model=model_facts(found),
        training=training_facts(found.run),
        origin=origin_facts(found),
        spec=shown_spec(found.run),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def metadata(found: Exported) -> dict[str, Any]:
    """The block that the Hugging Face hub reads."""
    run = found.run
    tags = [
        "adversarial-robustness",
        "buttress",
        run.objective,
        *([run.category] if run.category else []),
    ]
    results = [result(s) for s in found.measured.suites]
    index = {"model-index": [{"name": found.credit.name, "results": results}]} if results else {}
    return {"library_name": "buttress", "pipeline_tag": IMAGES, "tags": tags, **index}


def result(suite: SuiteView) -> dict[str, Any]:
    name = shown_dataset(suite.dataset)
    return {
        "task": {"type": IMAGES},
        "dataset": {"name": name, "type": name.replace(":", "-"), "split": suite.split},
        "metrics": [
            {
                "type": "accuracy",
                "name": f"accuracy, {row.title} {row.threat}".strip()
                + f", {row.share.images} images",
                "value": round(row.share.value, 4),
            }
            for row in rows(suite)
        ],
    }


def table(suite: SuiteView) -> dict[str, Any]:
    return {
        "dataset": shown_dataset(suite.dataset),
        "split": suite.split,
        "images": len(suite.survived),
        "suite": suite.suite,
        "rows": rows(suite),
    }


def rows(suite: SuiteView) -> list[Row]:
    """Each attack, then the worst case; the latter only if no attack of the suite is missing."""
    found = [Row(n, r.definition.threat, r.share) for n, r in suite.results.items()]
    if suite.unreadable or not set(suite.expected) <= set(suite.results):
        return found
    worst = Share(int(suite.survived.sum()), len(suite.survived))
    return [*found, Row(WORST, "", worst)]


def doubts(found: Exported) -> list[str]:
    run = found.run
    state = (
        [] if run.run.is_trained else [f"training is not finished: the run's state is {run.state}"]
    )
    return list(dict.fromkeys([*state, *run.run.caveats, *found.measured.doubts]))


def model_facts(found: Exported) -> dict[str, str]:
    facts = found.facts
    shown = {
        "architecture": str(facts["model"]),
        "category": found.run.category,
        "arguments": json.dumps(facts["model_args"]) if facts["model_args"] else "",
        "parameters": f"{found.parameters:,}",
        "images": f"{facts['in_channels']} x {facts['image_size']} x {facts['image_size']}",
        "mean": ", ".join(f"{v:g}" for v in facts["mean"]),
        "std": ", ".join(f"{v:g}" for v in facts["std"]),
        "classes": ", ".join(facts["classes"][:20])
        + (" ..." if len(facts["classes"]) > 20 else ""),
    }
    return {k: v for k, v in shown.items() if v}


def training_facts(run: RunView) -> dict[str, str]:
    recipe, spec = run.spec.recipe, run.spec
    args = json.dumps(recipe.objective.args) if recipe.objective.args else ""
    shown = {
        "data": shown_dataset(spec.dataset)
        + (f", the first {spec.limit} images" if spec.limit else ""),
        "recipe": recipe.name,
        "source of the recipe": recipe.source,
        "objective": f"{recipe.objective.name} {args}".strip(),
        "threat": run.trained_on or "none",
        "epochs": str(recipe.epochs),
        "batch size": str(recipe.batch_size),
        "optimiser": f"{recipe.optimiser.name}, lr {recipe.optimiser.lr:g}, "
        f"weight decay {recipe.optimiser.weight_decay:g}",
        "schedule": recipe.schedule.name,
        "averaged weights": recipe.average.kind if recipe.average else "",
        "more images": shown_dataset(recipe.extra.dataset) if recipe.extra else "",
        "best epoch chosen on": f"{recipe.select_on} images",
        "fine-tuned from": str(run.header.get("finetuned_from", {}).get("source", "")),
        "seed": str(spec.seed),
    }
    return {k: v for k, v in shown.items() if v}


def origin_facts(found: Exported) -> dict[str, str]:
    header = found.run.header
    versions = header.get("versions")
    known = versions.items() if isinstance(versions, Mapping) else ()
    shown = {
        "exported by": f"Buttress {__version__}",
        "checkpoint": f"the {found.which} epoch",
        "SHA-256 of model.safetensors": str(found.facts["weights_sha256"]),
        "key of the run": str(header.get("key", "")),
        "command": without_folders(str(header.get("command", ""))),
        "trained": str(header.get("time", "")),
        "machine": str(header.get("platform", "")),
        "versions": ", ".join(f"{name} {version}" for name, version in known),
    }
    return {k: v for k, v in shown.items() if v}


def shown_spec(run: RunView) -> str:
    spec = run.spec.model_dump(mode="json", exclude_defaults=True)
    return without_folders(json.dumps(spec, indent=1, ensure_ascii=False))


def without_folders(text: str) -> str:
    """Text in which absolute paths keep only their last part: folders of a machine are private."""
    return re.sub(r"(?<![\w.~/])~?/(?:[^\s\"'/:]+/)+", "", text)


def plain(value: Any) -> Any:
    """A value as text that Markdown and HTML leave as it is, on one line."""
    if isinstance(value, Verbatim) or not isinstance(value, str):
        return value
    line = " ".join(value.split())
    escaped = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", line)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
