"""Configs that try to escape from their folder: every place that names something, times every form of escape.

`build_world` makes a folder `out` with secrets and code; next to it, in `in`, each payload has its own folder.
`attempt` does in this process what `geval run` does with a config, and returns everything that anyone would see.
"""

import asyncio
import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from geval_cli.engine.runner import StopSignal
from geval_cli.errors import GevalError
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.problems import render_problems
from geval_cli.store.cache import ResponseCache
from geval_cli.store.runs import RunStore
from geval_cli.store.state import State

CANARY = "CANARY-4c1f9"
"""Stands in every secret file and in the environment, and nowhere else."""

ENV = {"OPENAI_API_KEY": "sk-none", "SECRET_NAME": CANARY, "PATH": "/usr/bin:/bin"}

TEXTS = (".txt", ".md", ".csv", ".json", ".jsonl", ".yaml", ".py", ".js", ".xlsx", ".pdf", ".png")

FORMS: Mapping[str, str] = {
    "dot-dot": "../../out/secret{ext}",
    "dot-dot in the middle": "sub/../../../out/secret{ext}",
    "absolute": "{out}/secret{ext}",
    "brace": "{{mine{ext},../../out/secret{ext}}}",
    "brace within a brace": "{{mine{ext},{{other,../../out/secret}}{ext}}}",
    "brace with an absolute name": "{{mine{ext},{out}/secret{ext}}}",
    "star": "../../out/sec*{ext}",
    "star and dot-dot": "su*/../../../out/secret{ext}",
    "double star": "../../**/secret{ext}",
    "bracket": "../../out/[s]ecret{ext}",
    "link": "link{ext}",
    "link that a star finds": "lin*{ext}",
    "linked folder": "door/secret{ext}",
    "star in a linked folder": "door/sec*{ext}",
    "star for a linked folder": "do*/secret{ext}",
}
"""Ways to lead to `out/secret.EXT` from a payload's folder, to be put behind `file://` or used as they are."""


@dataclass(frozen=True)
class Payload:
    """One config that attempts something.

    Attributes:
        files: further files in its folder, by name.
        links: names in its folder that become links to names in `out` after the config was checked.
        joined: configs in neighbouring folders that form one suite with it.
        files_alone: whether the attempt needs only a file, a program or a port, which Landlock can refuse.
        is_patient: whether it retries at its server, seconds later; the process behind Landlock skips it.
    """

    name: str
    config: Any
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, Any] = field(default_factory=dict)
    files_alone: bool = True
    is_patient: bool = False


@dataclass(frozen=True)
class World:
    """Where payloads live. `marker` is created by code that runs, `port` is open on this machine."""

    root: Path
    port: int

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def marker(self) -> Path:
        return self.root / "out" / "marker"

    def folder(self, number: int) -> Path:
        return self.root / "in" / f"p{number}"


def build_world(root: Path, port: int) -> World:
    """Create the secrets and the code outside."""
    world = World(root, port)
    world.out.mkdir(parents=True)
    code = f"open({str(world.marker)!r}, 'w').close()\n"
    tests = [
        {"vars": {"i": CANARY}, "assert": [{"type": "python", "value": code.strip()}]},
        {"vars": {"i": CANARY}, "assert": [{"type": "webhook", "value": f"http://127.0.0.1:{port}/"}]},
    ]
    python = f"{code}def f(*a, **k): return '{CANARY}'\nget_var = get_assert = get_transform = call_api = f\n"
    contents = {
        ".txt": CANARY,
        ".md": CANARY,
        ".csv": f"i,prompt\n{CANARY},{CANARY}\n",
        ".json": json.dumps({"text": CANARY, "tests": tests}),
        ".jsonl": "\n".join(map(json.dumps, tests)),
        ".yaml": json.dumps(tests),
        ".py": python,
        ".js": f"module.exports = () => '{CANARY}'",
    }
    for suffix, text in contents.items():
        (world.out / f"secret{suffix}").write_text(text, encoding="utf-8")
    (world.out / "secret.png").write_bytes(b"\x89PNG " + CANARY.encode())
    (world.out / "secret.pdf").write_bytes(_pdf(CANARY))
    (world.out / "secret.xlsx").write_bytes(_sheet(CANARY))
    (world.out / "secret.sh").write_text(
        f"#!/bin/sh\ntouch {world.marker}\necho {CANARY}\n", encoding="utf-8"
    )
    (world.out / "secret.sh").chmod(0o755)
    return world


