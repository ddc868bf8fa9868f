"""`$ref`: parts of a promptfoo config that stand elsewhere in the file, or in another file."""

from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct, field

from geval_cli.config.access import Access
from geval_cli.config.document import MAX_DEPTH, Document
from geval_cli.config.place import Place
from geval_cli.config.source_file import is_file_reference, read_document
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.records import JsonValue

_REF = "$ref"
_SCHEMA_KEYS = frozenset({"parameters", "schema", "json_schema", "input_schema", "inputSchema"})
"""Below these keys stand JSON Schemas, whose references are their own."""
_SCHEMA_MARKS = frozenset({"$defs", "definitions"})


class References(Struct):
    """Puts what references name in their place. `used` are the top-level keys that something referred to."""

    document: Document
    folder: Path
    access: Access
    problems: list[Problem]
    used: set[str] = field(default_factory=set)
    _files: dict[Path, Document] = field(default_factory=dict)

    def resolved(self) -> JsonValue:
        """The content of the document without references."""
        return self._walk(self.document.value, self.document.place, self.document, ())

    def _walk(self, value: JsonValue, place: Place, home: Document, trail: tuple[str, ...]) -> JsonValue:
        if isinstance(value, list):
            return [self._walk(item, place.child(index), home, trail) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        reference = value.get(_REF)
        if isinstance(reference, str):
            return self._follow(value, reference, place, home, trail)
        return {
            key: entry
            if key in _SCHEMA_KEYS or _is_own_schema(key, entry)
            else self._walk(entry, place.child(key), home, trail)
            for key, entry in value.items()
        }

    def _follow(
        self,
        value: dict[str, JsonValue],
        reference: str,
        place: Place,
        home: Document,
        trail: tuple[str, ...],
    ) -> JsonValue:
        where = f"{home.positions.file} {reference}"
        if where in trail or len(trail) >= MAX_DEPTH:
            return self._refuse(
                f"`{reference}` leads back to itself", place.value(_REF), "write the part out"
            )
        target = self._target(reference, home, place.value(_REF))
        if target is None:
            return {}
        found, document = target
        found = self._walk(found, place, document, (*trail, where))
        siblings = {key: entry for key, entry in value.items() if key != _REF}
        return {**found, **siblings} if isinstance(found, dict) else found

    def _target(
        self, reference: str, home: Document, asked_at: Location | None
    ) -> tuple[JsonValue, Document] | None:
        name, _, pointer = reference.partition("#")
        document = home if not name else self._read(name, asked_at)
        if document is None:
            return None
        found = document.value
        for part in filter(None, pointer.split("/")):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            else:
                self._refuse(
                    f"`{reference}` names nothing: there is no `{key}`", asked_at, "check the path after `#`"
                )
                return None
        if document is self.document:
            self.used.add(pointer.strip("/").partition("/")[0])
        return found, document

    def _read(self, name: str, asked_at: Location | None) -> Document | None:
        if "://" in name and not is_file_reference(name):
            self._refuse(
                f"`{name}` is not fetched", asked_at, "keep what it names in a file beside the config"
            )
            return None
        path = self.folder / name.removeprefix("file://")
        if path not in self._files:
            try:
                self._files[path] = read_document(path, self.access, asked_at=asked_at)
            except ConfigError as error:
                self.problems.extend(error.problems)
                return None
        return self._files[path]

    def _refuse(self, message: str, location: Location | None, hint: str) -> JsonValue:
        self.problems.append(Problem(message, location, hint))
        return {}


def _is_own_schema(key: str, entry: JsonValue) -> bool:
    return key == "value" and isinstance(entry, dict) and not _SCHEMA_MARKS.isdisjoint(entry)
