#!/usr/bin/env python3
"""Checks that README.md, CONTRIBUTING.md, CHANGELOG.md and the pages of docs/ are short and plain: length of a page, length of its
sentences, private words. Also checks private words and the openings of comments in the sources.

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
# A comment that opens so has no subject: "Whether it runs" for "Returns whether it runs".
OPENING = re.compile(r"^ *//[/!]*<? +(?:Why|Whether|How|What|Of|Who|Whose|Whom|Those)\b", re.M)
ROFF_FONTS = re.compile(r"\\f[BIRP]")
ROFF_CHARACTERS = {"\\-": "-", "\\(aq": "'", "\\(ga": "`", "\\(ti": "~", "\\(ha": "^", "\\e": "\\", "\\&": ""}
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*]*\s+")


def pages(root):
    """README.md, CONTRIBUTING.md, CHANGELOG.md and all pages of docs/, by their paths from the root."""
    paths = [*(root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted((root / "docs").rglob("*.md")),
             *sorted((root / "docs").rglob("*.1"))]
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


def markdown_of(roff):
    """The paragraphs of a manual page as Markdown. A literal with blanks is a code span; tags of lists are left out."""
    paragraphs, current, skipped, is_tag = [], [], False, False
    for line in roff.splitlines():
        request, _, rest = line.partition(" ") if line.startswith(".") else ("", "", line)
        if request in (".nf", ".fi"):
            skipped = request == ".nf"
        if skipped or request == '.\\"':
            continue
        if is_tag:
            is_tag = False
        elif request in ("", ".B", ".I", ".BR", ".BI", ".RB", ".RI", ".IR"):
            words = re.findall(r'"[^"]*"|\S+', rest)
            current.append(rest if request == "" else rest.replace('"', "") if len(request) == 2 else "".join(words).replace('"', ""))
        else:
            paragraphs.append(" ".join(current))
            current = []
            is_tag = request == ".TP"
    text = ROFF_FONTS.sub("", "\n\n".join([*paragraphs, " ".join(current)]))
    for escaped, character in ROFF_CHARACTERS.items():
        text = text.replace(escaped, character)
    return text


def read_page(path):
    text = path.read_text(encoding="utf-8")
    return markdown_of(text) if path.suffix == ".1" else text


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
        return {page: read_page(ROOT / page) for page in pages(ROOT)}

    def test_no_page_is_too_long(self):
        found = {page: lines for page, text in self.texts().items() if not page.endswith(".1") and (lines := len(text.splitlines())) > MOST_LINES}
        self.assertEqual(found, {}, f"more than {MOST_LINES} lines: which part is a page of its own?")

    def test_sentences_are_short(self):
        found = {page: figures(text) for page, text in self.texts().items() if is_too_long(text)}
        self.assertEqual(found, {}, f"(sentences, median, 90th percentile): at most {MOST_MEDIAN} and {MOST_90TH} words")

    def test_no_private_words(self):
        found = {page: words for page, text in self.texts().items() if (words := private_words(text))}
        self.assertEqual(found, {}, "write the usual term instead (docs/developers/architecture.md, \"Terms\")")

    def test_comments_are_sentences_with_a_subject(self):
        found = {path: openings for path, text in self.sources().items() if (openings := OPENING.findall(text))}
        self.assertEqual(found, {}, 'begin with a subject or a verb: "Returns whether …", "The time that …"')

    def sources(self):
        paths = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in {".h", ".cc", ".cu", ".cuh"}]
        self.assertGreater(len(paths), 500)
        return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}

    def test_no_private_words_in_sources(self):
        found = {path: words for path, text in self.sources().items() if (words := private_words_of_source(text))}
        self.assertEqual(found, {}, "write the usual term instead (docs/developers/architecture.md, \"Terms\")")


class Rules(unittest.TestCase):
    """Each rule can fail."""

    def test_pages_are_found_in_all_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/users").mkdir(parents=True)
            for name in ("README.md", "CHANGELOG.md", "docs/README.md", "docs/users/README.md", "docs/users/x.1"):
                (root / name).touch()
            self.assertEqual(pages(root), ["README.md", "CHANGELOG.md", "docs/README.md", "docs/users/README.md", "docs/users/x.1"])

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

    def test_the_text_of_a_manual_page_is_found(self):
        page = ('.TH X 1\n.\\" A comment.\n.SH NAME\n.B ddplaunch \\-\\-stdio\nstarts one\n.IR WORKER ,\nand waits.\n.PP\nThe\n'
                '.RB ( "ddplaunch check" )\nends.\n.nf\nsome code here.\n.fi\n.TP\n\\fB\\-\\-x\\fR \\fIFILE\\fR\nThe file\\(aqs name.\n')
        self.assertEqual([line for line in markdown_of(page).splitlines() if line.strip()],
                         ["ddplaunch --stdio starts one WORKER, and waits.", "The (ddplaunch check) ends.", "The file's name."])

    def test_openings_of_comments_are_found(self):
        self.assertEqual(OPENING.findall("/// Whether it runs.\n  // What is left.\nint x;  // whether\n/// Returns whether. Who\n///< Of one.\n"),
                         ["/// Whether", "  // What", "///< Of"])

    def test_private_words_are_found(self):
        self.assertEqual(private_words("The living\nLET GO of it; ranks live\non. He is told why."), ["let go", "live on", "the living", "told"])
        self.assertEqual(private_words("| in a table | the memory killer |"), ["memory killer"])
        self.assertEqual(private_words("`let go`, \"ranks live on\" and\n\n    rank 3 lives on\n\n```\nplayed\n```\nsurvive; display; retold"), [])

    def test_private_words_of_sources_are_found(self):
        self.assertEqual(private_words_of_source('int told;  // ranks let\n  /// go\nsay("the living");'), ["let go", "the living"])


def print_figures(names):
    print("| page | lines | sentences | median | 90th percentile |\n|---|---|---|---|---|")
    for page in names or pages(ROOT):
        text = read_page(ROOT / page)
        print(f"| {page} | {len(text.splitlines())} | " + " | ".join(map(str, figures(text))) + " |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--figures"]:
        print_figures(sys.argv[2:])
    else:
        unittest.main()
