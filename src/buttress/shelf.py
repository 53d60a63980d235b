"""YAML files that come with the package, found by name as registered things are."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from buttress.errors import UnknownName
from buttress.registry import canonical, natural, unknown
from buttress.spec import read_yaml


@dataclass(frozen=True)
class Shelf:
    """The shipped files of one kind: recipes, suites or studies."""

    kind: str
    package: str
    folder: str

    def names(self) -> list[str]:
        place = Path(str(resources.files(self.package) / self.folder))
        return sorted((p.stem for p in place.glob("*.yaml")), key=natural)

    def path(self, name: str | Path) -> Path:
        """The file of a shipped name, or the user's own file."""
        if str(name).endswith((".yaml", ".yml")):
            return Path(name)
        known = {canonical(n): n for n in self.names()}
        if canonical(str(name)) not in known:
            raise UnknownName(unknown(self.kind, str(name), self.names()))
        stem = known[canonical(str(name))]
        return Path(str(resources.files(self.package) / self.folder / f"{stem}.yaml"))

    def read(self, name: str | Path) -> tuple[str, Any]:
        """What an error message calls the file, and its content; a mapping gets its name."""
        path = self.path(name)
        raw = read_yaml(path)
        if isinstance(raw, dict):
            raw = {"name": path.stem, **raw}
        return f"{self.kind} {path if Path(name) == path else path.name}", raw
