"""The format of help texts."""

import difflib

import click


class Group(click.Group):
    """A group that shows the whole help line of each command, and suggests the nearest name for a misspelt one."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(200)) for name, command in commands if command])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            close = difflib.get_close_matches(args[0], names, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            ctx.fail(f"no such command {args[0]!r}: {guess}valid are {', '.join(names)}")
        return super().resolve_command(ctx, args)


def examples(*lines: str) -> str:
    """Examples for the end of a help text, which click must not rewrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
