"""The shape of help texts."""


def examples(*lines: str) -> str:
    """Lines for the end of a help text that click must not fill up."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