def write(world: World, number: int, payload: Payload) -> Path:
    """Write the payload's folder with everything that it needs; return the path of its config."""
    folder = world.folder(number)
    (folder / "sub").mkdir(parents=True)
    (folder / "door").symlink_to(world.out, target_is_directory=True)
    config = json.dumps(payload.config)
    written = "".join((config, json.dumps(payload.joined), *payload.files.values()))
    for suffix in TEXTS:
        if suffix in written:
            (folder / f"link{suffix}").symlink_to(world.out / f"secret{suffix}")
            (folder / f"mine{suffix}").write_text("", encoding="utf-8")
    for name, text in payload.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, content in payload.joined.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    path = folder / "config.json"
    path.write_text(config, encoding="utf-8")
    return path


def attempt(world: World, number: int, payload: Payload, *, untrusted: bool, env: Mapping[str, str]) -> str:
    """Run the config from `write` and return everything that is visible: printed problems, events, results."""
    path = world.folder(number) / "config.json"
    joined = tuple(path.parent / name for name in payload.joined)
    seen: list[object] = []
    try:
        prepared = prepare(RunRequest(path, env, joined=joined, untrusted=untrusted))
        for name, target in payload.links.items():
            (path.parent / name).unlink()
            (path.parent / name).symlink_to(world.out / target)
        with RunStore.open_in_memory() as runs, ResponseCache.open_in_memory() as cache:
            asyncio.run(run_evaluation(prepared, State(runs, cache), listen=seen.append, stop=StopSignal()))
    except GevalError as error:
        seen += [error.message, error.hint, render_problems(getattr(error, "problems", ()))]
    return "\n".join(msgspec.json.encode(item, enc_hook=repr).decode() for item in seen)


def escapes(world: World, seen: str) -> list[str]:
    """Return the secrets that leaked and the code that ran; the marker is removed for the next payload."""
    found = [CANARY] if CANARY in seen else []
    if world.marker.exists():
        world.marker.unlink()
        found.append("code ran")
    return found


def payloads(world: World) -> Iterator[Payload]:
    """Yield the whole table of payloads."""
    for place, (suffix, build) in PLACES.items():
        for form, written in FORMS.items():
            reference = written.format(ext=suffix, out=world.out)
            config = build(reference)
            files = config.pop("files", {})
            yield Payload(
                f"{place}: {form}",
                config,
                {name: text.replace("REF", reference) for name, text in files.items()},
            )
    yield from _code(world)
    yield from _hosts(world)
    yield from _environment()
    yield from _templates()
    yield from _swaps()
    yield from _joined()


def _suite(**parts: Any) -> dict[str, Any]:
    base = {
        "dialect": "promptfoo",
        "prompts": ["Q {{i}}"],
        "providers": ["echo"],
        "tests": [{"vars": {"i": "x"}}],
    }
    return {**base, **parts}


def _own(**parts: Any) -> dict[str, Any]:
    base = {"prompts": [{"raw": "Q {{ i }}"}], "providers": ["echo"], "tests": [{"vars": {"i": "x"}}]}
    return {**base, **parts}


def _asserting(**assertion: Any) -> dict[str, Any]:
    return _suite(tests=[{"vars": {"i": "x"}, "assert": [assertion]}])


_QUICK: dict[str, Any] = {"id": "openai:m", "config": {"max_retries": 0}}

Build = Callable[[str], dict[str, Any]]

