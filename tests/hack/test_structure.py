"""hack/check_structure.py and hack/cpp_source.py find what they say they find."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

import check_structure
import cpp_source


def functions(text: str) -> list[tuple[str, int]]:
    return [(found.name, found.lines) for found in cpp_source.read(text).functions]


def test_a_function_is_measured_from_its_signature_to_its_closing_brace() -> None:
    text = """
namespace cairn {
// Why.
absl::Status Ledger::Release(
    SlabId slab) {
  if (slab == 0) {
    return {};
  }
  return {};
}
}  // namespace cairn
"""
    assert functions(text) == [("Ledger::Release", 7)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Node::Node(Options o)\n    : a_{1}, b_(o.b) {\n  Start();\n}", "Node::Node"),
        ("Node::~Node() { Stop(); }", "Node::~Node"),
        ("bool operator==(const A& a, const B& b) { return true; }", "operator=="),
        ("void A::operator()(int x) const { Do(x); }", "A::operator()"),
        (
            "template <typename T, typename = std::enable_if_t<1>>\nint Size(T t) { return 1; }",
            "Size",
        ),
        ("int Wait(Options options = {}) REQUIRES(mu_) { return 0; }", "Wait"),
        ("auto Names() -> std::vector<std::string> { return {}; }", "Names"),
        ("struct stat Facts(const char* path) { return {}; }", "Facts"),
        ("TEST(Ledger, LeasedSlabIsNotReused) { EXPECT_TRUE(true); }", "TEST"),
        ("int Braces() { return sizeof(\"}{\") + '}' + 1'000; /* } */ }", "Braces"),
        ('std::string Raw() { return R"(}})"; }', "Raw"),
    ],
)
def test_a_function_is_found_in_every_shape_that_we_write(text: str, name: str) -> None:
    last = "\nint After() { return 0; }"
    assert [found for found, _ in functions(text + last)] == [name, "After"]


def test_values_and_types_are_no_functions() -> None:
    text = """
