"""`geval haiku`: print the poem."""

import typer

from geval_haiku.provider import POEM

app = typer.Typer()


@app.command()
def haiku() -> None:
    """Print a haiku."""
    typer.echo(POEM)
