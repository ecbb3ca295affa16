#!/usr/bin/env python3
"""Checks that names are terms of the field (docs/developers/architecture.md, "Terms"), and that a type's name has one meaning."""
import collections
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOP = ("apps", "base", "launcher", "remote", "rendezvous", "tests")
SOURCES = {".h", ".cc", ".cu", ".cuh"}

# Private words: no part of an identifier, of an option, of a file's name, of a CMake target or of a Python function or class.
PRIVATE = frozenset("""
    played plant plants planted drill life lives living born seat seats seated stock judge judges judged inquiry told tell tells wishes hurry
    hurried pat mend mends mended hopeless fruitless surroundings findings mistake mistakes recipe oddity odd
    door doors bell bells looks
""".split())
# Nouns without a meaning, or with another meaning elsewhere: no type, and no part of a type's name.
PRIVATE_TYPES = frozenset("""
    Asked Bell Born Both Door Guard Half Held Inquiry Judge Life Living Look Mine Place Plant Play Seat Stock Tell Told Watch Way What Wishes
""".split())
PRIVATE_PREFIXES = ("tell_", "mind_", "hurry_")
# identifier, option or file: reason
ALLOWED = {
    "lock_guard": "of the standard library",
    "executor_work_guard": "of Asio",
}
# A name that each class may give to its own type. Other code writes it with the class: Membership::State.
IDIOMS = frozenset("""
    Action Actions Args Clock Deadline Duration End Entry Event Events Group Id Key Kind Local Memory Node Options Outcome Phase Rank Row Shared
    State Step Time Type
""".split())
# Private members of a class, defined in its .cc file, so that no other file can name them. A new one gets its own name.
MEMBERS = {
    "DataMemory::Mapping", "FanOut::Start", "LoginWindow::Queue", "NodeSetup::Running", "SshPump::Callbacks", "SshShell::Attempt",
    "SshThreads::Worker", "StoreDecoder::Layout", "WorkerGroup::Worker", "WorkerLink::Worker", "WorkerPipes::Pipe",
}
SAME_MEANING = {
    # the check of hosts is a small supervisor: its events and orders are those of a job, with fewer fields
    "Disconnect", "FromNode", "NodeFailed", "NodeUp", "Tick", "ToNode",
    # messages in the form that a node's core takes or gives (launcher/agent_core/agent_events.h)
    "Action", "Actions", "Event", "JobAccepted", "LinkLost", "OpenStore", "WorkerExited", "WorkerReady", "WorkerStarted",
    # a layer's weights on the host and on the GPU
    "Layer", "Weights1", "Weights2", "Totals",
}

COMMENTS = re.compile(r'//[^\n]*|/\*[\s\S]*?\*/|R"(\w*)\([\s\S]*?\)\1"|"(?:[^"\\\n]|\\.)*"|(?<![0-9a-fA-F])\'(?:[^\'\\\n]|\\.)+\'')
INCLUDES = re.compile(r"^\s*#\s*include[^\n]*", re.M)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
HEAD = re.compile(r"\b(class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:alignas\([^)]*\)\s*|\[\[\w+\]\]\s*)*((?:\w+::)*)([A-Za-z_]\w*)(?:\s+final)?(?:\s*<[^;{}]*>)?\s*(?::(?!:)[^;{}]*)?$")
ALIAS = re.compile(r"\busing\s+([A-Za-z_]\w*)\s*=\s*([^;]+)$")


def code_of(path):
    return INCLUDES.sub("", COMMENTS.sub(" ", path.read_text(encoding="utf-8", errors="replace")))


def sources(root):
    for top in TOP:
        yield from (p for p in sorted((root / top).rglob("*")) if p.suffix in SOURCES)


def words(name):
    return [word.lower() for word in WORD.findall(name)]


def types(code):
    """Yields (enclosing classes, name, the target of an alias or None) of each type that is not local to a function."""
    stack, begin = [], 0
    for match in re.finditer(r"[{};]", code):
        head, at = code[begin:match.start()].strip(), match.start()
        outer = [name for kind, name in stack if kind == "class"]
        local = any(kind == "block" for kind, _ in stack)
        if match[0] == "{":
            declared = HEAD.search(head)
            if declared and "(" not in head.rsplit(declared[1], 1)[0].rsplit(">", 1)[-1]:
                around = declared[2].split("::")[:-1]  # struct Outer::Inner {…}; is defined outside Outer
                if not local:
                    yield (*outer, *around), declared[3], None
                stack.append(("block" if declared[1].startswith("enum") else "class", declared[2] + declared[3]))
            else:
                stack.append(("namespace" if re.search(r"\bnamespace\b[^()]*$", head) or head.endswith('extern') else "block", ""))
        elif match[0] == "}":
            if stack:
                stack.pop()
        else:
            alias = ALIAS.search(head)
            if alias and not local:
                yield tuple(outer), alias[1], re.sub(r"\s+|\b\w+::(?=\w)|typename", "", alias[2])
        begin = at + 1


