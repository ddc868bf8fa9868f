"""`geval haiku`: print the poem."""

import typer

from geval_haiku.provider import POEM

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def haiku() -> None:
    """Print a haiku."""
    typer.echo(POEM)
