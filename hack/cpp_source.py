"""Finds the functions and classes of a C++ file without a compiler, for the checks of hack/.

It knows the part of the language that this repository uses. Whatever it cannot place (a macro with a body
of its own, say) it passes over; it never fails.
"""

from __future__ import annotations

import bisect
import dataclasses
import re

# A raw string, a string, a character, a comment, a preprocessor line with its continuations. An apostrophe
# between digits (1'000) begins no character.
BLANKED = re.compile(
    r'R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'"
    r"|//[^\n]*|/\*.*?\*/"
    r"|^[ \t]*\#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
TEMPLATE = re.compile(r"^template\s*<")
CLASS = re.compile(r"^(?:class|struct|union)\b")
ANNOTATION = re.compile(r"\b(?:[A-Z_]{3,}|alignas)\s*\([^()]*\)")
CLASS_NAME = re.compile(r"^(?:class|struct|union)\s+(?:\[\[[^\]]*\]\]\s*)?((?:\w+\s*::\s*)*\w+)")
OPENS_SCOPE = re.compile(r'^(?:inline\s+)?namespace\b|^extern\s*""|^enum\b')
FUNCTION_NAME = re.compile(
    r"((?:\w+(?:<[^<>()]*>)?\s*::\s*)*(?:operator\s*(?:\(\s*\)|[^\s(]+|\w+)|~?\w+))\s*\("
)
# "A::A(int b) : b_" with the next brace opening an initializer, not the body.
IN_INITIALIZERS = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:)")
ACCESS = re.compile(r"^(?:(?:public|private|protected)\s*:\s*)+")
DATA_MEMBER = re.compile(r"\b\w+_\s*(?:GUARDED_BY\s*|PT_GUARDED_BY\s*)?$")


@dataclasses.dataclass
class Function:
    name: str  # as it is written: "Ledger::Release"
    first_line: int  # of the signature
    last_line: int  # of the closing brace

    @property
    def lines(self) -> int:
        return self.last_line - self.first_line + 1


@dataclasses.dataclass
class Class:
    name: str
    line: int
    has_private_data: bool = False  # a member whose name ends in "_"
    friends: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Contents:
    functions: list[Function]
    classes: list[Class]


def blank(text: str) -> str:
    """The same text, line for line and column for column, without comments, literals and directives."""

    def spaces(match: re.Match[str]) -> str:
        hidden = re.sub(r"[^\n]", " ", match.group(0))
        if match.group(0)[0] in "\"R'" and len(hidden) >= 2:
            return '"' + hidden[1:-1] + '"'  # still an expression
        return hidden

    return BLANKED.sub(spaces, text)


def without_template(head: str) -> str:
    """Drops "template <...>" in front."""
    while match := TEMPLATE.match(head):
        depth, at = 1, match.end()
        while at < len(head) and depth:
            depth += {"<": 1, ">": -1}.get(head[at], 0)
            at += 1
        head = head[at:].lstrip()
        if head.startswith("requires"):
            head = re.sub(r"^requires\s*(?:\([^()]*\)|[\w:<>,\s]+?>)\s*", "", head)
    return head


class Reader:
    def __init__(self, text: str) -> None:
        self.text = blank(text)
        self.line_starts = [0, *(m.end() for m in re.finditer("\n", self.text))]
        self.contents = Contents([], [])

    def line_of(self, at: int) -> int:
        return bisect.bisect_right(self.line_starts, at)

    def closing(self, at: int) -> int:
        """Where the brace or parenthesis that opens at `at` closes; the end of the text if nowhere."""
        opening = self.text[at]
        ending = {"{": "}", "(": ")"}[opening]
        depth = 0
        while at < len(self.text):
            depth += {opening: 1, ending: -1}.get(self.text[at], 0)
            if depth == 0:
                return at
            at += 1
        return len(self.text) - 1

    def read(self, begin: int, end: int, owner: Class | None) -> None:
        """The declarations between two offsets: a whole file, or what stands between a scope's braces."""
        head_begin = at = begin
        while at < end:
            character = self.text[at]
            if character == "(":
                at = self.closing(at)
            elif character == "{":
                head = self.text[head_begin:at]
                last = self.closing(at)
                if self.is_initializer(head):
                    at = last + 1
                    continue  # the declaration goes on behind it
                self.open_brace(head, head_begin, at, last)
                at = last
                head_begin = at + 1
            elif character in ";}":
                self.declaration(self.text[head_begin:at], owner)
                head_begin = at + 1
            at += 1

    @staticmethod
    def is_initializer(head: str) -> bool:
        stripped = without_template(ACCESS.sub("", head.strip()))
        if CLASS.match(ANNOTATION.sub("", stripped)) and "(" not in ANNOTATION.sub("", stripped):
            return False
        if OPENS_SCOPE.match(stripped):
            return False
        if "(" not in stripped:
            return True  # "int x{", "Foo foo = {"
        if stripped.endswith(("=", ",", "return")):
            return True
        in_initializers = IN_INITIALIZERS.search(stripped)
        return bool(in_initializers) and not stripped.endswith((")", "}"))

    def open_brace(self, head: str, head_begin: int, at: int, last: int) -> None:
        stripped = without_template(ACCESS.sub("", head.strip()))
        plain = ANNOTATION.sub("", stripped)
        if CLASS.match(plain) and "(" not in plain:
            name = CLASS_NAME.match(re.sub(r"\s+", " ", plain))
            made = Class(name.group(1) if name else "", self.line_of(at))
            if name:
                self.contents.classes.append(made)
            self.read(at + 1, last, made)
        elif OPENS_SCOPE.match(stripped):
            if not stripped.startswith("enum"):
                self.read(at + 1, last, None)
        elif name := FUNCTION_NAME.search(
            ANNOTATION.sub("", stripped) if "(" in plain else stripped
        ):
            blank_lines = len(head) - len(head.lstrip())
            first = self.line_of(head_begin + blank_lines)
            if access := ACCESS.match(head.lstrip()):
                first = self.line_of(head_begin + blank_lines + access.end())
            self.contents.functions.append(
                Function(re.sub(r"\s+", "", name.group(1)), first, self.line_of(last))
            )

    @staticmethod
    def declaration(text: str, owner: Class | None) -> None:
        if owner is None:
            return
        words = ACCESS.sub("", text.strip())
        if words.startswith("friend "):
            owner.friends.append(re.sub(r"\s+", " ", words))
            return
        if "(" in ANNOTATION.sub("", words):
            return  # a function
        name = re.split(r"[={]", ANNOTATION.sub("", words))[0].strip()
        owner.has_private_data |= bool(DATA_MEMBER.search(name)) and not words.startswith("using ")


def read(text: str) -> Contents:
    reader = Reader(text)
    reader.read(0, len(reader.text), None)
    return reader.contents
