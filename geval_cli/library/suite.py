"""Suites made in Python: the same as in a config file, with functions as providers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CellType, ModuleType
from typing import TYPE_CHECKING, Any

from geval_cli.errors import Problem, UsageError
from geval_cli.library.records import NO_OUTPUT, TestCase, given_media, is_missing, written_media

if TYPE_CHECKING:
    from geval_cli.errors import Location
    from geval_cli.records import JsonValue
    from geval_cli.source.source_map import KeyPath
    from geval_cli.suite.load import BuiltSuite

_PROVIDER_KEYS = frozenset({"provider", "providers"})
_DEFAULT_PROMPT = "{{ input }}"
_MAX_DEPTH = 64
_CELL_DEPTH = 2
"""The maximum depth in a test at which NaN is a missing value of a table: a cell, or a variable made from one."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite made in Python. Its parts are written as in a config file, except as described here.

    Attributes:
        tests: mappings with the keys of a test, `TestCase`s, or a table of pandas, polars or pyarrow. An iterator is
            consumed at once. A missing value in a table counts as a missing key. Texts in tests are taken literally:
            `file://` and `{{ env.NAME }}` have no meaning in them.
        prompts: by default the input of each test if there are providers.
        providers: ids, mappings, and functions or coroutine functions: they get the prompt, and `{"vars": ...}` if they
            take two arguments, and return the answer or `{"output": ..., "cost": ...}`. Without providers, the tests
            bring their outputs.
        assertions: for every test, as mappings or as `GEval`s.
        default_test: defaults for every test.
        tools: the tools whose calls are answered, for all tests without their own `tools`: "file://tools.py", or a
            mapping.
        profiles: profiles of simulated users: each conversation with one is played once per profile.
        options: options of the run, as in a config: {"max_concurrency": 4}.
        gates: conditions on the whole run, for example "pass_rate >= 0.9".
        margin: the largest difference that does not matter when columns or runs are compared, for example 0.05.
        derived_metrics: numbers computed from the sums of metrics.
        description: shown with the run.
        name: the name under which stored runs are found.
        folder: the folder to which `file://` in prompts, assertions and tools is relative.

    Raises:
        UsageError: `tests` is not iterable. All other problems are found when the suite is run, before any request.
    """

    tests: Any = field(repr=False)
    prompts: Any = None
    providers: Any = ()
    assertions: Any = ()
    default_test: Mapping[str, Any] | None = None
    tools: Any = None
    profiles: Any = None
    options: Mapping[str, Any] | None = None
    gates: Sequence[Any] | Mapping[str, Any] | None = None
    margin: float | Mapping[str, float] | None = None
    derived_metrics: Sequence[Mapping[str, Any]] | None = None
    description: str | None = None
    name: str = "suite"
    folder: Path | str = "."

    def __post_init__(self) -> None:
        object.__setattr__(self, "tests", tuple(_rows(self.tests)))
        if not isinstance(self.name, str) or not self.name.strip():
            raise UsageError("`name` of a Suite must be a non-empty string")

    @property
    def path(self) -> Path:
        """Return the path that the config would have if it were a file."""
        return Path(self.folder) / self.name.replace("/", "-")


def _rows(tests: Any) -> Iterable[Any]:
    for name in ("to_dicts", "to_pylist"):  # of polars and of pyarrow, where a missing value is None
        if hasattr(tests, name) and hasattr(tests, "columns"):
            rows: list[dict[str, Any]] = getattr(tests, name)()
            return [{key: value for key, value in row.items() if value is not None} for row in rows]
    if hasattr(tests, "to_dict") and hasattr(tests, "columns"):
        found: Iterable[Any] = tests.to_dict("records")
        return found
    is_column = hasattr(tests, "to_list") and hasattr(tests, "dtype")
    if isinstance(tests, str | bytes | Mapping | TestCase) or not isinstance(tests, Iterable) or is_column:
        message = f"`tests` must be an iterable of tests, found {type(tests).__name__}"
        raise UsageError(message, hint="for example [{'input': '...', 'output': '...'}]")
    return tests


def build_suite(suite: Suite) -> "BuiltSuite":
    """Return the suite in the form of a config, with the functions that it names.

    Raises:
        UsageError: parts of the suite cannot be written in a config; names all of them.
    """
    from geval_cli.source.source_map import Document, Positions
    from geval_cli.suite.load import BuiltSuite

    builder = SuiteWriter()
    content = builder.content(suite)
    if builder.problems:
        raise UsageError.of("this suite cannot be run", builder.problems)
    document = Document(content, Positions("", values=_DataPositions(content)), may_use_env=False)
    return BuiltSuite(document, builder.functions, builder.parts)


class _DataPositions(Mapping["KeyPath", "Location"]):
    """The positions of all values in data made by a program."""

    def __init__(self, value: "JsonValue") -> None:
        self._value = value

    def __getitem__(self, path: "KeyPath") -> "Location":
        """Return the position of the value at `path`; raises KeyError if there is none."""
        from geval_cli.source.source_map import KeyLocation, format_key_path

        value = self._value
        for part in path:
            try:
                value = value[part]
            except (LookupError, TypeError):
                raise KeyError(path) from None
        return KeyLocation("", 0, 0, length=0, key_path=format_key_path(path))

    def __iter__(self) -> Iterator["KeyPath"]:
        return iter(((),))

    def __len__(self) -> int:
        return 1


class SuiteWriter:
    """A writer of a suite's parts as JSON, which collects functions and problems."""

    def __init__(self) -> None:
        self.functions: dict[str, Any] = {}
        self.parts: dict[str, str] = {}
        self.problems: list[Problem] = []

    def content(self, suite: Suite) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for name in ("description", "tools", "profiles", "options", "gates", "margin", "derived_metrics"):
            value = getattr(suite, name)
            if value is not None:
                content[name] = self.plain(value, (name,))
        providers = _listed(suite.providers)
        if providers:
            content["providers"] = [self.provider(item, ("providers", i)) for i, item in enumerate(providers)]
        if suite.prompts is not None or providers:
            prompts = _DEFAULT_PROMPT if suite.prompts is None else suite.prompts
            content["prompts"] = self.plain(prompts, ("prompts",))
        default = dict(suite.default_test or {})
        if _listed(suite.assertions):
            default["assert"] = [*_listed(default.get("assert")), *_listed(suite.assertions)]
        if default:
            content["defaultTest"] = self.plain(default, ("defaultTest",))
        content["tests"] = [self.row(item, ("tests", index)) for index, item in enumerate(suite.tests)]
        return content

    def row(self, test: Any, path: tuple[str | int, ...]) -> Any:
        if isinstance(test, TestCase):
            test = {name: value for name, value in _case_fields(test).items() if value is not None}
        return self.plain(test, path)

    def plain(self, value: Any, path: tuple[str | int, ...]) -> Any:
        """Return `value` as JSON data; adds a problem if that is not possible."""
        if value is None or isinstance(value, bool | int | str):
            return getattr(value, "value", value)  # the value of an Enum member
        if len(path) > _MAX_DEPTH:
            return self._refuse("this is nested too deeply", path)
        if isinstance(value, float):
            is_finite = value - value == 0
            return value if is_finite else self._refuse(f"JSON has no number {value}", path)
        if isinstance(value, Mapping):
            found = {}
            for key, item in value.items():
                here = (*path, str(key))
                if key in _PROVIDER_KEYS:
                    found[str(key)] = self.provider(item, here)
                elif not (path[0] == "tests" and len(path) <= _CELL_DEPTH + 1 and is_missing(item)):
                    found[str(key)] = self.plain(item, here)
            return found
        if isinstance(value, list | tuple | set | frozenset):
            return [self.plain(item, (*path, index)) for index, item in enumerate(value)]
        return self._object(value, path)

    def provider(self, value: Any, path: tuple[str | int, ...]) -> Any:
        """Return a provider as in a config; an object of the program is represented by an id."""
        from geval_cli.library.definition import client_model, is_judge, is_openai_client

        if isinstance(value, list) and path[-1] == "providers":
            return [self.provider(item, (*path, index)) for index, item in enumerate(value)]
        if is_openai_client(value) or (isinstance(value, tuple) and any(map(is_openai_client, value))):
            client = client_model(value, self.problems)
            return None if client is None else self._named(client, client.model)
        if is_judge(value):
            return self._named(value, value.label)
        if callable(value):
            return self._named(value, _name_of(value))
        if isinstance(value, Mapping) and callable(value.get("id")):
            named = self._named(value["id"], _name_of(value["id"]))
            return {**named, **self.plain({key: item for key, item in value.items() if key != "id"}, path)}
        return self.plain(value, path)

    def _object(self, value: Any, path: tuple[str | int, ...]) -> Any:
        from geval_cli.library.metric import GEval

        if isinstance(value, GEval):
            return self._metric(value, path)
        if hasattr(value, "tolist"):  # numpy's numbers and arrays
            return self.plain(value.tolist(), path)
        if hasattr(value, "isoformat"):
            return value.isoformat()
        if isinstance(value, Path):
            return str(value)
        what = "a function" if callable(value) else f"an object of the class {type(value).__name__}"
        hint = "name it by its file: file://tools.py:NAME" if callable(value) and "tools" in path else ""
        hint = "add `await`" if hasattr(value, "__await__") else hint
        return self._refuse(f"{what} is not allowed here", path, hint)

    def _metric(self, metric: Any, path: tuple[str | int, ...]) -> dict[str, Any]:
        from geval_cli.judge.metric import DEFAULT_SAMPLES, DEFAULT_THRESHOLD
        from geval_cli.library.definition import written_form

        # In a suite, each metric is rated by itself.
        written = {"type": "g-eval", "metric": metric.name, **written_form({**metric.arguments, "joint": ()})}
        # Leave defaults out, so that options of the run (`samples=5`) can set them.
        if metric.samples == DEFAULT_SAMPLES:
            del written["samples"]
            if metric.scoring == "auto":
                del written["scoring"]
        if metric.threshold == DEFAULT_THRESHOLD:
            written.pop("threshold", None)
        if metric.jury is not None:
            written["jury"] = metric.jury
        judges = [self._judge(model, path) for model in metric.judges or (metric.model,)]
        if judges != [None]:
            written["provider"] = judges if metric.judges else judges[0]
        return {key: self.plain(item, (*path, key)) for key, item in written.items()}

    def _judge(self, model: Any, path: tuple[str | int, ...]) -> Any:
        from geval_cli.library.definition import provider_form

        provider = None if model is None else self.provider(model, path)
        return (
            provider_form(model)
            if isinstance(model, str | tuple) and provider in (model, list(model))
            else provider
        )

    def _named(self, function: Any, name: str) -> dict[str, Any]:
        import hashlib

        provider_id, number = f"function:{name}", 1
        while provider_id in self.functions and self.functions[provider_id] is not function:
            number += 1
            provider_id = f"function:{name}#{number}"
        self.functions[provider_id] = function
        # A changed function is recognized by a hash of what it does, or of its name if it has no Python code.
        facts = b"\0".join(_facts(function, set())) or _name_of(function).encode()
        self.parts[provider_id] = hashlib.sha256(facts).hexdigest()
        return {"id": provider_id, "label": provider_id.removeprefix("function:")}

    def _refuse(self, message: str, path: tuple[str | int, ...], hint: str = "") -> None:
        from geval_cli.source.source_map import format_key_path

        self.problems.append(Problem(f"{format_key_path(path)}: {message}", None, hint))


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) and not _is_client_pair(value) else [value]


