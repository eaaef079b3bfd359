#!/usr/bin/env python3
"""Checks that includes follow the arrows of docs/architecture.md and make no circle.

Every include of our own files is rooted at the repository. A folder may include itself, base/ and
the folders listed for it here; tests may include anything. Prints each include that breaks a rule,
and each circle of files, and ends with 1 where there is one.
"""

import pathlib
import re
import subprocess
import sys

# Folder: what it may include besides itself and base. The longest folder that a file lies in counts.
LIBRARIES = ["engine", "kernels", "model", "model/import", "tokenizer", "tokenizer/jinja"]
FRONT_END = ["apps/flags", "apps/cli", "apps/session", "apps/common", *LIBRARIES]
ARROWS = {
    "base": [],
    "kernels": [],
    "model": ["model/import"],
    "model/import": ["model"],
    "tokenizer": ["tokenizer/jinja"],
    "tokenizer/jinja": ["tokenizer"],
    "engine": ["kernels", "model"],
    "apps/common": [],
    "apps/cli": ["apps/common"],
    "apps/session": ["apps/common", *LIBRARIES],
    "apps/flags": ["apps/cli", "apps/requests", "apps/session", "apps/common", *LIBRARIES],
    "apps/generate": FRONT_END,
    "apps/requests": ["apps/session", "apps/common", *LIBRARIES],
    "apps/batch": [*FRONT_END, "apps/requests"],
    "apps/nvml": ["apps/common"],
    "apps/serve": [*FRONT_END, "apps/fetch", "apps/hub", "apps/nvml", "apps/requests"],
    "apps/inspect": FRONT_END,
    "apps/hub": ["apps/common"],
    "apps/fetch": ["apps/hub", "apps/session", "apps/common", *LIBRARIES],
    "apps/pull": [*FRONT_END, "apps/fetch", "apps/hub"],
    "apps/bench": [*FRONT_END, "apps/nvml", "apps/requests"],
    "apps/compare": [*FRONT_END, "apps/compare/clients"],
    "apps/compare/clients": ["apps/common", "tokenizer"],
    "apps/capi": ["apps/session", "apps/common", *LIBRARIES],
    # main.cpp and the register of commands.
    "apps": ["apps/generate", "apps/batch", "apps/serve", "apps/inspect", "apps/bench", "apps/compare", "apps/pull", "apps/cli", "apps/common"],
}
# Headers that only some folders may include.
LIMITED = {
    "CLI/": ["apps/cli"],
    "spdlog/": ["apps/common"],
    "httplib.h": ["apps/compare/clients", "apps/hub", "apps/serve"],
    "openssl/": ["apps/hub", "apps/serve"],
    "cuda_runtime": ["kernels", "engine", "apps/bench"],
}
SOURCE = re.compile(r"\.(cpp|h|cu|cuh|inc)$")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def folder_of(path: str) -> str:
    """The longest folder of ARROWS that `path` lies in; empty for one that has no rule."""
    return max((f for f in ARROWS if path.startswith(f + "/")), key=len, default="")


def circle_from(graph: dict[str, list[str]]) -> list[str]:
    """Files that include each other in a circle; empty where there is none."""
    done: set[str] = set()
    for root in graph:
        stack, on_path = [(root, iter(graph[root]))], [root]
        while stack:
            name, rest = stack[-1]
            following = next((n for n in rest if n not in done), None)
            if following is None:
                done.add(name)
                stack.pop()
                on_path.pop()
            elif following in on_path:
                return [*on_path[on_path.index(following):], following]
            else:
                stack.append((following, iter(graph[following])))
                on_path.append(following)
    return []


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                            cwd=root, check=True, capture_output=True, text=True).stdout
    files = {f for f in listed.splitlines() if SOURCE.search(f) and (root / f).exists()}
    problems = []
    graph: dict[str, list[str]] = {}
    for name in sorted(files):
        includes = INCLUDE.findall((root / name).read_text())
        graph[name] = [i for i in includes if i in files]
        if name.startswith(("tests/", "tools/")):
            continue
        folder = folder_of(name)
        for include in includes:
            if include in files:
                to = folder_of(include)
                if to not in (folder, "base") and to not in ARROWS[folder]:
                    problems.append(f"{name} includes {include}: {folder} may not include {to}")
            for prefix, allowed in LIMITED.items():
                if include.startswith(prefix) and not any(name.startswith(f + "/") for f in allowed):
                    problems.append(f"{name} includes {include}: only {', '.join(allowed)} may")
    circle = circle_from(graph)
    if circle:
        problems.append("a circle of includes: " + " -> ".join(circle))
    for problem in problems:
        print(problem)
    if problems:
        print(f"check_includes: {len(problems)} includes against the arrows (docs/architecture.md)")
        return 1
    print(f"check_includes: {len(files)} files follow the arrows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