_PROMPTFOO_PLACES: tuple[tuple[str, str, Build], ...] = (
    ("prompts", ".txt", lambda r: _suite(prompts=[f"file://{r}"])),
    ("prompts, bare", ".md", lambda r: _suite(prompts=[r])),
    ("prompts, JSON", ".json", lambda r: _suite(prompts=[{"id": f"file://{r}", "label": "p"}])),
    ("prompts, CSV", ".csv", lambda r: _suite(prompts=f"file://{r}")),
    (
        "prompts, YAML within YAML",
        ".txt",
        lambda r: _suite(prompts=["file://p.yaml"], files={"p.yaml": '- "file://REF"'}),
    ),
    (
        "config of a prompt",
        ".txt",
        lambda r: _suite(prompts=[{"raw": "x", "config": {"stop": f"file://{r}"}}], providers=[_QUICK]),
    ),
    ("providers", ".yaml", lambda r: _suite(providers=[f"file://{r}"])),
    (
        "config of a provider",
        ".json",
        lambda r: _suite(
            providers=[{"id": "openai:m", "config": {"max_retries": 0, "tools": f"file://{r}"}}]
        ),
    ),
    ("tests, YAML", ".yaml", lambda r: _suite(tests=f"file://{r}")),
    ("tests, JSONL in a list", ".jsonl", lambda r: _suite(tests=[f"file://{r}"])),
    ("tests, CSV, bare", ".csv", lambda r: _suite(tests=r)),
    ("tests, XLSX", ".xlsx", lambda r: _suite(tests=[{"path": f"file://{r}"}])),
    ("tests, Python", ".py", lambda r: _suite(tests=f"file://{r}:f")),
    ("a variable", ".txt", lambda r: _suite(tests=[{"vars": {"i": f"file://{r}"}}])),
    ("a variable in a list", ".md", lambda r: _suite(tests=[{"vars": {"i": ["x", f"file://{r}"]}}])),
    ("a variable, PDF", ".pdf", lambda r: _suite(tests=[{"vars": {"i": f"file://{r}"}}])),
    ("a variable, YAML", ".yaml", lambda r: _suite(tests=[{"vars": {"i": f"file://{r}"}}])),
    ("a variable, Python", ".py", lambda r: _suite(tests=[{"vars": {"i": f"file://{r}"}}])),
    ("a variable, image", ".png", lambda r: _suite(tests=[{"vars": {"i": f"file://{r}"}}])),
    ("audio", ".wav", lambda r: _suite(tests=[{"vars": {"i": "x"}, "audio": f"file://{r}"}])),
    ("a cell", ".txt", lambda r: _suite(tests="file://t.csv", files={"t.csv": 'i\n"file://REF"\n'})),
    (
        "a line",
        ".txt",
        lambda r: _suite(tests="file://t.jsonl", files={"t.jsonl": '{"vars": {"i": "file://REF"}}\n'}),
    ),
    ("vars of a file", ".json", lambda r: _suite(tests=[{"vars": r}], prompts=["{{text}}"])),
    ("vars of files", ".json", lambda r: _suite(tests=[{"vars": [f"file://{r}"]}], prompts=["{{text}}"])),
    ("defaultTest", ".json", lambda r: _suite(defaultTest=f"file://{r}")),
    (
        "a variable of defaultTest",
        ".txt",
        lambda r: _suite(defaultTest={"vars": {"i": f"file://{r}"}}, tests=[{}]),
    ),
    ("scenarios", ".yaml", lambda r: _suite(scenarios=[{"config": f"file://{r}", "tests": [{}]}], tests=[])),
    (
        "tests of scenarios",
        ".yaml",
        lambda r: _suite(scenarios=[{"config": [{}], "tests": f"file://{r}"}], tests=[]),
    ),
    ("a file of scenarios", ".yaml", lambda r: _suite(scenarios=f"file://{r}", tests=[])),
    ("value of an assertion", ".txt", lambda r: _asserting(type="equals", value=f"file://{r}")),
    ("schema", ".json", lambda r: _asserting(type="is-json", value=f"file://{r}")),
    ("value, Python", ".py", lambda r: _asserting(type="python", value=f"file://{r}")),
    ("value, JavaScript", ".js", lambda r: _asserting(type="javascript", value=f"file://{r}")),
    ("rubric", ".txt", lambda r: _asserting(type="llm-rubric", value=f"file://{r}", provider="echo")),
    (
        "rubricPrompt",
        ".txt",
        lambda r: _asserting(type="llm-rubric", value="x", rubricPrompt=f"file://{r}", provider="echo"),
    ),
    (
        "transform",
        ".py",
        lambda r: _suite(tests=[{"vars": {"i": "x"}, "options": {"transform": f"file://{r}"}}]),
    ),
    ("filters", ".js", lambda r: _suite(nunjucksFilters={"f": r}, prompts=["{{ i | f }}"])),
    ("a reference", ".json", lambda r: _suite(tests=[{"vars": {"i": {"$ref": f"{r}#/text"}}}])),
    ("a reference with a scheme", ".json", lambda r: _suite(prompts={"$ref": f"file://{r}#/text"})),
)

