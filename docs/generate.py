"""Writes one Markdown table per kind of registered thing: name, what it is, where it is from."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import api_reference
import catalogue
import coverage_tables
import pictures
import yaml

from buttress.config import PresetFolder

HERE = Path(__file__).parent


class Row(NamedTuple):
    name: str
    about: str
    source: str = ""


def write_all(folder: Path) -> None:
    """Writes every table; a file that would not change is left alone."""
    folder.mkdir(exist_ok=True)
    for kind, rows in tables().items():
        write(folder / f"{kind}.md", table(rows))
    write(folder / "objectives.md", objective_table())
    write(folder / "objectives_measured.md", measured_objectives())
    write(folder / "recipes.md", recipe_table())
    write(folder / "recipe_pages.md", recipe_pages())
    write(folder / "threats.md", threat_table())
    write(folder / "threat_pages.md", threat_pages())
    write(folder / "suites.md", suite_table())
    write(folder / "suite_pages.md", suite_pages())
    write(folder / "studies.md", study_table())
    write(folder / "coverage.md", coverage_tables.tables())
    write(folder / "claims.md", predicate_table())
    write(folder / "claim_tables.md", claim_table())
    write_architectures(folder)
    pictures.draw(folder / "augmentation.png")
    pictures.draw_corruptions(folder / "corruptions.png")
    write(folder / "bench.md", bench())
    write(folder / "reference.md", api_reference.reference())
    write(folder / "foreign_arguments.md", foreign_argument_table())
    write(folder / "citations.md", citations(HERE.parent / "CITATION.cff"))


def bench() -> str:
    """The last measured comparison of attacks."""
    from buttress.bench.attacks import full_tables

    results = json.loads((HERE / "measured" / "bench-attacks.json").read_text())
    machine = ", ".join(f"{k} {v}" for k, v in results["machine"].items())
    return f"Machine: {machine}.\n" + "\n".join(full_tables(results["rows"], level=3)) + "\n"


def write_architectures(folder: Path) -> None:
    """The cost of every model beside its published size, and a picture of both."""
    from buttress.models import describe_models

    write(folder / "attack_pages.md", attack_pages())
    write(folder / "analysis_pages.md", analysis_pages(HERE / "analyses"))
    models = describe_models()
    published = [model for model in models if model.size == "published"]
    write(folder / "architectures.md", catalogue.published_table(published))
    for size in ("mini", "tiny"):
        small = [model for model in models if model.size == size]
        write(folder / f"architectures_{size}.md", catalogue.small_table(small))
    catalogue.draw(models, folder / "architectures.svg")


def attack_pages() -> str:
    """Each attack: its arguments and the docstring that holds its formula and departures."""
    from buttress.attacks import ATTACKS

    pieces = []
    for entry in ATTACKS:
        fields = dataclasses.fields(entry.value)
        defaults = ", ".join(f"`{f.name}={default_of(f)!r}`" for f in fields)
        facts = [", ".join(entry.value.kinds or entry.value.spaces), linked(entry.paper), defaults]
        text = inspect.cleandoc(entry.value.__doc__ or "")
        pieces.append(f"### `{entry.name}`\n\n{'; '.join(f for f in facts if f)}.\n\n")
        pieces.append(f"```{{eval-rst}}\n{text}\n```\n\n")
    return "".join(pieces)


def analysis_pages(pages_dir: Path) -> str:
    """The docstring of each analysis that has no page of its own."""
    from buttress.analysis import ANALYSES

    pieces = []
    for entry in ANALYSES:
        if not (pages_dir / f"{entry.name}.md").is_file():
            text = inspect.cleandoc(entry.value.__doc__ or "")
            command = f"```\nbuttress analyze {entry.name} runs/r1\n```"
            pieces.append(f"### `{entry.name}`\n\n{command}\n\n")
            pieces.append(f"```{{eval-rst}}\n{text}\n```\n\n")
    return "".join(pieces)


def objective_table() -> str:
    """Each objective with its cost at default arguments, as its class declares it."""
    from buttress.training import OBJECTIVES

    lines = [
        "| name | what it is | passes per image: forward / backward | BatchNorm updates | source |",
        "| --- | --- | --- | --- | --- |",
    ]
    for entry in OBJECTIVES:
        objective = entry.value()
        attack, loss = objective.attack_passes, objective.loss_passes
        forward, backward = (
            objective.repeats * (n + loss) for n in (attack.forward, attack.backward)
        )
        updates = objective.repeats * objective.batchnorm_updates
        cells = (
            plain(entry.summary),
            f"{forward:g} / {backward:g}",
            str(updates),
            linked(entry.paper),
        )
        lines.append(f"| `{entry.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def measured_objectives() -> str:
    """The measured table of objectives, with a row for each that is not measured yet."""
    from buttress.training import OBJECTIVES

    text = (HERE / "measured" / "objectives.md").read_text(encoding="utf-8")
    missing = [name for name in OBJECTIVES.names() if f"| `{name}` |" not in text]
    return text + "".join(f"| `{name}` |{' not measured |' * 4}\n" for name in missing)


def recipe_table() -> str:
    from buttress.training import list_recipes, load_recipe

    lines = ["| name | what it is | cost | expected | source |", "| --- | --- | --- | --- | --- |"]
    for recipe in map(load_recipe, list_recipes()):
        said = (plain(recipe.description), recipe.cost, recipe.expected, linked(recipe.source))
        lines.append(f"| `{recipe.name}` | {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def recipe_pages() -> str:
    """The file of each recipe, with its comments."""
    from buttress.config import RECIPES
    from buttress.training import list_recipes

    return shelf_pages(RECIPES, list_recipes())


def shelf_pages(shelf: PresetFolder, names: Iterable[str]) -> str:
    pieces = []
    for name in names:
        text = shelf.path(name).read_text(encoding="utf-8")
        pieces.append(f"### `{name}`\n\n```yaml\n{text}```\n\n")
    return "".join(pieces)


def threat_table() -> str:
    """Each threat model: how it is written, its usual budgets, and the attack if none is named."""
    from buttress.data.core import budgets_of_size
    from buttress.evaluation.suite import SuiteTarget, default_threat
    from buttress.threats import THREATS

    lines = [
        "| 32 pixels | 224 pixels | what is allowed (at 32 pixels) | attack | source |",
        "| --- | --- | --- | --- | --- |",
    ]
    for entry in THREATS:
        small, large = (
            default_threat(entry.name, SuiteTarget(budgets_of_size(size), size))
            for size in (32, 224)
        )
        attack = entry.metadata.get("attack", "fast")
        cells = (f"`{small}`", f"`{large}`", small.describe(), f"`{attack}`", linked(entry.paper))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def threat_pages() -> str:
    """The definition of each class of threat models, with its departures."""
    from buttress.threats import THREATS

    kinds: dict[Any, list[str]] = {}
    for entry in THREATS:
        kinds.setdefault(entry.value, []).append(f"`{entry.name}`")
    return "".join(
        f"### {', '.join(names)}\n\n```{{eval-rst}}\n{inspect.cleandoc(cls.__doc__ or '')}\n```\n\n"
        for cls, names in kinds.items()
    )


def suite_table() -> str:
    """What each suite holds, with its source."""
    from buttress.evaluation import list_suites, load_suite

    lines = ["| name | what it is | holds | source |", "| --- | --- | --- | --- |"]
    for suite in map(load_suite, list_suites()):
        said = (plain(suite.description), plain(suite.entry_names), linked(suite.source))
        lines.append(f"| `{suite.name}` | {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def suite_pages() -> str:
    """The file of each suite, with its comments."""
    from buttress.config import SUITES
    from buttress.evaluation import list_suites

    return shelf_pages(SUITES, list_suites())


def study_table() -> str:
    """The question of each study, its source, and how many runs it has at each scale."""
    from buttress.studies import SCALES, expand_study, list_studies, load_study

    head = ["name", "question", "source", *(f"runs at {scale}" for scale in SCALES)]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    for study in map(load_study, list_studies()):
        runs = [
            str(len({run.key for run in expand_study(study, scale).runs}))
            if scale in study.scales
            else ""
            for scale in SCALES
        ]
        said = (f"`{study.name}`", plain(study.question), linked(study.source), *runs)
        lines.append(f"| {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def predicate_table() -> str:
    """What each predicate says, and its arguments."""
    from buttress.studies import CLAIMS

    lines = ["| name | says | arguments |", "| --- | --- | --- |"]
    for name in CLAIMS.names():
        entry = CLAIMS.entry(name)
        predicate: Any = entry.value
        fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(predicate))
        lines.append(f"| `{name}` | {plain(entry.summary)} | {fields} |")
    return "\n".join(lines) + "\n"


def claim_table() -> str:
    """Each claim with its outcomes in the published table and in tables by other authors."""
    from buttress.studies import list_studies, load_study
    from buttress.studies.answer import claim_results
    from buttress.studies.table import StudyTable

    lines = ["| claim | study | published | other authors |", "| --- | --- | --- | --- |"]
    for study in map(load_study, list_studies()):
        empty = StudyTable((), (), {}, tuple(study.at_scale(study.scales[-1]).columns)).as_values()
        for claim in claim_results(study, study.scales[-1], empty):
            others = [
                f"{o.outcome} ({linked(o.source)}: {plain(o.evidence)}. {plain(o.limits)})"
                for o in claim.other_tables
            ]
            published = claim.published or "not published"
            if claim.published_evidence:
                published += f" ({plain(claim.published_evidence)})"
            said = (f"{claim.id}: {plain(claim.statement)}", f"`{study.name}`", published)
            lines.append(f"| {' | '.join(said)} | {'<br>'.join(others)} |")
    return "\n".join(lines) + "\n"


def foreign_argument_table() -> str:
    """Arguments of attacks in other libraries beside ours."""
    from buttress.engine.configured import FOREIGN_ARGUMENTS

    names: dict[str, list[str]] = {}
    for theirs, ours in FOREIGN_ARGUMENTS.items():
        names.setdefault(ours, []).append(f"`{theirs}`")
    rows = [f"| `{ours}` | {', '.join(theirs)} |" for ours, theirs in names.items()]
    return "\n".join(["| here | elsewhere |", "| --- | --- |", *rows]) + "\n"


def citations(path: Path) -> str:
    """The entries of CITATION.cff as BibTeX."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return "\n".join(map(bibtex_entry, (found, *found["references"])))


