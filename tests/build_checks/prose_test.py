#!/usr/bin/env python3
"""Checks that README.md, CONTRIBUTING.md and the pages of docs/ are short and plain: length of a page, length of its sentences, private words.

usage: prose_test.py [unittest options]
       prose_test.py --figures [PAGE…]    prints lines, sentences, median and 90th percentile of words for each page
"""
import math
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_LINES = 220
MOST_MEDIAN = 16
MOST_90TH = 26
# Fewer sentences say nothing about a page.
FEWEST_SENTENCES = 5

# Words that only this project would use; CONTRIBUTING.md says where the usual terms are.
PRIVATE = re.compile(r"""\b(
    the\s+living | liv(?:e|es|ed|ing)\s+(?:on|through) | le(?:t|ts|tting)\s+go | memory\s+killer | played | plays? | signs?\s+of\s+life |
    told | tells?\s+(?:besides|why) | a\s+bad\s+end | odd\s+workers? | hopeless | fruitless | foreign\s+options? |
    pats? | mend(?:s|ed)? | seats? | judges? | drills? | planted | what\s+becomes\s+of | recipes? | bells? | doors? |
    mishaps? | talkative | in\s+the\s+midst
)\b""", re.X | re.I)

# In comments and messages of the sources, where some of the words above have another meaning.
PRIVATE_IN_SOURCES = re.compile(r"""\b(
    the\s+living | liv(?:e|es|ed|ing)\s+on | le(?:t|ts|tting)\s+go | memory\s+killer | signs?\s+of\s+life | told | hopeless | fruitless | mend(?:s|ed)? |
    last\s+words? | a\s+mistake\s+of\s+ours
)\b""", re.X | re.I)
SOURCES = ("apps", "base", "launcher", "remote", "rendezvous", "tests")
PROSE_OF_SOURCES = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"')

FENCE = re.compile(r"^ *```.*?^ *```[^\n]*$", re.M | re.S)
CODE_SPAN = re.compile(r"(`+)(?:(?!\1).)+?\1", re.S)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +")
LEAD = re.compile(r"^\*\*[^*]+[.:]\*\*:? *")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|cf|vs)\.")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*]*\s+")


def pages(root):
    """README.md, CONTRIBUTING.md and all pages of docs/, by their paths from the root."""
    paths = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    return [path.relative_to(root).as_posix() for path in paths if path.exists()]


def blocks(text):
    """Paragraphs and list items of a Markdown text, each as one line; no headings, tables, code blocks or lists of options."""
    found, current = [], []

    def close():
        if current:
            found.append(" ".join(current))
            current.clear()

    for line in [*FENCE.sub("", text).splitlines(), ""]:
        if not line.strip() or line.startswith(("#", "|", "    ", "<!--")):
            close()
            continue
        if ITEM.match(line):
            close()
        current.append(ITEM.sub("", line).strip())
    return [block for block in found if not block.startswith("`-")]


def sentence_lengths(text):
    """Words of each sentence of a Markdown text. A code span or a link's address counts as one word or none."""
    lengths = []
    for block in blocks(text):
        plain = ABBREVIATION.sub(r"\1", CODE_SPAN.sub("Code", LINK.sub(r"\1", LEAD.sub("", block))))
        for sentence in SENTENCE_END.split(plain):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > 2:  # a shorter one is a label
                lengths.append(len(words))
    return lengths


def figures(text):
    """(sentences, median, 90th percentile) of the words in a sentence."""
    lengths = sorted(sentence_lengths(text))
    if not lengths:
        return 0, 0, 0
    return len(lengths), lengths[math.ceil(0.5 * len(lengths)) - 1], lengths[math.ceil(0.9 * len(lengths)) - 1]


def is_too_long(text):
    sentences, median, high = figures(text)
    return sentences >= FEWEST_SENTENCES and (median > MOST_MEDIAN or high > MOST_90TH)


def private_words(text):
    """Private words outside of code and of quoted messages."""
    prose = "\n".join(line for line in FENCE.sub("", text).splitlines() if not line.startswith("    "))
    prose = re.sub(r'"[^"\n]*"', "", CODE_SPAN.sub("", LINK.sub(r"\1", prose)))
    return sorted({re.sub(r"\s+", " ", match[0].lower()) for match in PRIVATE.finditer(prose)})


