"""What is registered and bundled, from an index, so that lists and typos need no torch.

Rows of the index come from the registries, so that nothing has to be listed by hand. They are kept
in the cache folder and used until a file that they were made from registers something else; edits
that leave the registering statements alone (`declarations`) keep the index valid. A distribution,
and a checkout that ``make`` installs, has an index beside the package
(``python -m buttress.cli.catalog``).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from buttress import __version__
from buttress.cli.declarations import NO_DECLARATIONS, declarations_digest
from buttress.system.files import atomic_write, cache_dir

if TYPE_CHECKING:
    from buttress.config import PresetFolder
    from buttress.models.catalog import PublishedSize
    from buttress.registry import Registry

Row = dict[str, Any]
PACKAGE = Path(__file__).parents[1]
BUNDLED_INDEX = PACKAGE / "catalog.json"
OWN_VERSIONS = 2  # of `CatalogKind.versions`; the others are of other packages


class CatalogKind(NamedTuple):
    """How the rows of a kind are made, and the files below the package that decide them."""

    rows: Callable[[], list[Row]]
    sources: tuple[str, ...]
    packages: tuple[str, ...] = ()  # other packages whose version decides them

    def versions(self) -> list[str]:
        """The versions that decide the rows: of Buttress, of the code here, of other packages."""
        from importlib.metadata import version

        maker = hashlib.sha256((PACKAGE / "cli" / "catalog.py").read_bytes()).hexdigest()
        return [__version__, maker, *(f"{name} {version(name)}" for name in self.packages)]

    def contents(self) -> dict[str, bytes]:
        """The files that decide the rows, by their path below the package."""
        paths = [PACKAGE / source for source in self.sources]
        files = [f for p in paths for f in (sorted(p.rglob("*")) if p.is_dir() else [p])]
        return {
            file.relative_to(PACKAGE).as_posix(): file.read_bytes()
            for file in files
            if file.suffix in (".py", ".yaml", ".json")
        }

    def index_entry(self) -> Row:
        """The rows with what they were made from."""
        files = {
            name: [hashlib.sha256(content).hexdigest(), declarations_digest(name, content)]
            for name, content in self.contents().items()
        }
        return {"versions": self.versions(), "files": files, "rows": self.rows()}


class CatalogEntry(NamedTuple):
    """Rows of a kind, and the files that were edited since without changing what they register."""

    rows: list[Row]
    edited_files: tuple[str, ...] = ()


def catalog_entry(kind: str, *, exact: bool = False) -> CatalogEntry:
    """The rows of a kind: from an index that is still valid, else from the registries.

    The rows of a distribution stay valid with another version of timm, unless ``exact``: most are
    the same, and making them takes seconds.
    """
    maker = CATALOG[kind]
    versions, contents = maker.versions(), maker.contents()
    candidates = []
    for file in (BUNDLED_INDEX, _index_file()):
        entry = _read_index(file).get(kind, {})
        known = entry.get("versions", "")
        if known == versions or (not exact and known[:OWN_VERSIONS] == versions[:OWN_VERSIONS]):
            edited = _edited_files(entry["files"], contents)
            if edited is not None:
                rank = known != versions, len(edited)
                candidates.append((rank, CatalogEntry(entry["rows"], edited)))
    if candidates:
        return min(candidates, key=lambda candidate: candidate[0])[1]
    new_entry = maker.index_entry()
    # A cache that cannot be written only costs time.
    with contextlib.suppress(OSError):
        _write_index(_index_file(), {kind: new_entry})
    return CatalogEntry(new_entry["rows"])


def catalog_rows(kind: str) -> list[Row]:
    return catalog_entry(kind).rows


def _edited_files(
    indexed: dict[str, list[str]], contents: dict[str, bytes]
) -> tuple[str, ...] | None:
    """Files that differ from those of an index; None if one may register something else."""
    edited = []
    for name in sorted(indexed.keys() | contents.keys()):
        content = contents.get(name)
        known, known_declarations = indexed.get(name, ("", NO_DECLARATIONS))
        if content is None or hashlib.sha256(content).hexdigest() != known:
            declarations = (
                NO_DECLARATIONS if content is None else declarations_digest(name, content)
            )
            if declarations != known_declarations:
                return None
            edited.append(name)
    return tuple(edited)


def catalog_names(kind: str, *, exact: bool = False) -> list[str]:
    return [row["name"] for row in catalog_entry(kind, exact=exact).rows]


def _index_file() -> Path:
    """One per installation, so that they do not replace each other's rows."""
    place = hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:12]
    return cache_dir() / "catalog" / f"{place}.json"