def _is_client_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) > 1
        and not isinstance(value[0], str | Mapping)
        and isinstance(value[1], str)
        and not callable(value[0])
    )


def _case_fields(case: TestCase) -> dict[str, Any]:
    from geval_cli.records import TEST_TEXTS

    return {
        **{name: getattr(case, name) for name in TEST_TEXTS},
        "output": None if case.actual_output is NO_OUTPUT else case.actual_output,
        "images": [written_media(item, "image") for item in given_media(case.images)] or None,
        "audio": [written_media(item, "audio") for item in given_media(case.audio)] or None,
        "turns": dict(case.turns) if isinstance(case.turns, Mapping) else _items(case.turns) or None,
        "trace": None if case.trace is None else _items(case.trace),
    }


def _items(value: Any) -> Any:
    """Return turns or steps as a list; anything else is left for the reader to refuse."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "".join(sign if sign.isalnum() or sign in "_.-" else "" for sign in name) or "function"


def _facts(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Yield what the answers of a function depend on, as far as that can be seen.

    That is its code and default values, the functions of its module and the texts that it uses, what `partial` gives
    it, and the function that a decorator wraps. Numbers that it uses are left out, since they may be counters.
    """
    if id(value) in seen:
        return
    seen.add(id(value))
    code = getattr(value, "__code__", None)
    if code is not None:
        yield from _instructions(code)
        yield from _plain([*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items()])
        cells = dict(zip(code.co_freevars, value.__closure__ or (), strict=False))
        used = {name: cell.cell_contents for name, cell in cells.items() if cell != _EMPTY_CELL}
        used |= {name: value.__globals__[name] for name in _names(code) if name in value.__globals__}
        for name, item in sorted(used.items()):
            is_own = name in cells or getattr(item, "__globals__", None) is value.__globals__
            yield from _plain([item] if isinstance(item, str) else [])
            yield from _facts(item, seen) if is_own and hasattr(item, "__code__") else ()
    else:
        called = vars(type(value)).get("__call__")
        yield from _facts(called, seen) if hasattr(called, "__code__") else ()
    if isinstance(value, partial):
        yield from _facts(value.func, seen)
        yield from _plain([*value.args, *sorted(value.keywords.items())])
    if hasattr(value, "__wrapped__"):
        yield from _facts(value.__wrapped__, seen)
    is_object = code is None and callable(value)
    owner = getattr(value, "__self__", value if is_object else None)  # of a method, or what is called itself
    texts = {} if isinstance(owner, type | ModuleType) else getattr(owner, "__dict__", {})
    yield from _plain([(name, item) for name, item in sorted(texts.items()) if isinstance(item, str)])


_EMPTY_CELL = CellType()


def _plain(values: Iterable[Any]) -> Iterator[bytes]:
    """Yield values whose text is the same in every process."""
    for value in values:
        if value is None or isinstance(value, str | int | float):
            yield repr(value).encode()
        elif isinstance(value, tuple | list):
            yield from _plain(value)


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from _names(constant)


def _instructions(code: Any) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from _instructions(constant)
        elif isinstance(constant, frozenset):  # its order differs between processes
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()