def private_words_of_source(text):
    """Private words in the comments and string literals of a C++ file."""
    prose = re.sub(r"\n *//+<?", " ", "\n".join(PROSE_OF_SOURCES.findall(text)))
    return sorted({re.sub(r"\s+", " ", match[0].lower()) for match in PRIVATE_IN_SOURCES.finditer(prose)})


class Prose(unittest.TestCase):
    maxDiff = None

    def texts(self):
        return {page: (ROOT / page).read_text(encoding="utf-8") for page in pages(ROOT)}

    def test_no_page_is_too_long(self):
        found = {page: lines for page, text in self.texts().items() if (lines := len(text.splitlines())) > MOST_LINES}
        self.assertEqual(found, {}, f"more than {MOST_LINES} lines: which part is a page of its own?")

    def test_sentences_are_short(self):
        found = {page: figures(text) for page, text in self.texts().items() if is_too_long(text)}
        self.assertEqual(found, {}, f"(sentences, median, 90th percentile): at most {MOST_MEDIAN} and {MOST_90TH} words")

    def test_no_private_words(self):
        found = {page: words for page, text in self.texts().items() if (words := private_words(text))}
        self.assertEqual(found, {}, "write the usual term instead (docs/developers/architecture.md, \"Terms\")")


    def test_no_private_words_in_sources(self):
        paths = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in {".h", ".cc", ".cu", ".cuh"}]
        self.assertGreater(len(paths), 500)
        found = {str(path.relative_to(ROOT)): words for path in paths
                 if (words := private_words_of_source(path.read_text(encoding="utf-8")))}
        self.assertEqual(found, {}, "write the usual term instead (docs/developers/architecture.md, \"Terms\")")


class Rules(unittest.TestCase):
    """Each rule can fail."""

    def test_pages_are_found_in_all_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/users").mkdir(parents=True)
            for name in ("README.md", "CHANGELOG.md", "docs/README.md", "docs/users/README.md", "docs/users/x.1"):
                (root / name).touch()
            self.assertEqual(pages(root), ["README.md", "docs/README.md", "docs/users/README.md"])

    def test_a_page_of_long_sentences_is_found(self):
        self.assertFalse(is_too_long("The agent stops its workers. " * 9))
        self.assertTrue(is_too_long(("word " * 17 + "end. ") * 9))
        self.assertTrue(is_too_long("The agent stops its workers. " * 4 + ("word " * 26 + "end. ")))
        self.assertFalse(is_too_long("word " * 99 + "end."))

    def test_sentences_are_counted(self):
        self.assertEqual(sentence_lengths("One two three four. Five `a b c` [six seven](x/y.md)! Is it so?"), [4, 4, 3])
        self.assertEqual(sentence_lengths("One two\nthree (e.g. four) five:\n\n    code is. Not counted here.\n"), [6])
        self.assertEqual(sentence_lengths("# A long title here.\n\n| a table row. And more. |\n\n- item one is.\n- item two it is\n  and more"), [3, 6])
        self.assertEqual(sentence_lengths("- `--option N`: is not a sentence at all.\n\n**Lead in.** Three words count.\n"), [3])
        self.assertEqual(sentence_lengths("```sh\nnot this one here.\n```\nBut this one here.\n"), [4])

    def test_private_words_are_found(self):
        self.assertEqual(private_words("The living\nLET GO of it; ranks live\non. He is told why."), ["let go", "live on", "the living", "told"])
        self.assertEqual(private_words("| in a table | the memory killer |"), ["memory killer"])
        self.assertEqual(private_words("`let go`, \"ranks live on\" and\n\n    rank 3 lives on\n\n```\nplayed\n```\nsurvive; display; retold"), [])

    def test_private_words_of_sources_are_found(self):
        self.assertEqual(private_words_of_source('int told;  // ranks let\n  /// go\nsay("the living");'), ["let go", "the living"])


def print_figures(names):
    print("| page | lines | sentences | median | 90th percentile |\n|---|---|---|---|---|")
    for page in names or pages(ROOT):
        text = (ROOT / page).read_text(encoding="utf-8")
        print(f"| {page} | {len(text.splitlines())} | " + " | ".join(map(str, figures(text))) + " |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--figures"]:
        print_figures(sys.argv[2:])
    else:
        unittest.main()
