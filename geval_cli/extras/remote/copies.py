"""Copies of test data from elsewhere: fetched once into the home folder, and again only when they have changed."""

import asyncio
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from geval_cli.errors import ConfigError, GevalError, Location, Problem
from geval_cli.extras.remote.downloads import (
    HUGGINGFACE,
    DownloadError,
    download_file,
    file_version,
    read_dataset_name,
    write_dataset,
)
from geval_cli.providers.network.addresses import split_url
from geval_cli.providers.redaction import public_url
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import hash_file
from geval_cli.store.home import make_folder
from geval_cli.suite.validation import FetchedSource

_FOLDER = "sources"


@dataclass(slots=True)
class SourceCopies:
    """Fetches what a config names by an address, each once while the config is read.

    A copy is called by the SHA-256 of its content. A small file beside it, called by that of its address, says which
    version it is: while the server tells the same one, nothing is fetched.

    Attributes:
        home: the home folder of geval's state.
        is_offline: whether nothing may be asked: then the last copy is taken.
    """

    home: Path
    is_offline: bool = False
    _fetched: dict[str, FetchedSource | ConfigError] = field(default_factory=dict, repr=False)

    def __call__(
        self, reference: str, environ: Mapping[str, str], asked_at: Location | None
    ) -> FetchedSource:
        """See `geval_cli.suite.validation.SourceFetcher`."""
        if reference not in self._fetched:
            try:
                self._fetched[reference] = self._fetch(reference, environ)
            except GevalError as error:
                hint = getattr(error, "hint", "")
                self._fetched[reference] = ConfigError([Problem(error.message, asked_at, hint)])
            except OSError as error:
                message = f"the copy of {public_url(reference)} cannot be kept in {self._folder}"
                why = (error.strerror or str(error)).lower()
                self._fetched[reference] = ConfigError([Problem(f"{message}: {why}", asked_at)])
        found = self._fetched[reference]
        if isinstance(found, ConfigError):
            raise found
        return found

    @property
    def _folder(self) -> Path:
        return self.home / _FOLDER

    def _fetch(self, reference: str, environ: Mapping[str, str]) -> FetchedSource:
        known = self._known(reference)
        if self.is_offline:
            if known is None:
                hint = "run once without --offline to keep a copy"
                raise DownloadError(f"there is no copy of {public_url(reference)} here", hint=hint)
            return self._copy(known)
        make_folder(self.home)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=".fetch-")
        os.close(descriptor)
        partial = Path(name)
        try:
            version = self._download(reference, partial, known, environ)
            if version is None and known is not None:
                return self._copy(known)
            return self._keep(reference, partial, version or "")
        finally:
            partial.unlink(missing_ok=True)

    def _download(
        self, reference: str, target: Path, known: Mapping[str, Any] | None, environ: Mapping[str, str]
    ) -> str | None:
        """Fetch it into `target` and return its version; None when the copy that is known is of this version."""
        before = "" if known is None else str(known["version"])
        if reference.startswith(HUGGINGFACE):
            name = read_dataset_name(reference)
            # In a thread, since whoever reads a config may have an event loop of its own.
            with ThreadPoolExecutor(1) as thread:
                written = thread.submit(lambda: asyncio.run(write_dataset(name, target, before, environ)))
                return written.result()
        version = file_version(reference)
        if version and version == before:
            return None
        download_file(reference, target)
        return version

    def _keep(self, reference: str, partial: Path, version: str) -> FetchedSource:
        digest = hash_file(partial, TRUSTED)
        copy = f"{digest}{source_suffix(reference)}"
        partial.replace(self._folder / copy)
        index = {
            "address": public_url(reference),
            "version": version,
            "copy": copy,
            "sha256": digest,
        }
        with tempfile.NamedTemporaryFile(
            "w", dir=self._folder, prefix=".fetch-", delete=False, encoding="utf-8"
        ) as file:
            json.dump(index, file)
        Path(file.name).replace(self._index_path(reference))
        return self._copy(index)

    def _known(self, reference: str) -> Mapping[str, Any] | None:
        """Return what is written about the last copy; None without one, or when it is not what it was."""
        try:
            index = json.loads(self._index_path(reference).read_text(encoding="utf-8"))
            digest = hash_file(self._copy(index).path, TRUSTED)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return index if digest == index["sha256"] and "version" in index else None

    def _copy(self, index: Mapping[str, Any]) -> FetchedSource:
        return FetchedSource(self._folder / PurePosixPath(index["copy"]).name, index["sha256"])

    def _index_path(self, reference: str) -> Path:
        return self._folder / f"address-{hashlib.sha256(reference.encode()).hexdigest()}.json"


def source_suffix(reference: str) -> str:
    """Return the ending of the file that an address names; a data set becomes JSON Lines."""
    if reference.startswith(HUGGINGFACE):
        return ".jsonl"
    return PurePosixPath(split_url(reference).path).suffix.lower()
