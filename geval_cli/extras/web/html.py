"""The server's HTML pages."""

from functools import cache
from pathlib import Path

from fastapi.responses import HTMLResponse
from jinja2 import Environment

from geval_cli.extras.html.environment import asset, make_environment, source_hash
from geval_cli.report.sanitize import whole_text

_TEMPLATE_FOLDER = Path(__file__).with_name("templates")


def render_page(template: str, /, *, status: int = 200, **values: object) -> HTMLResponse:
    """Return the page that `template` renders from `values`, with all text escaped."""
    text = _environment().get_template(template).render(**values)
    return HTMLResponse(whole_text(text), status_code=status)


def read_templates() -> None:
    """Load all templates in advance, so that the first page is not slow."""
    for name in _environment().list_templates(extensions=["html"]):
        _environment().get_template(name)


def error_page(status: int, title: str, message: str, hint: str) -> HTMLResponse:
    """Return a page with an error and its hint."""
    return render_page(
        "error.html", status=status, section="", code=status, title=title, message=message, hint=hint
    )


def refusal_page(status: int, title: str, message: str, hint: str) -> HTMLResponse:
    """Return an error page with its styles and script inline, since requests for further files may be refused too."""
    style = "".join(map(asset, ("colours.css", "style.css")))
    theme_script = asset("theme.js")
    page = render_page(
        "refused.html",
        status=status,
        section="",
        code=status,
        title=title,
        message=message,
        hint=hint,
        style=style,
        theme_script=theme_script,
    )
    page.headers["content-security-policy"] = (
        f"default-src 'none'; style-src '{source_hash(style)}'; script-src '{source_hash(theme_script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page


@cache
def _environment() -> Environment:
    return make_environment(_TEMPLATE_FOLDER)