_OWN_PLACES: tuple[tuple[str, str, Build], ...] = (
    ("own prompts", ".txt", lambda r: _own(prompts=[f"file://{r}"])),
    ("own tests, YAML", ".yaml", lambda r: _own(tests=f"file://{r}")),
    ("own tests, JSONL", ".jsonl", lambda r: _own(tests=f"file://{r}")),
    ("own variable", ".txt", lambda r: _own(tests=[{"vars": {"i": f"file://{r}"}}])),
    ("own variable, PDF", ".pdf", lambda r: _own(tests=[{"vars": {"i": f"file://{r}"}}])),
    (
        "own value",
        ".txt",
        lambda r: _own(
            tests=[{"output": "x", "assert": [{"type": "equals", "value": f"file://{r}"}]}], providers=None
        ),
    ),
    (
        "own schema",
        ".json",
        lambda r: _own(tests=[{"vars": {"i": "x"}, "assert": [{"type": "is-json", "value": f"file://{r}"}]}]),
    ),
    (
        "own code",
        ".py",
        lambda r: _own(tests=[{"vars": {"i": "x"}, "assert": [{"type": "python", "value": f"file://{r}"}]}]),
    ),
    ("own replies", ".yaml", lambda r: _own(providers=[f"scripted:{r}"])),
    (
        "own criteria",
        ".txt",
        lambda r: _own(
            tests=[
                {
                    "vars": {"i": "x"},
                    "assert": [{"type": "g-eval", "criteria": f"file://{r}", "provider": "echo"}],
                }
            ]
        ),
    ),
    (
        "own steps",
        ".txt",
        lambda r: _own(
            tests=[
                {
                    "vars": {"i": "x"},
                    "assert": [{"type": "g-eval", "evaluation_steps": [f"file://{r}"], "provider": "echo"}],
                }
            ]
        ),
    ),
)


PLACES: Mapping[str, tuple[str, Build]] = {
    place: (suffix, build) for place, suffix, build in (*_PROMPTFOO_PLACES, *_OWN_PLACES)
}
"""What a config names files for, with the kind of file and the config that names it."""


