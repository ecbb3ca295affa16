#!/usr/bin/env python3
"""Links between our documents lead somewhere, and docs/README.md leads to every page."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")
# A path from the root; a folder may end in a slash.
PATH = re.compile(r"`([\w.]+/[\w./]*)`")
# Files that code, help texts and documents name without a link: (docs/users/hostfile.md).
MENTION = re.compile(r"\bdocs/[a-z_/]+\.md\b")
ANCHOR = re.compile(r"\[[^\]]*\]\(([^)#:]*)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)


def anchors(document):
    """Those that Markdown makes of the headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(document.read_text())}


def documents():
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "docs/llms.txt"])


class Docs(unittest.TestCase):
    def test_link_targets_exist(self):
        for document in documents():
            for target in LINK.findall(document.read_text()):
                if "://" not in target:
                    with self.subTest(document.name, target=target):
                        self.assertTrue((document.parent / target).exists(),
                                        f"{document.relative_to(ROOT)} links to {target}, which does not exist; correct the link or add the file")

    def test_anchors_lead_to_headings(self):
        for document in documents():
            for target, anchor in ANCHOR.findall(document.read_text()):
                with self.subTest(document.name, target=target, anchor=anchor):
                    page = document.parent / target if target else document
                    self.assertTrue(anchor in anchors(page), f"{document.relative_to(ROOT)} links to #{anchor}, but {page.name} has no such "
                                    f"heading; its headings are {', '.join(sorted(anchors(page)))}")

    def test_mentioned_documents_exist(self):
        for folder in ("apps", "base", "cmake", "launcher", "remote", "rendezvous", "tests", "docs"):
            for path in sorted((ROOT / folder).rglob("*")):
                if path.suffix in {".h", ".cc", ".py", ".txt", ".cmake", ".md", ".1"}:
                    for name in MENTION.findall(path.read_text()):
                        with self.subTest(path.name, mentions=name):
                            self.assertTrue((ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}, which does not exist; name the "
                                            "page that has this now")

    def test_the_index_leads_to_every_page(self):
        self.assertIn("docs/README.md", LINK.findall((ROOT / "README.md").read_text()))
        linked = LINK.findall((ROOT / "docs/README.md").read_text())
        pages = {path.relative_to(ROOT / "docs").as_posix() for folder in ("users", "developers", "decisions") for path in ROOT.glob(f"docs/{folder}/*.md")}
        self.assertEqual(pages - set(linked), set(), "docs/README.md does not lead to these pages; add a line for each")
        twice = {page for page in linked if linked.count(page) > 1}
        self.assertEqual(twice, set(), "docs/README.md leads twice to these pages; remove one line of each")

    def test_paths_of_where_do_i_find_exist(self):
        table = (ROOT / "docs/developers/architecture.md").read_text().split("## Where do I find…")[1].split("\n## ")[0]
        rows = [PATH.findall(row) for row in table.splitlines() if row.startswith("| ")][1:]
        self.assertGreaterEqual(len(rows), 20, 'the table below "Where do I find…" in architecture.md was not found as a whole')
        self.assertEqual(rows.count([]), 0, 'a row of "Where do I find…" in architecture.md names no path; end it with the file, in backticks')
        self.assertEqual([path for row in rows for path in row if not (ROOT / path).is_file()], [],
                         '"Where do I find…" in architecture.md names files that do not exist; name those that answer the question now')

    def test_functions_of_the_path_from_main_to_exec_stand_in_their_files(self):
        path = (ROOT / "docs/developers/architecture.md").read_text().split("## The path from main")[1].split("\n## ")[0]
        steps = re.findall(r"((?:`[\w:]+`(?:,\s+)?)+)(?: for \w+)?\s+\(`([\w./]+)`\)", path)
        named = [(name, file) for names, file in steps for name in re.findall(r"`([\w:]+)`", names)]
        self.assertTrue(40 <= len(set(named)) <= 60, f"{len(set(named))} functions: describe the path, not every helper")
        self.assertLessEqual(len({file for _, file in named}), 30, "files: describe the path, not every helper")
        advice = "follow the path again, and correct \"The path from main\" in docs/developers/architecture.md"

        def bodies(name, file):
            return re.findall(rf"(?ms)^\w[^\n;]*\b{re.escape(name)}\([^;]*?{{$(.*?)^}}", (ROOT / file).read_text())

        for name, file in named:
            with self.subTest(name):
                self.assertTrue(bodies(name, file), f"{file} does not define {name}; {advice}")
        arrows = re.findall(r"((?:`[\w:]+`(?:,\s+)?)+)(?: for \w+)?\s+\(`([\w./]+)`\)\s+→\s+(?=`([\w:]+)`)", path)
        self.assertEqual(len(arrows), path.count("→"), "an arrow stands between `functions` (`file`) and `function`")
        for callers, file, called in arrows:
            with self.subTest(called):
                names = re.findall(r"`([\w:]+)`", callers)
                call = re.compile(rf"\b{called.split('::')[-1]}\(")
                self.assertTrue(any(call.search(body) for name in names for body in bodies(name, file)), f"in {file}, {' and '.join(names)} do not call {called}; {advice}")

    def test_paths_in_developers_pages_exist(self):
        for page in sorted(ROOT.glob("docs/developers/*.md")):
            for path in re.findall(r"`((?:apps|base|launcher|remote|rendezvous|tests|cmake|configs)/[\w./]*)`", page.read_text()):
                with self.subTest(page.name, path=path):
                    found = (ROOT / path).exists() or any(ROOT.glob(f"{path}.*"))
                    self.assertTrue(found, f"{page.relative_to(ROOT)} names {path}, which does not exist; name the file that has this now")

    def test_paths_of_contributing_md_exist(self):
        text = (ROOT / "CONTRIBUTING.md").read_text()
        for braced in re.findall(r"`[\w./]*\{[\w,]+\}[\w./]*`", text):
            before, names, after = re.split(r"[{}]", braced)
            text += " ".join(before + name + after for name in names.split(","))
        paths = PATH.findall(text)
        self.assertGreaterEqual(len(paths), 20, "the recipes of CONTRIBUTING.md were not found")
        self.assertEqual([path for path in paths if not (ROOT / path).exists()], [],
                         "CONTRIBUTING.md names files that do not exist; name those that a reader must change now")

    def test_tests_that_security_md_names_exist(self):
        """`cli_kill` is a ctest entry; `test_…` behind it is a method of its file, "…" a case of its sources."""
        lists = "".join(path.read_text() for path in TESTS.rglob("CMakeLists.txt"))
        entries = dict(re.findall(r"^ *ddp_(?:cli_)?test\((\w+)([^)]*)\)", lists, re.M))
        sources = {path.name: path.read_text() for pattern in ("*_test.py", "*_test.cc") for path in TESTS.rglob(pattern)}
        named, advice = 0, "name the test in docs/users/security.md that shows this now, or write it again"
        for line in (ROOT / "docs/users/security.md").read_text().splitlines():
            texts = ""
            for name, case in re.findall(r'`((?:cli|net|unit|process|ssh|sim|test)_\w+|\w+_fuzz)`|"([a-z][^"]+)"(?=[,; )])', line):
                with self.subTest(name or case):
                    if case:
                        if texts:
                            self.assertTrue(f'TEST_CASE("{case}"' in texts, f"no source of the entry has the case \"{case}\"; {advice}")
                    elif name.startswith("test_"):
                        self.assertTrue(f"def {name}(" in texts, f"the entry's file has no method {name}; {advice}")
                    elif name.endswith("_fuzz"):
                        self.assertTrue((TESTS / f"fuzz/{name}.cc").exists(), f"there is no tests/fuzz/{name}.cc; {advice}")
                    else:
                        self.assertTrue(name in entries, f"no CMakeLists.txt makes the entry {name}; {advice}")
                        texts = "".join(sources[file] for file in re.findall(r"\w+_test\.\w+", entries[name]))
                    named += 1
        self.assertGreater(named, 60, "the names of tests in docs/users/security.md were not found")

    def test_decisions_are_numbered_without_gaps_or_duplicates(self):
        numbers = [int(path.name[:4]) for path in sorted(ROOT.glob("docs/decisions/*.md"))]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)), "docs/decisions: give the newest record the next free number")


if __name__ == "__main__":
    unittest.main()