def _read_index(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_index(file: Path, entries: dict[str, Any]) -> None:
    with atomic_write(file) as temporary:
        text = json.dumps({**_read_index(file), **entries})
        temporary.write_text(text, encoding="utf-8")


def write_bundled_index(file: Path = BUNDLED_INDEX) -> None:
    """Write the index of all kinds, for a distribution."""
    kinds = {name: kind.index_entry() for name, kind in CATALOG.items()}
    _write_index(file, json.loads(json.dumps(kinds)))


def _model_rows() -> list[Row]:
    """The models; costs are per image at 32x32 with 10 classes, a MAC is two FLOPs."""
    from buttress.models.catalog import describe_models

    return [
        {"name": m.name, "category": m.category, "size": m.size, "parameters": m.parameters,
         "macs": m.macs, "flops": 2 * m.macs, "published": _published_size(m.published),
         "paper": m.paper, "tags": " ".join(m.tags), "about": m.about}
        for m in describe_models()
    ]  # fmt: skip


def _published_size(size: PublishedSize | None) -> Row | None:
    if size is None:
        return None
    input_shape = {"num_classes": size.num_classes, "image_size": size.image_size}
    return {"printed": size.published_millions, "ours": size.parameters, **input_shape}


def _model_name_rows() -> list[Row]:
    """Names alone, without their costs, and the first words of names that a family parses."""
    from buttress.models import MODELS, PATTERNS

    names = [{"name": name, "is_pattern": False} for name in MODELS.names()]
    return names + [{"name": p.name.split("_")[0] + "_", "is_pattern": True} for p in PATTERNS]


def _timm_rows() -> list[Row]:
    importlib.import_module("buttress.models")  # timm may need it to be imported first
    timm = importlib.import_module("timm")
    return [{"name": name} for name in timm.list_models()]


def _source_rows() -> list[Row]:
    from buttress.models import SOURCES

    return [
        {"name": e.name, "written": e.metadata["form"], "description": e.summary} for e in SOURCES
    ]


def _zoo_rows() -> list[Row]:
    """Trained models of the package, with the accuracies of their cards in percent."""
    from buttress.models.loading.zoo import list_zoo, read_zoo_card

    cards = map(read_zoo_card, list_zoo())
    return [
        {"name": card.name, "dataset": card.dataset, "recipe": card.recipe, "images": card.images,
         **{entry: f"{100 * value:.1f}%" for entry, value in card.accuracy.items()}}
        for card in cards
    ]  # fmt: skip


def _registry_rows(registry: Registry[Any]) -> list[Row]:
    return [
        {"name": e.name, "tags": " ".join(e.tags), "paper": e.paper, "description": e.summary}
        for e in registry
    ]


def _attack_rows() -> list[Row]:
    from buttress.attacks import ATTACKS

    return _registry_rows(ATTACKS)


def _threat_rows() -> list[Row]:
    from buttress.threats import THREATS

    return _registry_rows(THREATS)


def _objective_rows() -> list[Row]:
    from buttress.training import OBJECTIVES

    return _registry_rows(OBJECTIVES)


def _dataset_rows() -> list[Row]:
    from buttress.data import DATASETS

    return _registry_rows(DATASETS)


def _reader_rows() -> list[Row]:
    from buttress.data.core import READERS

    return _registry_rows(READERS)


def _corruption_rows() -> list[Row]:
    from buttress.data import CORRUPTIONS

    return _registry_rows(CORRUPTIONS)


def _check_rows() -> list[Row]:
    from buttress.evaluation import CHECKS

    return _registry_rows(CHECKS)


def _analysis_rows() -> list[Row]:
    from buttress.analysis import ANALYSES

    return _registry_rows(ANALYSES)


def _augmentation_rows() -> list[Row]:
    from buttress.results.run_spec import AUGMENTATION_PRESETS

    return [
        {"name": name, "description": preset.description}
        for name, preset in AUGMENTATION_PRESETS.items()
    ]


def _recipe_rows() -> list[Row]:
    from buttress.config import RECIPES
    from buttress.results.run_spec import Recipe

    rows = []
    for name in RECIPES.names():
        origin, raw = RECIPES.load(name)
        recipe = Recipe.parse({k: v for k, v in raw.items() if k != "variants"}, origin)
        fields = ("name", "epochs", "description", "source", "cost", "expected")
        rows.append({field: getattr(recipe, field) for field in fields})
    return rows


def _suite_rows() -> list[Row]:
    from buttress.results.suite_spec import list_suites, parse_suite

    return [
        {"name": s.name, "holds": s.entry_names, "source": s.source, "description": s.description}
        for s in (parse_suite(name, ()) for name in list_suites())
    ]


def _study_rows() -> list[Row]:
    from buttress.config import STUDIES

    return _preset_rows(STUDIES, ("name", "question", "source"))


def _search_rows() -> list[Row]:
    from buttress.config import SEARCHES

    return _preset_rows(SEARCHES, ("name", "question"))


def _preset_rows(folder: PresetFolder, keys: tuple[str, ...]) -> list[Row]:
    """Keys of bundled files as they are written; each is validated when it is used."""
    files = {name: folder.load(name)[1] for name in folder.names()}
    return [{key: raw.get(key, "") for key in keys} for raw in files.values()]


CATALOG = {
    "models": CatalogKind(_model_rows, ("models",), ("timm",)),
    "sources": CatalogKind(_source_rows, ("models/loading",)),
    "zoo": CatalogKind(_zoo_rows, ("models/zoo", "models/loading")),
    "attacks": CatalogKind(_attack_rows, ("attacks",)),
    "threats": CatalogKind(_threat_rows, ("threats",)),
    "objectives": CatalogKind(_objective_rows, ("training/objectives",)),
    "datasets": CatalogKind(_dataset_rows, ("data/datasets",)),
    "augmentations": CatalogKind(_augmentation_rows, ("results/run_spec.py",)),
    "corruptions": CatalogKind(_corruption_rows, ("data/corruptions",)),
    "recipes": CatalogKind(_recipe_rows, ("training/recipes", "results/run_spec.py")),
    "suites": CatalogKind(_suite_rows, ("evaluation/suites", "results/suite_spec.py")),
    "checks": CatalogKind(_check_rows, ("evaluation/doctor",)),
    "analyses": CatalogKind(_analysis_rows, ("analysis",)),
    "studies": CatalogKind(_study_rows, ("studies/studies", "studies/spec.py")),
    "searches": CatalogKind(_search_rows, ("studies/searches", "studies/search")),
    # Only to check names:
    "model names": CatalogKind(_model_name_rows, ("models/families",)),
    "timm": CatalogKind(_timm_rows, (), ("timm",)),
    "readers": CatalogKind(_reader_rows, ("data/readers",)),
}

if __name__ == "__main__":
    write_bundled_index(*map(Path, sys.argv[1:]))
