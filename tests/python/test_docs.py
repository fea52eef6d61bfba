"""The sessions that pages show are run, and what they print is compared with the page."""

from __future__ import annotations

import pytest
from pages import VOLATILE, Block, Reader, normalize, read_blocks, read_commands, read_page, section


def sessions_of(path: str, heading: str = "") -> list[Block]:
    """The blocks of a page, or of one section of it, that a reader would type."""
    text = read_page(path)
    blocks = read_blocks(path, section(text, heading) if heading else text)
    return [block for block in blocks if block.is_session or block.is_typed or block.file]


def test_the_tour_of_the_readme_shows_what_happens() -> None:
    with Reader("/tmp/tour") as reader:
        assert reader.follow(sessions_of("README.md", "## Five minutes")) >= 10


def test_the_recipes_for_python_show_what_happens() -> None:
    with Reader("/tmp/recipes") as reader:
        assert reader.follow(sessions_of("docs/python.md")) >= 15


# --- the reader itself ---------------------------------------------------------------------------------


def follow(text: str) -> int:
    with Reader("/tmp/place") as reader:
        return reader.follow(read_blocks("page.md", text))


def test_a_page_that_tells_the_truth_is_followed() -> None:
    page = """
```
$ export WORD=stones
$ mkdir -p /tmp/place && touch /tmp/place/a.txt
$ ls /tmp/place
a.txt
$ cat pile.py
import os
print("pile of", os.environ["WORD"], os.getpid() > 0)
$ python3 pile.py; echo " pid 17"
pile of stones True
 pid 4711
```

```python
# way.py
def back():
    return "found"
```

```python
>>> import os, way
>>> way.back(), os.environ["WORD"]
('found', 'stones')
>>> for i in range(2):
...     print(i)
0
1
>>> way.forth()
Traceback (most recent call last):
  ...
AttributeError: module 'way' has no attribute 'forth'
```
"""
    assert follow(page) == 8


@pytest.mark.parametrize(
    ("block", "where"),
    [
        ("$ echo one\none\n$ echo two\nthree\n", "page.md:5: echo two"),
        ("$ echo one\n", "page.md:3: echo one"),
        ("$ true\nwords\n", "page.md:3: true"),
        ("$ echo 65.1 MiB\n65.0 MiB\n", "page.md:3: echo"),
        (">>> 1 + 1\n3\n", "page.md:3: 1 \\+ 1"),
        (">>> x = 1\n>>> x.y\n1\n", "page.md:4: x.y"),
    ],
)
def test_a_page_that_lies_is_found(block: str, where: str) -> None:
    with pytest.raises(AssertionError, match=where):
        follow(f"\n```\n{block}```\n")


def test_what_a_command_leaves_running_ends_with_its_reader() -> None:
    page = "```\n$ sleep 1000 &\n$ kill -0 $! && echo runs\nruns\n```\n"
    assert follow(page) == 2


def test_only_what_differs_from_run_to_run_is_left_out_of_the_comparison() -> None:
    told = "   0  PERSISTED  65.0 MiB  2  2026-11-23 05:11:44  1795410704093    0  4 min"
    assert normalize(told, []) != normalize(told.replace("65.0", "65.1"), [])
    assert normalize(told, VOLATILE) == " 0 <level> 65.0 MiB 2 <time> <attempt> 0 <age>"


def test_a_block_without_an_end_and_lines_of_a_section_are_told_by_number() -> None:
    with pytest.raises(AssertionError, match="page.md:3"):
        read_blocks("page.md", "\n```\n$ true\n")
    page = "# A\n\n## B\n\n```\n$ 1\n```\n\n## C\n\n```\n$ 2\n```\n"
    (block,) = read_blocks("page.md", section(page, "## C"))
    assert [(c.where, c.command) for c in read_commands(block)] == [("page.md:12", "2")]
