"""Runs luacheck over the scripts as the server gets them: prelude, pieces and verb put together."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.engine.scripts import load


def main() -> int:
    """Find luacheck, install it where that is possible, and check every script."""
    luacheck = shutil.which("luacheck") or install()
    if luacheck is None:
        print("make check needs luacheck: install Debian's lua-check, or `luarocks install luacheck`.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        for name, script in load().items():
            text = "--" + script.text  # luacheck knows no shebang flags; the line stays, so numbers agree
            Path(folder, f"{name}.lua").write_text(text, "utf-8")
        config = Path(__file__).parent.parent / ".luacheckrc"
        command = [luacheck, "--config", str(config), "--no-color", "-q", folder]
        return subprocess.run(command, check=False).returncode


def install() -> str | None:
    """Install luacheck from Debian's packages where we may."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "--yes", "--quiet", "lua-check"], check=False, stdout=subprocess.DEVNULL)
    return shutil.which("luacheck")


if __name__ == "__main__":
    sys.exit(main())