struct Slab { uint64_t bytes = 0; std::vector<int> lends{1, 2}; };
enum class Level : uint8_t { kWriting, kCached };
constexpr std::array<int, 2> kSizes = {1, 2};
const std::map<int, Call> kCalls{{1, Call(2)}};
int Declared(int a, int b = Size({1, 2}));
"""
    assert functions(text) == []


def test_methods_within_a_class_are_found_behind_their_access() -> None:
    text = (
        "class Pool {\n public:\n  int Size() const {\n    return size_;\n  }\n int size_ = 0;\n};"
    )
    assert functions(text) == [("Size", 3)]


def components(sources: dict[str, str]) -> dict[str, int]:
    found = check_structure.find_components(sources, "server/engine")
    return {component.name: component.touching for component in found}


def test_a_component_is_touched_by_the_sources_that_define_its_members() -> None:
    header = (
        "class Ledger {\n public:\n  void Add();\n  void Drop();\n private:\n  int slabs_ = 0;\n};"
    )
    one = {
        "server/engine/ledger.h": header,
        "server/engine/ledger.cc": "void Ledger::Add() {}\nvoid Ledger::Drop() {}",
        "server/engine/other.cc": "void Use(Ledger& ledger) { ledger.Add(); }",
    }
    assert components(one) == {"Ledger": 1}
    two = {**one, "server/engine/other.cc": "void engine::Ledger::Drop() {}"}
    assert components(two) == {"Ledger": 2}


def test_a_friend_reaches_in_and_a_plain_value_has_nothing_private() -> None:
    assert components(
        {
            "server/engine/line.h": "class Line {\n  friend class Retention;\n"
            "  absl::Mutex mu_;\n  std::map<int, int> steps_ GUARDED_BY(mu_);\n};",
            "server/engine/values.h": "struct Extent { uint64_t offset = 0; };",
        }
    ) == {"Line": 2}


def test_circles_are_found_and_chains_are_not() -> None:
    chain = {"a": ["b"], "b": ["c"], "c": []}
    assert check_structure.find_circles(chain) == []
    assert check_structure.find_circles({**chain, "c": ["b"]}) == [["b", "c"]]


def test_headers_that_include_each_other_are_a_circle() -> None:
    arrows = check_structure.include_arrows(
        {
            "server/engine/a.h": '#include "server/engine/b.h"\n#include <map>',
            "server/engine/b.h": '#include "server/engine/a.h"',
        }
    )
    assert check_structure.find_circles(arrows) == [["server/engine/a.h", "server/engine/b.h"]]


def test_rooms_that_include_each_other_are_a_circle() -> None:
    arrows = check_structure.room_arrows(
        {
            "server/node/a.h": ["server/rpc/b.h"],
            "server/rpc/c.h": ["server/node/d.h"],
        }
    )
    assert check_structure.find_circles(arrows) == [["server/node", "server/rpc"]]


def test_an_import_for_types_or_within_a_function_counts() -> None:
    package = {"client/python/cairn/__init__.py": "from cairn.step import Step\n"}
    arrows = check_structure.import_arrows(
        {
            **package,
            "client/python/cairn/step.py": "if True:\n    from cairn.connection import Connection",
            "client/python/cairn/connection.py": "def f():\n    from cairn import _native, step",
        }
    )
    assert check_structure.find_circles(arrows) == [
        ["client/python/cairn/connection.py", "client/python/cairn/step.py"]
    ]


def test_a_module_beside_the_file_is_found() -> None:
    arrows = check_structure.import_arrows(
        {
            "tests/faults/test_x.py": "import cairn_raw\nfrom driver.cases import Case\nimport os",
            "tests/faults/cairn_raw.py": "",
            "tests/driver/__init__.py": "",
            "tests/driver/cases.py": "class Case: pass",
        }
    )
    assert arrows["tests/faults/test_x.py"] == {
        "tests/faults/cairn_raw.py",
        "tests/driver/cases.py",
    }


def test_a_long_function_needs_a_reason_beside_it() -> None:
    body = "  Do();\n" * check_structure.FUNCTION_LINES
    short = f"void Run() {{\n{body[: -len('  Do();') * 2]}}}"
    assert check_structure.long_cpp_functions("a.cc", short) == []
    (bare,) = check_structure.long_cpp_functions("a.cc", f"void Run() {{\n{body}}}")
    assert (bare.reason, bare.where) == ("", "a.cc:1 Run")
    why = "// Runs.\n// One function: a step per line, and each\n// needs the one before it.\n"
    (told,) = check_structure.long_cpp_functions("a.cc", f"{why}void Run() {{\n{body}}}")
    assert told.reason == "a step per line, and each needs the one before it."
    (empty,) = check_structure.long_cpp_functions(
        "a.cc", f"// One function: x\nvoid Run() {{\n{body}}}"
    )
    assert empty.reason == ""


def test_a_long_python_function_gives_its_reason_in_the_docstring() -> None:
    body = "    pass\n" * check_structure.FUNCTION_LINES
    (bare,) = check_structure.long_python_functions("a.py", f"def run():\n{body}")
    assert bare.reason == ""
    words = '    """Runs.\n\n    One function: it is the plot of the demo."""\n'
    (told,) = check_structure.long_python_functions("a.py", f"def run():\n{words}{body}")
    assert told.reason == "it is the plot of the demo."


def test_a_long_file_needs_its_reason_at_the_top() -> None:
    lines = "int x;\n" * check_structure.FILE_LINES
    why = "// One file: the tables refer to each other.\n"
    assert check_structure.long_file("a.h", lines) == []
    (bare,) = check_structure.long_file("a.h", lines + why)
    assert bare.reason == ""
    (told,) = check_structure.long_file("a.h", why + lines)
    assert told.reason == "the tables refer to each other."
