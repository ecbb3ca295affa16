"""Runs the ddplaunch of this installation: python -m ddplaunch ARGUMENTS"""

import os
import pathlib
import sys


def main():
    here = pathlib.Path(__file__).resolve().parents
    # PREFIX/lib/pythonX/site-packages/ddplaunch and PREFIX/share/ddplaunch/python/ddplaunch; pip's --target has its own bin.
    for prefix in here[4], here[1]:
        program = prefix / "bin/ddplaunch"
        if program.exists():
            os.execv(program, ["ddplaunch", *sys.argv[1:]])
    sys.exit(f"python -m ddplaunch: no bin/ddplaunch in {here[4]} or {here[1]}; install the wheel again")


main()
