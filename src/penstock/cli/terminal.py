"""Printing lines of text.

What is shown may come from anybody who can enqueue a job, so control characters in it are shown as codes.
"""

import click

from penstock.model.printable import escaped_lines


def echo(text: str = "", *, err: bool = False, bold: bool = False, red: bool = False) -> None:
    """Print lines of text, with control characters escaped."""
    shown = escaped_lines(text)
    click.echo(click.style(shown, bold=bold, fg="red" if red else None) if bold or red else shown, err=err)
