"""The size and structure of the code: counts for a checkout, and what one cold run loads and calls.

`python -m benchmarks house` counts this checkout, `python -m benchmarks.house PATH` another one. Code lines exclude
blank lines, docstrings, imports and comments. A room is a folder or module at the top of the package; the core is
everything outside `extras/`, `cli/` and `library/`. The cold run is one test with `contains` and `g-eval`, with its
model and its judge on a loopback server.
"""

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.throughput import environment, fixed_latency_server

HERE = Path(__file__).parents[1]
FRONTS = {"cli", "library", "__init__", "__main__"}
SMALL_LINES = 3

EARLIER_HOMES = {
    "mcp": r"mcp_server\.py|cli/mcp_command\.py",
    "trust": r"trust/|labels/|report/label_sheet\.py"
    r"|cli/(agree|calibrate|estimate|juries|label|trust_options|probe)\.py",
    "web": r"web/|cli/serve\.py",
    "batches": r"(runs|gateway)/batch\w*\.py|cli/batches\.py",
    "workers": r"runs/(workers|executors|ray_cluster|shards|worker_template|shard_worker)\.py",
    "programs": r"scripting/|(assertions|providers)/programs/|engine/programs\.py",
    "promptfoo": r"suite/promptfoo/",
    "local": r"providers/local/|cli/models\.py",
    "traces": r"runs/(import_traces|trace_messages|trace_spans)\.py|cli/traces\.py",
    "pytest_plugin": r"pytest_plugin\.py",
}
"""Where the extras were before there was a folder for them, so that a checkout of then is counted in the same parts."""

SPECIAL_PARTS = {
    "judge/replies": r"judge/(replies(/.*)?|lenient_json)\.py",
    "providers/network": r"providers/network(/.*)?\.py",
    "editor, Python": r"(extras/)?web/editor/.*\.py|source/edit/.*\.py|suite/(draft\w*|\w+_forms|assertion_inputs)\.py",
    "editor, JavaScript": r"(extras/)?web/static/editor.*\.js",
    "nunjucks": r".*/(nunjucks\w*|js_members|js_values|js_text)\.py",
}


@dataclass
class Module:
    """A parsed Python file."""

    path: str
    text: str
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)

    @property
    def name(self) -> str:
        return "geval_cli." + self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def part(self) -> str:
        """Return the extra that it belongs to, else `fronts` or `core`."""
        if self.path.startswith("extras/"):
            return "extras/" + self.path.removesuffix(".py").split("/")[1]
        for extra, earlier in EARLIER_HOMES.items():
            if re.match(earlier, self.path):
                return f"extras/{extra}"
        return "fronts" if room_of(self.path) in FRONTS else "core"

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @cached_property
    def comments(self) -> int:
        return sum(token.type == tokenize.COMMENT for token in self._tokens)

    @cached_property
    def code_lines(self) -> int:
        silent = {
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        }
        lines: set[int] = set()
        for token in self._tokens:
            if token.type not in silent:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in self.nodes:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, ast.Import | ast.ImportFrom) or (
                is_text and isinstance(node.value.value, str)
            ):
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return len(lines)

    @cached_property
    def _tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    def imports(self, known: Iterable[str], *, at_load: bool) -> set[str]:
        """Return the geval modules that it imports; `at_load` excludes those imported inside functions."""
        names: set[str] = set()
        for node in top_level(self.tree.body) if at_load else self.nodes:
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.update({str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)})
        return {name for name in names if name in known and name != self.name}


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from top_level([*node.body, *node.orelse])


def room_of(path: str) -> str:
    return path.removesuffix(".py").split("/")[0]


