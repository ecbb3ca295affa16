#!/usr/bin/env python3
"""Links between our documents lead somewhere, and README.md leads to every document."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")
# Files that code, help texts and documents name without a link: (docs/hostfile.md).
MENTION = re.compile(r"\bdocs/[a-z_]+\.md\b")


def documents():
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/decisions/*.md")])


class Docs(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for document in documents():
            for target in LINK.findall(document.read_text()):
                if "://" not in target:
                    with self.subTest(document.name, target=target):
                        self.assertTrue((document.parent / target).exists(), f"{document} links to {target}")

    def test_mentioned_documents_exist(self):
        for folder in ("apps", "base", "cmake", "launcher", "remote", "rendezvous", "tests", "docs"):
            for path in sorted((ROOT / folder).rglob("*")):
                if path.suffix in {".h", ".cc", ".py", ".txt", ".cmake", ".md", ".1"}:
                    for name in MENTION.findall(path.read_text()):
                        with self.subTest(path.name, mentions=name):
                            self.assertTrue((ROOT / name).exists(), f"{path} names {name}")

    def test_readme_leads_to_every_document(self):
        linked = set(LINK.findall((ROOT / "README.md").read_text()))
        self.assertEqual({f"docs/{path.name}" for path in ROOT.glob("docs/*.md")} - linked, set())

    def test_answers_of_where_do_i_find_exist(self):
        table = (ROOT / "docs/architecture.md").read_text().split("## Where do I find…")[1].split("\n## ")[0]
        answers = re.findall(r"\| `([^`]+)` \|", table)
        self.assertGreaterEqual(len(answers), 20)
        self.assertEqual([answer for answer in answers if not (ROOT / answer).is_file()], [])

    def test_decisions_are_numbered_without_gap_or_double(self):
        numbers = [int(path.name[:4]) for path in sorted(ROOT.glob("docs/decisions/*.md"))]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))


if __name__ == "__main__":
    unittest.main()