def sample(table: list[tuple[int, Payload]], one_in: int) -> list[tuple[int, Payload]]:
    """Return one in `one_in` forms for each place, each form equally often, and all payloads that are not such pairs.

    `table` is the numbered result of `payloads`, from 0.
    """
    pairs, forms = len(PLACES) * len(FORMS), len(FORMS)
    return [row for row in table if row[0] >= pairs or row[0] % forms % one_in == row[0] // forms % one_in]


def _code(world: World) -> Iterator[Payload]:
    script, program = f"exec:{world.out}/secret.sh", f"python:{world.out}/secret.py"
    touch = f"exec:touch {world.marker}"
    judged = {"type": "llm-rubric", "value": "x"}
    keyed = {"id": "openai:m", "config": {"api_key_command": ["touch", str(world.marker)]}}
    inline = f"open({str(world.marker)!r}, 'w').close() or True"
    rows: dict[str, dict[str, Any]] = {
        "provider exec": _suite(providers=[script]),
        "provider exec by PATH": _suite(providers=[touch]),
        "provider python": _suite(providers=[program]),
        "provider python of its own folder": _suite(providers=["python:own.py"]),
        "provider file": _suite(providers=["file://own.py:call_api"]),
        "provider javascript": _suite(providers=["javascript:own.js"]),
        "provider mapping": _suite(providers=[{touch: {}}]),
        "provider of a file": _suite(providers=["file://p.yaml"]),
        "targets": {**_suite(), "providers": None, "targets": [touch]},
        "prompt exec": _suite(prompts=[touch]),
        "prompt program": _suite(prompts=["own.py"]),
        "prompt function": _suite(prompts=["file://own.py:f"]),
        "provider of a test": _suite(tests=[{"vars": {"i": "x"}, "provider": touch}]),
        "judge of an assertion": _asserting(**judged, provider=touch),
        "judge in a mapping": _asserting(**judged, provider={"text": {"id": touch}}),
        "judge of a test": _suite(tests=[{"options": {"provider": touch}, "assert": [judged]}]),
        "judge of defaultTest": _suite(
            defaultTest={"options": {"provider": touch}}, tests=[{"assert": [judged]}]
        ),
        "judge of the options": _suite(commandLineOptions={"grader": touch}, tests=[{"assert": [judged]}]),
        "judge of evaluateOptions": _suite(evaluateOptions={"grader": touch}, tests=[{"assert": [judged]}]),
        "key of a provider": _suite(providers=[keyed]),
        "key of a judge": _asserting(**judged, provider=keyed),
        "key of a judge of the options": _suite(
            defaultTest={"options": {"provider": keyed}}, tests=[{"assert": [judged]}]
        ),
        "own key": _own(providers=[keyed]),
        "python": _asserting(type="python", value=inline),
        "not-python": _asserting(type="not-python", value=inline),
        "python in a set": _asserting(type="assert-set", **{"assert": [{"type": "python", "value": inline}]}),
        "python in defaultTest": _suite(defaultTest={"assert": [{"type": "python", "value": inline}]}),
        "python in a cell": _suite(tests="file://t.csv"),
        "python in a line": _suite(tests="file://t.jsonl"),
        "transform": _suite(tests=[{"vars": {"i": "x"}, "options": {"transform": "file://own.py"}}]),
        "transformVars": _suite(tests=[{"vars": {"i": "x"}, "options": {"transformVars": "file://own.py"}}]),
        "transform of an assertion": _asserting(type="equals", value="x", transform="file://own.py"),
        "transform of a provider": _suite(providers=[{"id": "echo", "transform": "file://own.py"}]),
        "contextTransform": _asserting(type="context-recall", value="x", contextTransform="file://own.py"),
        "scoring": _suite(
            tests=[{"assertScoringFunction": "file://own.py", "assert": [{"type": "equals", "value": "x"}]}]
        ),
        "scoring of defaultTest": _suite(defaultTest={"assertScoringFunction": "file://own.py:f"}),
        "variable": _suite(tests=[{"vars": {"i": "file://own.py"}}]),
        "tests": _suite(tests="file://own.py:f"),
        "own python": _own(tests=[{"vars": {"i": "x"}, "assert": [{"type": "python", "value": inline}]}]),
        "own exec": _own(providers=[touch]),
        "own judge": _own(
            tests=[{"vars": {"i": "x"}, "assert": [{"type": "g-eval", "criteria": "x", "provider": touch}]}]
        ),
    }
    files = {
        "own.py": (world.out / "secret.py").read_text(encoding="utf-8"),
        "own.js": f"module.exports = () => '{CANARY}'",
        "p.yaml": json.dumps([{"id": touch}]),
        "t.csv": f'i,__expected\nx,"python: {inline}"\n',
        "t.jsonl": json.dumps({"vars": {"i": "x"}, "assert": [{"type": "python", "value": inline}]}),
    }
    for name, config in rows.items():
        # JavaScript only has text from the config, and cannot access this machine.
        yield Payload(f"code: {name}", config, files, files_alone="javascript" not in name)


def _hosts(world: World) -> Iterator[Payload]:
    url, host = f"http://127.0.0.1:{world.port}", f"127.0.0.1:{world.port}"

    def model(**config: Any) -> dict[str, Any]:
        return _suite(providers=[{"id": "openai:m", "config": {"max_retries": 0, **config}}])

    judged = {"type": "llm-rubric", "value": "x"}
    once = {"max_retries": 0}
    elsewhere = {"id": "openai:m", "config": {"apiBaseUrl": url, "max_retries": 0}}
    rows: dict[str, dict[str, Any]] = {
        "http": _suite(providers=[url]),
        "http, asked once": _suite(providers=[{"id": url, "config": once}]),
        "http with a url": _suite(providers=[{"id": "http", "config": {"url": url, **once}}]),
        "https": _suite(providers=[{"id": f"https://{host}/", "config": once}]),
        "http of a template": _suite(
            providers=[{"id": "http://{{i}}/", "config": once}], tests=[{"vars": {"i": host}}]
        ),
        "base_url": model(base_url=url),
        "apiBaseUrl": model(apiBaseUrl=f"{url}/v1"),
        "apiHost": model(apiHost=host),
        "apiEndpoint": model(apiEndpoint=url),
        "base_url behind a user": model(base_url=f"http://api.openai.com@{host}/v1"),
        "base_url of the vendor, other port": model(base_url=f"https://api.openai.com:{world.port}/v1"),
        "env of a provider": _suite(providers=[{**_QUICK, "env": {"OPENAI_BASE_URL": url}}]),
        "env of one of two equal providers": _suite(
            providers=[{**_QUICK, "env": {"OPENAI_BASE_URL": url}}],
            tests=[{"vars": {"i": "x"}, "provider": _QUICK}, {"vars": {"i": "y"}}],
        ),
        "env of the config": _suite(env={"OPENAI_BASE_URL": url}, providers=[_QUICK]),
        "proxy of the config": _suite(env={"HTTPS_PROXY": url}, providers=[_QUICK]),
        "azure": _suite(providers=[{"id": "azure:m", "config": {"max_retries": 0, "apiHost": host}}]),
        "vertex": _suite(
            providers=[{"id": "vertex:gemini-x", "config": {"max_retries": 0, "apiHost": host}}]
        ),
        "vertex region": _suite(
            providers=[
                {
                    "id": "vertex:gemini-x",
                    "config": {"region": f"{host}/", "project_id": "p", "apiKey": "k", "max_retries": 0},
                }
            ]
        ),
        "webhook": _asserting(type="webhook", value=url),
        "not-webhook": _asserting(type="not-webhook", value=url),
        "webhook of a template": _suite(
            tests=[{"vars": {"i": url}, "assert": [{"type": "webhook", "value": "{{i}}"}]}]
        ),
        "webhook in a set": _asserting(type="assert-set", **{"assert": [{"type": "webhook", "value": url}]}),
        "judge of an assertion": _asserting(**judged, provider=elsewhere),
        "judge of the options": _suite(commandLineOptions={"grader": url}, tests=[{"assert": [judged]}]),
        "similar": _asserting(type="similar", value="x", provider={**elsewhere, "id": "openai:embedding:m"}),
        "moderation": _asserting(type="moderation", provider={**elsewhere, "id": "openai:moderation"}),
        "own base_url": _own(providers=[{"id": "openai:m", "config": {"base_url": url, "max_retries": 0}}]),
        "own webhook": _own(tests=[{"vars": {"i": "x"}, "assert": [{"type": "webhook", "value": url}]}]),
    }
    for name, config in rows.items():
        yield Payload(f"host: {name}", config, is_patient=name in ("http", "judge of the options"))
    headers = (
        "Host",
        "host",
        "HOST ",
        "X-Forwarded-Host",
        "X-Forwarded-For",
        "Forwarded",
        "Proxy-Authorization",
        "Proxy-Connection",
        ":authority",
        "Content-Length",
        "Transfer-Encoding",
        "Connection",
        "X-Original-URL",
        "X-Rewrite-URL",
        "Via",
        "X-A\r\nHost",
        "X A",
    )
    for name in headers:
        yield Payload(f"header: {name!r}", model(headers={name: host}))
    for name, value in (
        ("X-A", f"a\r\nHost: {host}"),
        ("Authorization", f"Bearer x\nHost: {host}"),
        ("X-A", "a\0b"),
    ):
        yield Payload(f"header value: {name} {value!r}", model(headers={name: value}))
    yield Payload("header from a key", model(apiKey=f"k\r\nHost: {host}"))
    yield Payload("header from an organization", model(organization=f"o\r\nHost: {host}"))


def _environment() -> Iterator[Payload]:
    written = (
        "{{env.SECRET_NAME}}",
        "{{ env['SECRET_NAME'] }}",
        '{{env["SECRET_NAME"] | default("x")}}',
        "{{-env.SECRET_NAME-}}",
        "{{ env | dump }}",
        "{{ process.env.SECRET_NAME }}",
    )
    for text in written:
        yield Payload(f"env in a prompt: {text}", _suite(prompts=[text]), files_alone=False)
        yield Payload(f"env in a variable: {text}", _suite(tests=[{"vars": {"i": text}}]), files_alone=False)
        yield Payload(
            f"env in a label: {text}", _suite(providers=[{"id": "echo", "label": text}]), files_alone=False
        )
        yield Payload(f"env in own prompts: {text}", _own(prompts=[{"raw": text}]), files_alone=False)
        in_line = _suite(tests="file://t.jsonl")
        line = json.dumps({"vars": {"i": text}})
        yield Payload(f"env in a line: {text}", in_line, {"t.jsonl": line}, files_alone=False)
    yield Payload(
        "env names a key",
        _suite(providers=[{"id": "openai:m", "config": {"apiKeyEnvar": "SECRET_NAME", "max_retries": 0}}]),
    )
    yield Payload(
        "env of env", _suite(env={"A": "{{env.SECRET_NAME}}"}, prompts=["{{env.A}}"]), files_alone=False
    )
    yield Payload("env file of the folder", _suite(prompts=["{{env.A}}"]), {".env": f"A={CANARY[:5]}"})


def _templates() -> Iterator[Payload]:
    texts = (
        "file://{{x}}",
        "file://{{ x }}",
        "file://../../out/{{y}}",
        "{{ 'file://' ~ x }}",
        "{% include '../../out/secret.txt' %}",
        "{% import '../../out/secret.txt' as s %}{{ s }}",
        "{% extends '../../out/secret.txt' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.environ }}",
        "{{ range.constructor('return process.env')() }}",
    )
    variables = {"x": "../../out/secret.txt", "y": "secret.txt"}
    for text in texts:
        yield Payload(f"template in a variable: {text}", _suite(tests=[{"vars": {**variables, "i": text}}]))
        yield Payload(f"template in a prompt: {text}", _suite(prompts=[text], tests=[{"vars": variables}]))
        value = {"type": "equals", "value": text}
        yield Payload(f"template in a value: {text}", _suite(tests=[{"vars": variables, "assert": [value]}]))
        yield Payload(
            f"template in own prompts: {text}", _own(prompts=[{"raw": text}], tests=[{"vars": variables}])
        )


def _swaps() -> Iterator[Payload]:
    """Yield files that become links to the secrets after the config was checked."""
    rows = json.dumps([{"vars": {"i": "x"}}])
    big = "\n".join(json.dumps({"vars": {"i": f"row {number} {'.' * 100}"}}) for number in range(4000))
    tests = {"t.yaml": rows, "t.csv": "i\nx\n", "t.jsonl": json.dumps({"vars": {"i": "x"}})}
    for name in tests:
        yield Payload(
            f"swap of tests: {name}", _suite(tests=f"file://{name}"), tests, {name: f"secret.{name[2:]}"}
        )
    yield Payload(
        "swap of many own tests", _own(tests="file://t.jsonl"), {"t.jsonl": big}, {"t.jsonl": "secret.jsonl"}
    )
    for name in ("v.txt", "v.yaml", "v.md"):
        config = _suite(tests=[{"vars": {"i": f"file://{name}"}}])
        yield Payload(f"swap of a variable: {name}", config, {name: "fine"}, {name: f"secret.{name[2:]}"})
    yield Payload(
        "swap of replies",
        _own(providers=["scripted:r.yaml"]),
        {"r.yaml": "default: x"},
        {"r.yaml": "secret.yaml"},
    )
    yield Payload(
        "swap of a folder's file",
        _suite(tests=[{"vars": {"i": "file://sub/*.txt"}}]),
        {"sub/a.txt": "x"},
        {"sub/a.txt": "secret.txt"},
    )


def _joined() -> Iterator[Payload]:
    other = {"dialect": "promptfoo", "prompts": ["file://../../../out/secret.txt"]}
    yield Payload("joined: prompts", _suite(), joined={"b/config.json": other})
    yield Payload(
        "joined: tests",
        _suite(),
        joined={"b/config.json": {"dialect": "promptfoo", "tests": "../../../out/secret.yaml"}},
    )
    yield Payload(
        "joined: code",
        _suite(),
        joined={"b/config.json": {"dialect": "promptfoo", "providers": ["exec:true"]}},
    )


def _pdf(text: str) -> bytes:
    stream = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    parts = (
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%b\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    )
    body, offsets = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, start=1):
        offsets.append(len(body))
        body += b"%d 0 obj%b endobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    start = len(body)
    return (
        body
        + b"xref\n0 6\n0000000000 65535 f \n"
        + table
        + b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % start
    )


def _sheet(text: str) -> bytes:
    with contextlib.suppress(ImportError):
        import openpyxl

        book = openpyxl.Workbook()
        for row in (["i"], [text]):
            book.active.append(row)
        held = io.BytesIO()
        book.save(held)
        return held.getvalue()
    return b""