def bibtex_entry(entry: dict[str, Any]) -> str:
    """One entry below its title; the year of a paper is that of its arXiv number."""
    authors = [
        f"{author['family-names']}, {author['given-names']}"
        if "family-names" in author
        else f"{{{author['name']}}}"
        for author in entry["authors"]
    ]
    number = next((i["value"] for i in entry.get("identifiers", ())), "").removeprefix("arXiv:")
    released = entry.get("year") or entry.get("date-released", "")
    year = f"20{number[:2]}" if number else str(released)[:4]
    fields = {
        "title": f"{{{entry['title']}}}",
        "author": " and ".join(authors),
        "year": year,
        "version": entry.get("version", ""),
        "school": entry.get("institution", {}).get("name", ""),
        "eprint": number,
        "archiveprefix": "arXiv" if number else "",
    }
    kind = {"software": "software", "thesis": "mastersthesis"}.get(entry["type"], "article")
    name = entry["authors"][0].get("family-names", "buttress").lower()
    key = f"{name}{year}{'thesis' if kind == 'mastersthesis' else ''}"
    lines = [f"  {field:13} = {{{value}}}," for field, value in fields.items() if value]
    body = "\n".join([f"@{kind}{{{key},", *lines, "}"])
    source = f" ({linked(f'arXiv:{number}')})" if number else ""
    return f"*{entry['title']}*{source}\n\n```{{code-block}} bibtex\n{body}\n```\n"


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def tables() -> dict[str, list[Row]]:
    """The rows of every kind, from the registries and the shipped files."""
    from buttress.analysis import ANALYSES
    from buttress.attacks import ATTACKS
    from buttress.data import CORRUPTIONS
    from buttress.data.core import DATASETS, READERS
    from buttress.evaluation import CHECKS
    from buttress.models import MODELS, PATTERNS, SOURCES
    from buttress.registry import Registry
    from buttress.results.run_spec import AUGMENTATION_PRESETS

    registries: dict[str, Registry[Any]] = {
        "models": MODELS,
        "model_patterns": PATTERNS,
        "attacks": ATTACKS,
        "datasets": DATASETS,
        "readers": READERS,
        "corruptions": CORRUPTIONS,
        "checks": CHECKS,
        "analyses": ANALYSES,
    }
    tables = {
        kind: [Row(entry.name, entry.summary, entry.paper) for entry in registry]
        for kind, registry in registries.items()
    }
    tables["sources"] = [Row(entry.metadata["form"], entry.summary) for entry in SOURCES]
    tables["augmentations"] = [
        Row(name, named.description) for name, named in AUGMENTATION_PRESETS.items()
    ]
    return tables


def table(rows: Iterable[Row]) -> str:
    """A Markdown table; the last column is left out where no row has a source."""
    rows = list(rows)
    width = 3 if any(row.source for row in rows) else 2
    head = ["name", "what it is", "source"][:width]
    body = [[f"`{row.name}`", plain(row.about), linked(row.source)][:width] for row in rows]
    lines = [head, ["---"] * width, *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plain(text: str) -> str:
    """The first line of a docstring as one cell of a Markdown table."""
    text = re.sub(r":math:(`[^`]*`)", r"{math}\1", text)
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", text).replace("``", "`")
    return text.replace("|", "\\|").strip()


def linked(source: str) -> str:
    """The source with arXiv numbers as links."""
    link = r"[arXiv:\1](https://arxiv.org/abs/\1)"
    return re.sub(r"arXiv:(\d{4}\.\d{4,5}(?:v\d+)?)", link, source).replace("|", "\\|")
