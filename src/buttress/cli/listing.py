"""`buttress list`: everything that is registered or bundled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from buttress.cli.console import format_table, print_json, print_line
from buttress.cli.options import JSON_OPTION

if TYPE_CHECKING:
    from buttress.models.catalog import PublishedSize

KINDS = (
    "models", "sources", "attacks", "objectives", "datasets", "augmentations", "corruptions",
    "recipes", "suites", "checks", "analyses", "studies", "searches",
)  # fmt: skip

HEADERS = {"written": "syntax", "holds": "entries"}  # key -> column


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--tag", help="Only entries with this tag, e.g. transformer.")
@JSON_OPTION
def command(kind: str, tag: str | None, as_json: bool) -> None:
    """List all entries of KIND with their description and source."""
    if kind == "models":
        rows = _models(tag, as_json=as_json)
    elif kind == "sources":
        rows = _sources()
    elif kind in ("augmentations", "recipes", "suites", "studies", "searches"):
        rows = _preset_rows(kind, as_json=as_json)
    else:
        rows = _registry_rows(kind, tag)
    if as_json:
        print_json(rows)
    elif rows:
        keys = list(rows[0])
        header = [HEADERS.get(key, key) for key in keys]
        print_line(format_table(header, [[str(row[key]) for key in keys] for row in rows]))


def _models(tag: str | None, *, as_json: bool) -> list[dict[str, object]]:
    """Describe the models; costs are per image at 32x32 with 10 classes, a MAC is two FLOPs."""
    from buttress.models.catalog import describe_models

    if as_json:
        return [
            {"name": m.name, "category": m.category, "size": m.size, "parameters": m.parameters,
             "macs": m.macs, "flops": 2 * m.macs, "published": _published_json(m.published),
             "paper": m.paper, "tags": " ".join(m.tags), "about": m.about}
            for m in describe_models(tag)
        ]  # fmt: skip
    return [
        {"name": m.name, "category": m.category, "parameters": f"{m.parameters / 1e6:.2f} M",
         "MMACs": f"{m.macs / 1e6:.1f}", "MFLOPs": f"{2 * m.macs / 1e6:.1f}",
         "published": f"{m.published} M" if m.published else "", "paper": m.paper}
        for m in describe_models(tag)
    ]  # fmt: skip


def _published_json(size: PublishedSize | None) -> dict[str, float] | None:
    if size is None:
        return None
    input_shape = {"num_classes": size.num_classes, "image_size": size.image_size}
    return {"printed": size.published_millions, "ours": size.parameters, **input_shape}


def _sources() -> list[dict[str, object]]:
    from buttress.models import SOURCES

    return [
        {"name": e.name, "written": e.metadata["form"], "description": e.summary} for e in SOURCES
    ]


def _registry_rows(kind: str, tag: str | None) -> list[dict[str, object]]:
    from buttress.analysis import ANALYSES
    from buttress.attacks import ATTACKS
    from buttress.data import CORRUPTIONS, DATASETS
    from buttress.evaluation import CHECKS
    from buttress.registry import Registry
    from buttress.training import OBJECTIVES

    registries: dict[str, Registry[Any]] = {
        "attacks": ATTACKS,
        "objectives": OBJECTIVES,
        "datasets": DATASETS,
        "corruptions": CORRUPTIONS,
        "checks": CHECKS,
        "analyses": ANALYSES,
    }
    entries = [e for e in registries[kind] if tag is None or tag in e.tags]
    return [
        {"name": e.name, "tags": " ".join(e.tags), "paper": e.paper, "description": e.summary}
        for e in entries
    ]


def _preset_rows(kind: str, *, as_json: bool) -> list[dict[str, object]]:
    from buttress.evaluation import list_suites, load_suite
    from buttress.results.run_spec import AUGMENTATION_PRESETS
    from buttress.studies import list_studies, load_study
    from buttress.studies.search import list_searches, load_search
    from buttress.training import list_recipes, load_recipe

    if kind == "augmentations":
        return [
            {"name": name, "description": named.description}
            for name, named in AUGMENTATION_PRESETS.items()
        ]
    if kind == "recipes":
        recipes = [load_recipe(n) for n in list_recipes()]
        fields = (
            "name",
            "epochs",
            "description",
            *(("source", "cost") if as_json else ()),
            "expected",
        )
        return [{field: getattr(r, field) for field in fields} for r in recipes]
    if kind == "suites":
        suites = [load_suite(n) for n in list_suites()]
        return [
            {"name": s.name, "holds": s.entry_names, "source": s.source,
             **({"description": s.description} if as_json else {})}
            for s in suites
        ]  # fmt: skip
    if kind == "searches":
        searches = [load_search(n) for n in list_searches()]
        return [{"name": s.name, "question": s.question} for s in searches]
    studies = [load_study(n) for n in list_studies()]
    return [{"name": s.name, "question": s.question} for s in studies]
