"""The pure parts of ./dev platforms: what ctest and programs of a root print, and the table."""

import re
import xml.etree.ElementTree


def upstream_version(text):
    """Returns Debian's version without epoch and revision: 1:9.2p1-2+deb12u7 is 9.2p1."""
    return re.match(r"(?:\d+:)?([^-+~]*)", text).group(1)


def outcomes(junit):
    """Returns the names of passed, failed and skipped entries in the text of ctest's JUnit file."""
    passed, failed, skipped = [], [], []
    for case in xml.etree.ElementTree.fromstring(junit).iter("testcase"):
        name, status = case.get("name"), case.get("status")
        if status == "run":
            passed.append(name)
        elif status == "notrun" and (case.find("skipped") is not None and "SKIP_RETURN_CODE" in case.find("skipped").get("message", "")):
            skipped.append(name)
        else:
            failed.append(name)
    return passed, failed, skipped


def not_run(name, reason):
    """Returns the row of a system that could not be made."""
    return [name, f"not run: {reason}"]


def table(header, rows):
    """Returns the lines of a table with aligned columns. The text of a shorter row goes on over the columns that it lacks."""
    full = [row for row in [header, *rows] if len(row) == len(header)]
    widths = [max(len(str(row[at])) for row in (rows + [header] if at == 0 else full)) for at in range(len(header))]
    return ["  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [header, *rows]]


def glibc_in(text):
    found = re.search(r"GLIBC (\d+\.\d+)", text)
    return found.group(1) if found else "-"
