"""Runs luacheck over the Lua files, whose constants it is told by name."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from penstock.engine import scripts

LUA = Path(scripts.__file__).parent / "lua"


def main() -> int:
    """Find luacheck, install it where that is possible, and check every file."""
    luacheck = shutil.which("luacheck") or install()
    if luacheck is None:
        print("make check needs luacheck: install Debian's lua-check, or `luarocks install luacheck`.", file=sys.stderr)
        return 1
    config = Path(__file__).parent.parent / ".luacheckrc"
    constants = sorted(name for name in scripts.constants() if re.fullmatch(r"[A-Z0-9_]+", name))
    command = [luacheck, "--config", str(config), "--no-color", "-q", "--read-globals", *constants, "--", str(LUA)]
    return subprocess.run(command, check=False).returncode


def install() -> str | None:
    """Install luacheck from Debian's packages where we may."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "--yes", "--quiet", "lua-check"], check=False, stdout=subprocess.DEVNULL)
    return shutil.which("luacheck")


if __name__ == "__main__":
    sys.exit(main())
