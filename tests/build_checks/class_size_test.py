#!/usr/bin/env python3
"""Checks that no class has more data members or functions than a reader can keep in mind. `--figures` lists the largest."""
import re
import sys
import unittest

from names_test import HEAD, ROOT, code_of

ROOMS = ("apps", "base", "launcher", "remote", "rendezvous")
MOST_MEMBERS, MOST_FUNCTIONS = 30, 60
NO_MEMBER = re.compile(r"(?:using|friend|typedef|enum|class|struct|union|static_assert|static)\b|$")


def count(declaration):
    """Returns how many (data members, functions) one declaration of a class has."""
    text = re.sub(r"operator\s*[^\s\w(]+", "operator_", declaration)
    text = re.sub(r"\[\[.*?\]\]|\balignas\([^)]*\)|\b(?:public|private|protected)\s*:(?!:)", " ", text)
    while "<" in text and text != (text := re.sub(r"<[^<>]*>", " ", text)):
        pass
    text = re.sub(r"\btemplate\b|\bmutable\b", " ", text).split("=")[0].strip()
    if "(" in text and not text.startswith(("using", "friend", "typedef", "static_assert")):
        return 0, 1
    return (0, 0) if NO_MEMBER.match(text) else (1 + text.count(","), 0)


def classes(code):
    """Yields (name, data members, functions) of each class."""
    stack, begin, kept = [], 0, ""

    def add(declaration):
        if stack and stack[-1][0]:
            members, functions = count(declaration)
            stack[-1][1:3] = stack[-1][1] + members, stack[-1][2] + functions

    for match in re.finditer(r"[{};]", code):
        head, begin, kept = kept + code[begin:match.start()], match.end(), ""
        if match[0] == "{":
            declared = HEAD.search(head.strip())
            is_class = declared and not declared[1].startswith("enum") and "(" not in head[:head.rindex(declared[1])].rsplit(">", 1)[-1]
            stack.append([declared[3] if is_class else None, 0, 0, head])
        elif match[0] == ";":
            add(head)
        elif stack:
            name, members, functions, head = stack.pop()
            if name:
                yield name, members, functions
                kept = "struct"
            elif re.match(r"\s*[;,]", code[begin:]):  # an initializer or an enum: the declaration goes on
                kept = head
            else:
                add(head)


def all_classes():
    for room in ROOMS:
        for path in sorted(p for p in (ROOT / room).rglob("*") if p.suffix in (".h", ".cc", ".cu", ".cuh")):
            yield from ((*found, path.relative_to(ROOT).as_posix()) for found in classes(code_of(path)))


class ClassSizeTest(unittest.TestCase):
    def test_no_class_is_too_large(self):  # plain data, such as the options of a command, may have any number of members
        large = {name: (members, functions) for name, members, functions, _ in all_classes()
                 if functions > MOST_FUNCTIONS or (members > MOST_MEMBERS and functions > 0)}
        self.assertEqual(large, {}, f"a class has at most {MOST_MEMBERS} data members and {MOST_FUNCTIONS} functions: split it")

    def test_members_and_functions_are_distinguished(self):
        code = """class A : public B { public: A() : a_{1}, b_(2) {} explicit A(int x = f(1)); bool operator==(const A&) const = default;
          template <class T> void handle(T) { int local; } private: struct Inner { int one, two; }; enum class E { kX, kY };
          static constexpr int kC = 1; std::function<void(int)> on_ = [] {}; std::map<int, int> a_; int b_ = f(2); E e_{E::kX};
          friend class F; using G = int; static int count(); const int& c_; struct { int x; } pair_; };"""
        self.assertEqual(list(classes(code)), [("Inner", 2, 0), ("A", 6, 5)])


if __name__ == "__main__":
    if "--figures" in sys.argv:
        for found in sorted(all_classes(), key=lambda c: -max(c[1] / MOST_MEMBERS, c[2] / MOST_FUNCTIONS))[:25]:
            print("{1:4} {2:4}  {0}  {3}".format(*found))
    else:
        unittest.main()
