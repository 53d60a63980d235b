"""`buttress list`: everything that is registered or bundled."""

from __future__ import annotations

import click

from buttress.cli.catalog import Row, catalog_entry
from buttress.cli.console import format_table, print_json, print_line
from buttress.cli.options import JSON_OPTION, checked
from buttress.errors import UserError
from buttress.registry import close_names_text

KINDS = (
    "models", "zoo", "sources", "threats", "attacks", "objectives", "datasets", "augmentations",
    "corruptions", "recipes", "suites", "checks", "analyses", "studies", "searches",
)  # fmt: skip

HEADERS = {"written": "syntax", "holds": "entries"}  # key -> column
# Keys that only --json prints.
JSON_KEYS = {"recipes": ("source", "cost"), "suites": ("description",), "studies": ("source",)}


def check_kind(kind: str) -> None:
    if kind not in KINDS:
        guess = close_names_text(kind, KINDS)
        raise UserError(f"cannot list {kind!r}{guess} KIND is one of {', '.join(KINDS)}")


@click.command("list")
@click.argument("kind", metavar="KIND", required=False, callback=checked(check_kind))
@click.option("--tag", help="Only entries with this tag, e.g. transformer.")
@JSON_OPTION
def command(kind: str | None, tag: str | None, as_json: bool) -> None:
    """List all entries of KIND with their description and source.

    KIND is one of models, zoo, sources, threats, attacks, objectives, datasets, augmentations,
    corruptions, recipes, suites, checks, analyses, studies and searches.
    """
    if kind is None:
        print_line("`buttress list KIND` shows all entries of a kind: " + ", ".join(KINDS))
        return
    if (kind, tag) == ("models", "zoo"):
        kind, tag = "zoo", None
    rows, edited_files = catalog_entry(kind)
    if kind == "models" and edited_files:
        click.echo(
            f"Sizes are from before the last edit of {', '.join(edited_files)}; measure them again "
            "with `python -m buttress.cli.catalog`.",
            err=True,
        )
    if tag is not None:
        rows = [row for row in rows if tag in row.get("tags", tag).split()]
    if as_json:
        print_json(rows)
    elif rows:
        if kind == "models":
            rows = [_model_row(row) for row in rows]
        keys = [key for key in rows[0] if key not in JSON_KEYS.get(kind, ())]
        header = [HEADERS.get(key, key) for key in keys]
        print_line(format_table(header, [[str(row[key]) for key in keys] for row in rows]))
    else:
        print_line(
            f"There are no {kind}{f' with the tag {tag!r}' if tag else ''} here.".replace(
                "no zoo", "no models in the zoo"
            )
        )


def _model_row(row: Row) -> Row:
    printed = (row["published"] or {}).get("printed")
    published = f"{printed:.2f} M" if isinstance(printed, float) else f"{printed} M"
    return {
        "name": row["name"], "category": row["category"],
        "parameters": f"{row['parameters'] / 1e6:.2f} M", "MMACs": f"{row['macs'] / 1e6:.1f}",
        "MFLOPs": f"{row['flops'] / 1e6:.1f}", "published": "" if printed is None else published,
        "paper": row["paper"],
    }  # fmt: skip
