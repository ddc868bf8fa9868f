"""The text of PDF files, by a package that is an extra."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.version import install_hint

PDF_SUFFIX = ".pdf"
MAX_PAGES = 2_000

_INSTALL_HINT = f"install it {install_hint('pdf')}; or convert it to text, for example with pdftotext"


def pdf_text(content: bytes, path: Path, asked_at: Location | None, *, max_characters: int) -> str:
    """The text of all pages, an empty line between them.

    Args:
        content: of the file.
        path: what messages call it.
        asked_at: where the config names it.
        max_characters: more text than this is a problem.

    Raises:
        ConfigError: one problem: the package is missing, the file is broken, locked or too long, or holds no text.
    """
    package = _package(path, asked_at)
    try:
        with _silent(package.__name__):
            reader = package.PdfReader(io.BytesIO(content))
            if reader.is_encrypted and not reader.decrypt(""):
                raise ConfigError([Problem(f"`{path}` is locked with a password", asked_at, "unlock it")])
            if len(reader.pages) > MAX_PAGES:
                raise ConfigError([_too_long(path, f"{MAX_PAGES:,} pages", asked_at)])
            pages: list[str] = []
            for page in reader.pages:
                pages.append(page.extract_text().strip())
                if sum(map(len, pages)) > max_characters:
                    raise ConfigError([_too_long(path, f"{max_characters:,} characters", asked_at)])
    except (package.errors.PyPdfError, *_BROKEN) as error:
        message = f"`{path}` cannot be read as PDF: {str(error) or type(error).__name__}"
        raise ConfigError([Problem(message, asked_at, "save it again, or convert it to text")]) from error
    text = "\n\n".join(pages).strip()
    if not text:
        hint = "it may hold pictures of text: recognise the text first (OCR), and name the result"
        raise ConfigError([Problem(f"`{path}` holds no text", asked_at, hint)])
    return text


_BROKEN = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    OSError,
    AssertionError,
)
"""What the package also raises on broken files."""


def _package(path: Path, asked_at: Location | None) -> ModuleType:
    try:
        import pypdf  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        message = f"reading `{path.name}` needs the package pypdf"
        raise ConfigError([Problem(message, asked_at, _INSTALL_HINT)]) from error
    return pypdf


def _too_long(path: Path, limit: str, asked_at: Location | None) -> Problem:
    return Problem(f"`{path}` has more than {limit}", asked_at, "name a shorter file")


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """The package tells of each oddity of a file that it can read all the same; nobody can do anything about it."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