def read_modules(checkout: Path) -> list[Module]:
    package = checkout / "geval_cli"
    paths = sorted(path for path in package.rglob("*.py") if "__pycache__" not in path.parts)
    return [Module(path.relative_to(package).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def print_sizes(modules: list[Module]) -> None:
    parts = defaultdict(list)
    for module in modules:
        parts[module.part].append(module)
    print(f"{'':<24} {'lines':>8} {'files':>6} {'code lines':>11} {'functions':>10}")
    ordered = sorted(parts.items(), key=lambda item: (item[0] != "core", item[0] != "fronts", item[0]))
    for name, some in [("whole", modules), *ordered]:
        lines = sum(module.text.count("\n") for module in some)
        code = sum(module.code_lines for module in some)
        functions = sum(len(module.functions) for module in some)
        print(f"{name:<24} {lines:8,} {len(some):6,} {code:11,} {functions:10,}")


def print_style(modules: list[Module]) -> None:
    functions = sum(len(module.functions) for module in modules)
    documented = sum(
        ast.get_docstring(function) is not None for module in modules for function in module.functions
    )
    lines = sum(module.text.count("\n") for module in modules)
    comments = sum(module.comments for module in modules)
    once = used_once(modules)
    small = [function for function in once if body_lines(function) <= SMALL_LINES]
    print(f"docstrings per function   {documented / functions:.2f}")
    print(f"comments per 100 lines    {100 * comments / lines:.1f}")
    print(
        f"private functions used once: {len(once):,} of {functions:,} functions ({len(once) / functions:.0%}), "
        f"{len(small):,} of them of {SMALL_LINES} lines or less"
    )


def used_once(modules: list[Module]) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the private functions that are referred to in only one place in the package."""
    elsewhere: Counter[str] = Counter()
    for module in modules:
        elsewhere.update(alias.name for alias in imported_names(module) if alias.name.startswith("_"))
    found = []
    for module in modules:
        uses = Counter(named for node in module.nodes if (named := name_used(node)).startswith("_"))
        found += [
            function
            for function in module.functions
            if function.name.startswith("_") and not function.name.startswith("__")
            if uses[function.name] + elsewhere[function.name] == 1
        ]
    return found


def imported_names(module: Module) -> Iterator[ast.alias]:
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom):
            yield from node.names


def name_used(node: ast.AST) -> str:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def print_imports(checkout: Path, modules: list[Module]) -> None:
    by_name = {module.name: module for module in modules}
    at_load = {module.name: module.imports(by_name, at_load=True) for module in modules}
    anywhere = {module.name: module.imports(by_name, at_load=False) for module in modules}
    levels = room_levels(checkout)
    upward = [
        f"{module.path} -> {room_of(by_name[other].path)}"
        for module in modules
        for other in anywhere[module.name]
        if is_upward(room_of(module.path), room_of(by_name[other].path), levels)
    ]
    print_list("upward imports", upward)
    print_list("circles of modules", [" <-> ".join(circle) for circle in circles(at_load)])
    ties = {
        module.path: {by_name[other].part for other in anywhere[module.name]} - {"core", "fronts"}
        for module in modules
        if module.part == "core"
    }
    print_list(
        "core files that import an extra",
        [f"{path}: {', '.join(sorted(extras))}" for path, extras in ties.items() if extras],
    )


def room_levels(checkout: Path) -> dict[str, int]:
    """Return the order of the rooms, as defined in the checkout's own architecture test."""
    test = ast.parse((checkout / "tests/test_architecture.py").read_text(encoding="utf-8"))
    for node in test.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS":
            floors = ast.literal_eval(node.value)
            return {room: level for level, rooms in enumerate(floors) for room in rooms}
    raise SystemExit("tests/test_architecture.py of that checkout has no ROOMS")


def is_upward(room: str, other: str, levels: Mapping[str, int]) -> bool:
    if room == other or room not in levels or other not in levels:
        return False
    return levels[other] > levels[room] or (levels[other] == levels[room] > 0)


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the import cycles: groups of modules that can all reach one another, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in imports[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            at = stack.index(name)
            group = sorted(stack[at:])
            del stack[at:]
            if len(group) > 1:
                found.append(group)

    for name in imports:
        if name not in order:
            visit(name)
    return found


def print_names(modules: list[Module]) -> None:
    homes = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module.path)
    print_list(
        "class names with two meanings",
        [f"{name}: {', '.join(paths)}" for name, paths in sorted(homes.items()) if len(paths) > 1],
    )


def print_special_parts(checkout: Path) -> None:
    package = checkout / "geval_cli"
    files = [path for path in package.rglob("*") if path.suffix in {".py", ".js"}]
    for name, wanted in SPECIAL_PARTS.items():
        some = [path for path in files if re.fullmatch(wanted, path.relative_to(package).as_posix())]
        lines = sum(path.read_text(encoding="utf-8").count("\n") for path in some)
        print(f"lines of {name:<20} {lines:6,} in {len(some)} files")


def print_list(what: str, found: list[str]) -> None:
    print(f"{what}: {len(found)}")
    for line in found:
        print(f"    {line}")


CONFIG = """\
prompts: ["Say something about {{ topic }}."]
providers: [openai:m]
tests:
  - vars: {topic: the sea}
    assert:
      - {type: contains, value: sea}
      - {type: g-eval, criteria: It is about the topic., provider: openai:judge}
"""
PROFILED = """\
import json, sys, threading
package, told = sys.argv[1:3]
del sys.argv[1:3]
calls, functions = {}, set()
def watch(frame, event, argument):
    if event == "call" and (code := frame.f_code).co_filename.startswith(package) and code.co_name[0] != "<":
        calls[code] = calls.get(code, 0) + 1
threading.setprofile(watch)
sys.setprofile(watch)
try:
    from geval_cli.cli.main import geval
    geval()
finally:
    sys.setprofile(None)
    files = {str(getattr(module, "__file__", None)) for module in [*sys.modules.values()]}
    told_files = sorted(name for name in files if name.startswith(package))
    with open(told, "w") as file:
        json.dump({"files": told_files, "functions": len(calls), "calls": sum(calls.values())}, file)
"""


def print_cold_run(checkout: Path, modules: list[Module]) -> None:
    """Count what a run of one test loads and calls; like Python, this counts class bodies as calls."""
    with tempfile.TemporaryDirectory() as name, fixed_latency_server() as url:
        folder = Path(name)
        (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
        told = folder / "told.json"
        package = f"{checkout / 'geval_cli'}{os.sep}"
        command = [sys.executable, "-c", PROFILED, package, str(told), "run", "config.yaml", "--home", "home"]
        env = {**environment(url), "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        if done.returncode or not told.exists():
            raise SystemExit(f"the cold run ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        counts = json.loads(told.read_text(encoding="utf-8"))
    print(
        f"cold run of one test: {len(counts['files'])} of {len(modules)} files, "
        f"{counts['functions']:,} functions, {counts['calls']:,} calls"
    )


def run(checkout: Path = HERE) -> None:
    modules = read_modules(checkout)
    print_sizes(modules)
    print_style(modules)
    print_imports(checkout, modules)
    print_names(modules)
    print_special_parts(checkout)
    print_cold_run(checkout, modules)


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve() if sys.argv[1:] else HERE)