def private_words(root):
    found = collections.defaultdict(set)
    for path in sources(root):
        name = path.relative_to(root).as_posix()
        options = {option for text in STRING.findall(path.read_text(encoding="utf-8")) for option in OPTION.findall(text)}
        for identifier in set(IDENTIFIER.findall(code_of(path))) | options:
            if identifier in ALLOWED:
                continue
            if PRIVATE & set(words(identifier)) or identifier.startswith(PRIVATE_PREFIXES):
                found[identifier].add(name)
    for top in TOP:
        for path in sorted((root / top).rglob("*.py")):
            for identifier in re.findall(r"^\s*(?:def|class)\s+(\w+)", path.read_text(encoding="utf-8"), re.M):
                if PRIVATE & set(words(identifier)) and identifier not in ALLOWED:
                    found[identifier].add(path.relative_to(root).as_posix())
        for path in (root / top).rglob("*"):
            if "__pycache__" not in path.parts and PRIVATE & set(words(path.name)) and path.name not in ALLOWED:
                found[path.name].add(path.relative_to(root).as_posix())
        for path in (root / top).rglob("CMakeLists.txt"):
            for target in re.findall(r"(?:add_executable|add_library|ddp_\w+|NAME)[(\s]+(\w+)", path.read_text(encoding="utf-8")):
                if PRIVATE & set(words(target)):
                    found[target].add(path.relative_to(root).as_posix())
    return {name: sorted(files) for name, files in found.items()}


def declarations(root):
    """Returns {type name: {(file, enclosing classes): alias target or None}}. Types that only one .cc file of tests has do
    not count."""
    found = collections.defaultdict(dict)
    for path in sources(root):
        name = path.relative_to(root).as_posix()
        if name.startswith("tests/") and path.suffix == ".cc":
            continue
        for outer, typename, target in types(code_of(path)):
            found[typename].setdefault((name, outer), target)
    return found


def two_meanings(root):
    for name, places in sorted(declarations(root).items()):
        if name in SAME_MEANING or len(name) == 1:
            continue
        places = {place: target for place, target in places.items() if "::".join((*place[1], name)) not in MEMBERS}
        if name in IDIOMS:  # the type belongs to a class, or to one namespace
            places = {place: target for place, target in places.items() if not place[1]}
        # A class is one type, even if several files define its member types. Equal aliases have the same meaning.
        meanings = {target or (file.rpartition(".")[0], outer) for (file, outer), target in places.items()
                    if not (target or "").endswith(name)}
        if len(meanings) > 1:
            yield f"{name}: " + ", ".join("::".join((*outer, name)) + f" ({file})" for file, outer in sorted(places))


class Names(unittest.TestCase):
    maxDiff = None

    def test_no_private_words(self):
        self.assertEqual(private_words(ROOT), {}, "write the term of docs/developers/architecture.md instead")

    def test_type_names_are_nouns(self):
        found = [f"{name} ({file})" for name, places in declarations(ROOT).items() for file, _ in places
                 if set(re.findall(r"[A-Z][a-z]+", name)) & PRIVATE_TYPES]
        self.assertEqual(sorted(found), [])

    def test_a_type_name_has_one_meaning(self):
        self.assertEqual(list(two_meanings(ROOT)), [])

    def test_exceptions_for_members_are_used(self):
        found = {"::".join((*outer, name)) for name, places in declarations(ROOT).items() for _, outer in places}
        self.assertEqual(MEMBERS - found, set())

    def test_violations_are_found(self):
        with tempfile.TemporaryDirectory() as directory:
            root = pathlib.Path(directory)
            (root / "base").mkdir()
            (root / "launcher").mkdir()
            (root / "base/seat.h").write_text("namespace ddp {\nstruct Range {\n  int told_at = 0;  // no seat\n};\n}\n", encoding="utf-8")
            (root / "launcher/range.cc").write_text(
                'struct Range {\n  enum class State { kOn };\n};\nvoid f() {\n  struct Local {};\n  say("played");\n  add("-p,--played-gpu");\n}\n', encoding="utf-8")
            self.assertEqual(sorted(private_words(root)), ["--played-gpu", "seat.h", "told_at"])
            self.assertEqual(list(two_meanings(root)), ["Range: Range (base/seat.h), Range (launcher/range.cc)"])

    def test_a_type_out_of_line_counts(self):
        with tempfile.TemporaryDirectory() as directory:
            root = pathlib.Path(directory)
            (root / "base").mkdir()
            (root / "base/link.cc").write_text("struct Link::Inner {\n  struct Deep {};\n};\nenum class a::Link::Mode : int { kOn };\n", encoding="utf-8")
            (root / "base/other.h").write_text("struct Deep {};\nclass Mode;\nclass Inner final : public X<Link::Inner> {};\n", encoding="utf-8")
            self.assertEqual({name: sorted(places) for name, places in declarations(root).items()},
                             {"Inner": [("base/link.cc", ("Link",)), ("base/other.h", ())],
                              "Deep": [("base/link.cc", ("Link::Inner",)), ("base/other.h", ())],
                              "Mode": [("base/link.cc", ("a", "Link"))]})
            self.assertEqual([line.split(":")[0] for line in two_meanings(root)], ["Deep", "Inner"])


if __name__ == "__main__":
    unittest.main()
