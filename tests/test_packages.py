"""geval as a wheel, and packages that add to it by entry points: built, installed and used as anyone would."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from packaging.requirements import Requirement
from support.geval_command import Finished, clean_environment, run_geval

from geval_cli.errors import UsageError
from geval_cli.extras.packages import check_parts
from geval_cli.extras.stand_ins.echo import EchoProvider
from geval_cli.version import __version__

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "plugin"
ECHO = "prompts: [hello]\nproviders: [echo]\ntests: [{assert: [{type: contains, value: hell}]}]\n"
PAGE = (ROOT / "docs" / "reference" / "plugins.md").read_text(encoding="utf-8")


def installed(source: Path, folder: Path) -> Path:
    """Build a wheel of a package and install it, alone, in a folder; return the folder."""
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"))
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    [wheel] = (folder / "dist").glob("*.whl")
    install = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet")
    subprocess.run([*install, "--target", str(folder / "site"), str(wheel)], check=True, capture_output=True)
    return folder / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(EXAMPLE, tmp_path_factory.mktemp("haiku"))


@pytest.fixture(autouse=True)
def config(tmp_path: Path) -> Path:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


BESIDE = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module('geval_cli', run_name='__main__')"
)


def geval(folder: Path, *words: str, packages: Path, is_loaded_anew: bool = False) -> Finished:
    """Run geval where these packages are installed too: by Python itself, or in a process that has loaded geval."""
    if is_loaded_anew:
        env = clean_environment(PYTHONPATH=str(packages))
        return run_geval(*words, cwd=folder, env=env, is_loaded_anew=True)
    return run_geval(str(packages), *words, cwd=folder, code=BESIDE)


class TestThePackageOfThePage:
    def test_its_assertion_provider_and_report_are_used(self, tmp_path: Path, site: Path) -> None:
        done = geval(
            tmp_path, "run", "config.yaml", "-o", "r.tap", "-o", "r.json", packages=site, is_loaded_anew=True
        )
        assert done.code == 0, done.stderr
        assert (tmp_path / "r.tap").read_text() == "TAP version 14\n1..1\nok 1 - haiku:basho\n"
        [result] = json.loads((tmp_path / "r.json").read_text())["results"]
        assert result["output"].startswith("An old silent pond")
        assert [item["reason"] for item in result["assertions"]] == ["the output has 3 lines; wanted: 3"]

    def test_its_command_is_called_and_is_in_the_help(self, tmp_path: Path, site: Path) -> None:
        said, listed = (
            geval(tmp_path, word, packages=site, is_loaded_anew=True).stdout for word in ("haiku", "--help")
        )
        assert said.splitlines()[0] == "An old silent pond"
        assert re.search(r"^  haiku +Print a haiku\.$", listed, re.M)

    def test_its_provider_is_in_the_table(self, tmp_path: Path, site: Path) -> None:
        table = geval(tmp_path, "models", "--providers", packages=site).stdout
        assert re.search(r"^ haiku: +haiku:\.\.\. ", table, re.M)

    def test_keys_of_its_assertion_are_checked_like_all_others(
        self, tmp_path: Path, site: Path, config: Path
    ) -> None:
        config.write_text(config.read_text().replace("value: 3", "value: three"))
        done = geval(tmp_path, "run", "config.yaml", packages=site)
        assert (done.code, "config.yaml:7:16" in done.stderr) == (2, True), done.stderr

    def test_settings_of_its_provider_are_checked_and_limits_are_its_own(
        self, tmp_path: Path, site: Path, config: Path
    ) -> None:
        text = config.read_text()
        config.write_text(
            text.replace("haiku:basho", "{id: haiku:basho, config: {timeout_s: soon, max_retry: 1}}")
        )
        done = geval(tmp_path, "validate", "config.yaml", packages=site)
        assert done.code == 2
        assert "`timeout_s` must be a number of seconds above 0" in done.stderr
        assert "`max_retry`" in done.stderr
        script = (
            "from pathlib import Path; from geval_haiku.provider import build\n"
            "from geval_cli.providers.base import ProviderSource; from geval_cli.specs.base import ProviderSpec\n"
            "spec = ProviderSpec(id='haiku:basho', config={'max_concurrency': 2})\n"
            "print(build(ProviderSource(spec, {}, Path())).limits.max_concurrency)"
        )
        env = clean_environment(PYTHONPATH=str(site))
        said = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, check=True)
        assert said.stdout.strip() == b"2"

    def test_its_assertion_is_tested_as_the_page_says(self, tmp_path: Path, site: Path) -> None:
        [test] = re.findall(r"`(assert check\(.+)`", PAGE)
        for code, ends_with in ((test, 0), (test.replace('"value": 2', '"value": 3'), 1)):
            done = subprocess.run(
                [sys.executable, "-c", f"from geval_cli import check\n{code}"],
                cwd=tmp_path,
                env=clean_environment(PYTHONPATH=str(site)),
                capture_output=True,
                check=False,
            )
            assert done.returncode == ends_with, done.stderr

    def test_a_slip_in_one_of_its_names_is_told(self, tmp_path: Path, site: Path, config: Path) -> None:
        names = (
            config.read_text().replace("haiku:basho", "haikoo:basho").replace("line-count", "not-line-cuont")
        )
        config.write_text(names)
        said = geval(tmp_path, "validate", "config.yaml", packages=site).stderr
        assert "did you mean `haiku:basho`?" in said
        assert "did you mean `not-line-count`?" in said

    def test_the_page_shows_the_example(self) -> None:
        points = tomllib.loads(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0])
        project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
        assert points["project"]["entry-points"] == project["entry-points"]
        [wanted] = project["dependencies"]
        assert f"`{wanted}`" in PAGE
        assert __version__ in Requirement(wanted).specifier
        [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        assert code in (EXAMPLE / "geval_haiku" / "__init__.py").read_text()

    def test_a_strangers_config_may_use_its_assertion_and_not_its_provider(
        self, tmp_path: Path, site: Path
    ) -> None:
        # In an environment of its own: what is only on PYTHONPATH is not there in the process of a stranger's config.
        venv.create(tmp_path / "env", symlinks=True)
        [packages] = (tmp_path / "env").glob("lib/python*/site-packages")
        shutil.copytree(site, packages, dirs_exist_ok=True)
        (packages / "geval.pth").write_text("\n".join([str(ROOT), *sys.path[1:]]), encoding="utf-8")
        done = subprocess.run(
            [tmp_path / "env" / "bin" / "python", "-m", "geval_cli", "run", "--untrusted", "config.yaml"],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "`haiku:basho` comes from an installed package and can reach any host" in done.stderr
        assert "1 problem; nothing was sent" in done.stderr


def test_without_the_package_each_name_is_unknown(tmp_path: Path) -> None:
    done = run_geval("run", "config.yaml", "-o", "r.tap", cwd=tmp_path)
    assert done.code == 2
    assert "`.tap` is not a known format" in done.stderr
    said = run_geval("validate", "config.yaml", cwd=tmp_path).stderr
    assert "unknown provider `haiku:basho`" in said
    assert "line-count" in said
    assert "there is no command `haiku`" in run_geval("haiku", cwd=tmp_path).stderr


def add_package(folder: Path, name: str, points: dict[str, dict[str, str]]) -> None:
    """Write what an installed package leaves beside its modules."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    sections = (
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in points.items()
    )
    (info / "entry_points.txt").write_text("\n".join(sections))


ODD: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a module that is not there": (
        [{"geval.assertions": {"line-count": "nowhere:X"}}],
        "`line-count` of the package odd0 cannot be loaded: ModuleNotFoundError",
    ),
    "no assertion": (
        [{"geval.assertions": {"line-count": "json:JSONDecoder"}}],
        "the plugin `line-count` is not an assertion",
    ),
    "two packages": (
        [{"geval.assertions": {"line-count": "a:b"}}, {"geval.assertions": {"line-count": "c:d"}}],
        "odd0 and odd1 both add `line-count` to geval",
    ),
    "a provider that cannot be built": (
        [{"geval.providers": {"haiku": "json"}, "geval.assertions": {"line-count": "json:JSONDecoder"}}],
        "the plugin `haiku` is not a provider",
    ),
    "a module that raises": (
        [{"geval.assertions": {"line-count": "raises:X"}}],
        "`line-count` of the package odd0 cannot be loaded: RuntimeError: no such luck",
    ),
    "a module that ends the process": (
        [{"geval.assertions": {"line-count": "leaves:X"}}],
        "`line-count` of the package odd0 cannot be loaded: SystemExit: 0",
    ),
    "a report format that is none": (
        [{"geval.reports": {"odd": "json:dumps"}}],
        "the plugin `odd` is not a report format",
    ),
    "a command that is none": ([{"geval.commands": {"odd": "json"}}], "the plugin `odd` is not a command"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_wrong_with_a_package_is_told(tmp_path: Path, case: str) -> None:
    packages, message = ODD[case]
    for number, points in enumerate(packages):
        add_package(tmp_path / "site", f"odd{number}", points)
    (tmp_path / "site" / "raises.py").write_text("raise RuntimeError('no such luck')\n")
    (tmp_path / "site" / "leaves.py").write_text("raise SystemExit(0)\n")
    is_command = "command" in case  # which commands there are, a process that has loaded geval has looked up
    words = ["odd"] if is_command else ["validate", "config.yaml"]
    if "report" in case:
        words = ["run", "config.yaml", "-o", "r.odd"]
    (tmp_path / "config.yaml").write_text(
        "prompts: [x]\nproviders: [haiku:x]\ntests: [{}]\n"
        if "provider" in case
        else "prompts: [x]\nproviders: [echo]\ntests: [{assert: [{type: line-count, value: 1}]}]\n"
    )
    done = geval(tmp_path, *words, packages=tmp_path / "site", is_loaded_anew=is_command)
    assert done.code == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


SLIPS = """
from typing import ClassVar
from geval_cli.assertions.base import Assertion, ModelGradedAssertion, Outcome
from geval_cli.errors import Problem
from geval_cli.extras.graded.asking import JudgeClient, Question
from geval_cli.judge.prompt import Block
from geval_cli.providers.base import ProviderIdentity, ProviderLimits
class Made:
    def __init__(self, path): boom("made")
class Heard:
    def __init__(self, path): pass
    def listen(self, event): boom("heard")
    def finish(self, report): pass
class Done(Heard):
    def listen(self, event): pass
    def finish(self, report): boom("done")
Made.listen, Made.finish = Heard.listen, Heard.finish
class Listed(Assertion):
    value_form = "texts"
    value: list[str]
    async def judge(self, subject, tools): return Outcome.of(self.value == ["a", "b"], "it is")
class Polite(ModelGradedAssertion):
    audience: str = "everyone"
    allowed_words: list[str] = []
    forbidden_words: list[str] = []
    prompt: ClassVar[str] = "Is it polite?\\n\\n$data_rule\\n\\n$blocks\\n"
    def criterion(self, test, tools): return [super().criterion(test, tools), self.prompt]
    async def judge(self, subject, tools):
        question = Question("polite", (Block("Output", subject.text),), prompt=self.prompt)
        return Outcome.of(True, await JudgeClient(self, subject, tools).ask(question, str))
class Placed(Assertion):
    text: str
    def check(self, context):
        problems = []
        context.render(self.text, self.place.child("text"), problems)
        if self.text == "odd":
            problems.append(Problem("this is odd", self.place.child("text")))
        return problems
class Judged(Assertion):
    async def judge(self, subject, tools): boom("judged")
class Says(Assertion):
    async def judge(self, subject, tools): return True
class Unfinished(Assertion):
    score: str
    async def judge(self, subject, tools): return Outcome.of(float(self.score), "it is")
class Graded(Unfinished):
    async def judge(self, subject, tools): return Outcome.graded(float(self.score), "it is", 0.5)
class Sync(Assertion):
    def judge(self, subject, tools): return Outcome.of(True, "it is")
class Odd:
    def __init__(self, source):
        self.id = self.label = source.id
        self.identity = ProviderIdentity("odd", source.name, "")
        self.limits = ProviderLimits()
        self.is_cacheable = False
        if hasattr(self, source.name): delattr(self, source.name)
    async def complete(self, request): return boom("sent") if self.id == "odd:sends" else "text"
    async def aclose(self):
        if self.id == "odd:closes": boom("closed")
class Blocking(Odd):
    def complete(self, request): return "text"
def check(source):
    if source.name == "checks": boom("checked")
def build(source): return (Blocking if source.name == "blocking" else Odd)(source)
class Checked(Assertion):
    words: set[str] = set()
    def check(self, context): boom("checked")
def boom(word): raise KeyError(word)
"""


@pytest.fixture
def slips(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    points = {
        "geval.assertions": {
            "judged": "slips:Judged",
            "checked": "slips:Checked",
            "listed": "slips:Listed",
            "polite": "slips:Polite",
            "gone": "nowhere:X",
            "placed": "slips:Placed",
            "says": "slips:Says",
            "sync": "slips:Sync",
            "unfinished": "slips:Unfinished",
            "graded": "slips:Graded",
        },
        "geval.providers": {"odd": "slips"},
        "geval.reports": {"made": "slips:Made", "heard": "slips:Heard", "done": "slips:Done"},
    }
    add_package(tmp_path / "site", "slippery", points)
    raised = getattr(request, "param", "KeyError(word)")
    (tmp_path / "site" / "slips.py").write_text(SLIPS.replace("KeyError(word)", raised))
    (tmp_path / "config.yaml").write_text(ECHO)
    return tmp_path / "site"


@pytest.mark.parametrize("slips", ["KeyError(word)", "SystemExit(word)"], indirect=True)
@pytest.mark.parametrize(("ending", "is_run"), [("made", False), ("heard", True), ("done", True)])
def test_a_bug_in_the_report_of_a_package_loses_nothing_else(
    tmp_path: Path, slips: Path, ending: str, is_run: bool
) -> None:
    done = geval(tmp_path, "run", "config.yaml", "-o", f"r.{ending}", "-o", "r.json", packages=slips)
    message = rf"error: cannot write r.{ending}: a bug in the package slippery: \w+: '?{ending}"
    assert re.search(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert done.code != 0
    assert ("1 passed" in done.stdout, (tmp_path / "r.json").is_file()) == (is_run, is_run)


@pytest.mark.parametrize("word", ["judged", "checked"])
def test_a_bug_of_a_package_is_not_called_one_of_geval(tmp_path: Path, slips: Path, word: str) -> None:
    (tmp_path / "config.yaml").write_text(ECHO.replace("{type: contains, value: hell}", f"{{type: {word}}}"))
    done = geval(tmp_path, "run", "config.yaml", packages=slips)
    said = " ".join((done.stdout + done.stderr).split())
    assert (done.code, "this is a bug in the package slippery; " in said) == (4, True), said
    assert "bug in geval" not in said


@pytest.mark.parametrize("slips", ["SystemExit(0)"], indirect=True)
@pytest.mark.parametrize(
    ("written", "replaced"),
    [
        ("{type: judged}", "{type: contains, value: hell}"),
        ("{type: assert-set, assert: [{type: judged}]}", "{type: contains, value: hell}"),
        ("{type: checked}", "{type: contains, value: hell}"),
        *((f"odd:{word}", "echo") for word in ("sends", "closes", "checks")),
    ],
)
def test_a_package_that_calls_exit_ends_no_command_with_success(
    tmp_path: Path, slips: Path, written: str, replaced: str
) -> None:
    (tmp_path / "config.yaml").write_text(ECHO.replace(replaced, written))
    done = geval(tmp_path, "run", "config.yaml", packages=slips)
    said = " ".join((done.stdout + done.stderr).split())
    assert (done.code, "this is a bug in the package slippery; " in said) == (4, True), said


@pytest.mark.parametrize("slips", ["SystemExit(0)", "KeyboardInterrupt"], indirect=True)
def test_check_returns_when_a_package_ends_its_thread(tmp_path: Path, slips: Path) -> None:
    code = """
from geval_cli import check
for given in ({"type": "judged"}, {"type": "assert-set", "assert": [{"type": "judged"}]},
              {"type": "llm-rubric", "value": "x", "provider": "odd:sends"}):
    try:
        check("a", given)
    except Exception:
        assert check("a", {"type": "equals", "value": "a"}).success
    else:
        raise AssertionError(given)
"""
    env = clean_environment(PYTHONPATH=str(slips))
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        (ECHO.replace("{type: contains, value: hell}", "{type: sync}"), 2, "`judge` cannot be awaited"),
        (ECHO.replace("echo", "odd:limits"), 2, "the plugin `odd` builds a provider without `limits`"),
        (ECHO.replace("echo", "odd:identity"), 2, "the plugin `odd` builds a provider without `identity`"),
        (ECHO.replace("echo", "odd:blocking"), 2, "a provider whose `complete` cannot be awaited"),
        (ECHO.replace("echo", "odd:x"), 4, "`complete` of Odd returned str; it must return ModelResponse"),
        (
            ECHO.replace("{type: contains, value: hell}", "{type: says}"),
            4,
            "`judge` of Says returned bool; it must return Outcome",
        ),
        *(
            (
                ECHO.replace("{type: contains, value: hell}", f"{{type: {kind}, score: {score}}}"),
                4,
                "the score of an assertion must be a finite number, not ",
            )
            for kind in ("unfinished", "not-unfinished", "graded")
            for score in ("nan", "inf", "-inf")
        ),
    ],
)
def test_what_a_package_leaves_out_or_returns_wrongly_is_its_own_bug(
    tmp_path: Path, slips: Path, config: str, code: int, message: str
) -> None:
    (tmp_path / "config.yaml").write_text(config)
    done = geval(tmp_path, "run", "config.yaml", packages=slips)
    said = " ".join((done.stdout + done.stderr).split())
    assert (done.code, message in said, "Traceback" in said) == (code, True, False), said
    assert ("this is a bug in the package slippery" in said) == (code == 4)
    assert "bug in geval" not in said


OUTCOMES = {
    "a score above 1": "Outcome(Status.PASSED, 85.0, '')",
    "a score below 0": "Outcome(Status.PASSED, -1.0, '')",
    "a true score": "Outcome(Status.PASSED, True, '')",
    "a score in words": "Outcome(Status.PASSED, '1.0', '')",
    "no status": "Outcome(None, 1.0, '')",
    "a status that is none": "Outcome('fine', 1.0, '')",
    "a reason in bytes": "Outcome(Status.PASSED, 1.0, b'')",
    "no detail": "Outcome(Status.PASSED, 1.0, '', detail=None)",
    "a threshold that nothing reaches": "Outcome.graded(0.5, '', math.nan)",
    "an end of the program": "sys.exit(0)",
    "an error beside all others": "fail(BaseException('panic'))",
    "a cancellation": "fail(asyncio.CancelledError())",
    "an error without words": "fail(Wordless())",
}
ANSWERS = {
    "no choices": "answer(choices=())",
    "choices of another kind": "answer(choices=('hell',))",
    "no text": "answer(choices=(Choice(None),))",
    "data in place of a text": "answer(choices=(Choice({'a': 1}),))",
    "a text in bytes": "answer(choices=(Choice(b'hell'),))",
    "a finish reason that is a number": "answer(choices=(Choice('hell', 5),))",
    "a finish reason of failures": "answer(choices=(Choice('hell', 'error'),))",
    "no usage": "answer(usage=None)",
    "fewer than no tokens": "answer(usage=Usage(input_tokens=-5))",
    "tokens that are no number": "answer(usage=Usage(input_tokens=math.nan))",
    "a cost below 0": "answer(usage=Usage(cost_usd=-1.0))",
    "a cost that is no number": "answer(usage=Usage(cost_usd=math.nan))",
    "a time in words": "answer(latency_ms='1')",
    **{name: OUTCOMES[name] for name in list(OUTCOMES)[-4:]},
}
ODD_RESULTS = """
import asyncio, math, sys
from typing import ClassVar
from geval_cli.assertions.base import Assertion, Outcome
from geval_cli.providers.base import ProviderIdentity, ProviderLimits
from geval_cli.records import Choice, ModelResponse, Status, Usage
class Wordless(Exception):
    def __str__(self): raise RuntimeError("no words")
class Text(str): pass
class Number(float): pass
def fail(error): raise error
def answer(**parts): return ModelResponse(**{"choices": (Choice("hell"),), **parts})
class Says(Assertion):
    code: str
    async def judge(self, subject, tools): return eval(self.code)
class Ends(Assertion):
    where: str
    def model_post_init(self, context):
        super().model_post_init(context)
        self.end("made")
    def end(self, place): self.where == place and sys.exit(0)
    def check(self, context): self.end("checked")
    def prefetch(self, subject, tools): self.end("prefetched"); return ()
    async def judge(self, subject, tools): return Outcome.of(False, "no")
class Rows(Assertion):
    code: str
    compares_outputs: ClassVar[bool] = True
    async def judge_row(self, members, tools): return eval(self.code)
class Report:
    place = ""
    def __init__(self, path): self.end("made")
    def end(self, place): self.place == place and sys.exit(0)
    def listen(self, event): self.end("heard")
    def finish(self, report): self.end("done")
made, heard, done = (type(place, (Report,), {"place": place}) for place in ("made", "heard", "done"))
class Places:
    def end(self, source, place): source.name == place and sys.exit(0)
    def check(self, source): self.end(source, "checked")
    def check_ready(self, source): self.end(source, "ready")
    def build(self, source):
        self.end(source, "built")
        provider = Provider(source)
        async def aclose():
            if source.name == "broken": raise ValueError("it is closed")
            self.end(source, "closed")
        provider.aclose = aclose
        return provider
places = Places()
class Provider:
    def __init__(self, source):
        self.id = self.label = source.id
        self.code, self.is_cacheable = source.spec.config.get("code", "answer()"), False
        self.identity, self.limits = ProviderIdentity("odd", self.code, ""), ProviderLimits()
    async def complete(self, request): return eval(self.code)
    async def aclose(self): pass
def build(source): return Provider(source)
"""


@pytest.fixture(scope="module")
def odd_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package whose assertion and provider do what a config says."""
    site = tmp_path_factory.mktemp("odd") / "site"
    points = {
        "geval.assertions": {"says": "oddity:Says", "ends": "oddity:Ends", "rows": "oddity:Rows"},
        "geval.providers": {"odd": "oddity", "places": "oddity:places"},
        "geval.reports": {name: f"oddity:{name}" for name in ("made", "heard", "done")},
    }
    add_package(site, "oddities", points)
    (site / "oddity.py").write_text(ODD_RESULTS)
    return site


def results_with(tmp_path: Path, site: Path, codes: Mapping[str, str], where: str) -> Mapping[str, Any]:
    """Run a test for each code, and one whose code does nothing odd; return the results by the name of the code."""
    tests: list[dict[str, Any]] = []
    providers: list[Any] = ["echo"]
    for name, code in {**codes, "nothing odd": "Outcome.of(True, '')"}.items():
        judged = [{"type": f"{where}says", "code": code}]
        tests.append({"description": name, "assert": judged})
    if where == "provider":
        providers = [{"id": f"odd:{name}", "config": {"code": code}} for name, code in codes.items()]
        tests = [{"assert": [{"type": "not-contains", "value": "heaven"}]}]
    suite = {"prompts": ["hello"], "providers": [*providers], "tests": tests}
    (tmp_path / "config.yaml").write_text(json.dumps(suite))
    done = geval(tmp_path, "run", "config.yaml", "-o", "r.json", packages=site)
    assert (done.code, "Traceback" in done.stderr) == (4, False), done.stderr
    stored = geval(tmp_path, "show", "--json", packages=site)
    assert stored.code == 0, stored.stderr
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    return {
        result["provider"]["id"].removeprefix("odd:")
        if where == "provider"
        else result["description"]: result
        for result in results
    }


@pytest.mark.parametrize("where", ["", "not-"])
def test_an_odd_outcome_of_a_package_is_an_error_that_costs_no_other_result(
    tmp_path: Path, odd_results: Path, where: str
) -> None:
    results = results_with(tmp_path, odd_results, OUTCOMES, where)
    assert results.pop("nothing odd")["status"] == ("failed" if where else "passed")
    assert {name: result["status"] for name, result in results.items()} == dict.fromkeys(OUTCOMES, "error")
    hints = {result["assertions"][0]["error"]["hint"].partition(";")[0] for result in results.values()}
    assert hints == {"this is a bug in the package oddities"}


def test_an_odd_answer_of_a_package_is_an_error_that_costs_no_other_result(
    tmp_path: Path, odd_results: Path
) -> None:
    codes = {**ANSWERS, "a text of its own class": "answer(choices=(Choice(Text('hell')),))"}
    results = results_with(tmp_path, odd_results, codes, "provider")
    assert results.pop("a text of its own class")["status"] == "passed"
    assert {name: result["status"] for name, result in results.items()} == dict.fromkeys(ANSWERS, "error")


ROWS = {
    "no list": "None",
    "fewer outcomes than outputs": "[]",
    "verdicts that are none": "[True for _ in members]",
    **{name: f"[{code} for _ in members]" for name, code in OUTCOMES.items()},
}


def test_odd_outcomes_of_compared_outputs_are_errors(tmp_path: Path, odd_results: Path) -> None:
    tests = [
        {"description": name, "assert": [{"type": "rows", "code": code}]}
        for name, code in {**ROWS, "nothing odd": "[Outcome.of(True, '') for _ in members]"}.items()
    ]
    suite = {"prompts": ["hello", "hi"], "providers": ["echo"], "tests": tests}
    (tmp_path / "config.yaml").write_text(json.dumps(suite))
    done = geval(tmp_path, "run", "config.yaml", "-o", "r.json", packages=odd_results)
    assert (done.code, "Traceback" in done.stderr) == (4, False), done.stderr
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    found = {(result["description"], result["status"]) for result in results}
    assert found == {*((name, "error") for name in ROWS), ("nothing odd", "passed")}


FAILS = "{type: contains, value: heaven}"


@pytest.mark.parametrize(
    ("assertion", "provider", "output"),
    [
        *(
            (f"{{type: ends, where: {place}}}", "echo", "r.json")
            for place in ("made", "checked", "prefetched")
        ),
        *((FAILS, f"places:{place}", "r.json") for place in ("checked", "ready", "built", "closed")),
        *((FAILS, "echo", f"r.{place}") for place in ("made", "heard", "done")),
    ],
)
def test_no_package_ends_a_run_with_success(
    tmp_path: Path, odd_results: Path, assertion: str, provider: str, output: str
) -> None:
    config = ECHO.replace("{type: contains, value: hell}", assertion).replace("echo", f"'{provider}'")
    (tmp_path / "config.yaml").write_text(config)
    done = geval(tmp_path, "run", "config.yaml", "-o", output, packages=odd_results)
    assert done.code == (4 if output == "r.json" else 3 if output == "r.made" else 1), done.stderr
    assert "a bug in the package oddities" in done.stderr
    assert ("1 failed" in done.stdout) == (done.code == 1)


def test_a_provider_that_cannot_be_closed_costs_no_result(tmp_path: Path, odd_results: Path) -> None:
    (tmp_path / "config.yaml").write_text(ECHO.replace("echo", "'places:broken'"))
    done = geval(tmp_path, "run", "config.yaml", packages=odd_results)
    assert (done.code, "1 passed" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("part", "value"),
    [("label", None), ("id", 5), ("identity", "odd"), ("limits", {"timeout_s": 1}), ("is_cacheable", "no")],
)
def test_a_provider_of_a_package_with_an_odd_part_is_refused(part: str, value: object) -> None:
    provider = EchoProvider()
    odd = SimpleNamespace(
        **{name: getattr(provider, name) for name in ("id", "label", "identity", "limits", "is_cacheable")},
        complete=provider.complete,
        aclose=provider.aclose,
    )
    check_parts(odd, "odd")
    setattr(odd, part, value)
    with pytest.raises(UsageError, match=f"builds a provider whose `{part}` is invalid"):
        check_parts(odd, "odd")


def test_the_texts_of_an_assertion_may_be_a_list(tmp_path: Path, slips: Path) -> None:
    """geval's own types take tuples."""
    (tmp_path / "b.txt").write_text("b")
    written = "{type: listed, value: [a, 'file://b.txt']}"
    (tmp_path / "config.yaml").write_text(ECHO.replace("{type: contains, value: hell}", written))
    done = geval(tmp_path, "run", "config.yaml", packages=slips)
    assert done.code == 0, done.stderr


def test_an_assertion_may_bring_its_own_judge_prompt(tmp_path: Path, slips: Path) -> None:
    """The judge here repeats what it is asked."""
    written = "{type: polite, provider: echo}"
    (tmp_path / "config.yaml").write_text(ECHO.replace("{type: contains, value: hell}", written))
    done = geval(tmp_path, "run", "config.yaml", "-o", "r.json", packages=slips)
    assert done.code == 0, done.stdout
    [result] = json.loads((tmp_path / "r.json").read_text())["results"]
    [asked] = [item["reason"] for item in result["assertions"]]
    assert asked.startswith("Is it polite?\n\n")
    assert "hello" in asked.removeprefix("Is it polite?")
    assert "$" not in asked


@pytest.mark.parametrize(
    ("written", "is_valid"),
    [
        ({"type": "polite", "threshold": 0.7}, True),
        ({"type": "not-checked", "words": ["a"]}, True),
        ({"type": "polite", "zeal": 1}, False),
        ({"type": "listed", "value": "a"}, False),
        ({"type": "gone"}, False),
        ({"type": "contains", "value": "a"}, True),
    ],
)
def test_the_schema_for_editors_has_the_assertions_of_packages(
    tmp_path: Path, slips: Path, written: dict[str, Any], is_valid: bool
) -> None:
    done = geval(tmp_path, "schema", packages=slips)
    assert done.code == 0, done.stderr
    suite = {"prompts": ["x"], "providers": ["echo"], "tests": [{"assert": [written]}]}
    assert Draft202012Validator(json.loads(done.stdout)).is_valid(suite) == is_valid


@pytest.mark.parametrize(
    ("text", "said"), [("{{ unknown }}", "undefined variable `unknown`"), ("odd", "error: this is odd")]
)
def test_a_problem_of_an_assertion_is_told_at_its_place(
    tmp_path: Path, slips: Path, text: str, said: str
) -> None:
    written = f"{{type: placed, text: '{text}'}}"
    (tmp_path / "config.yaml").write_text(ECHO.replace("{type: contains, value: hell}", written))
    done = geval(tmp_path, "validate", "config.yaml", packages=slips)
    assert done.code == 2, done.stderr
    assert said in done.stderr
    assert "config.yaml:3:40" in done.stderr


def test_an_unknown_key_of_a_package_is_not_sought_on_gevals_page(tmp_path: Path, slips: Path) -> None:
    written = "{type: polite, zeal: 1}"
    (tmp_path / "config.yaml").write_text(ECHO.replace("{type: contains, value: hell}", written))
    said = geval(tmp_path, "validate", "config.yaml", packages=slips).stderr
    assert "are in the output of `geval schema`" in said


def test_a_package_that_cannot_be_loaded_does_not_hide_the_help(tmp_path: Path) -> None:
    add_package(tmp_path / "site", "gone", {"geval.commands": {"gone": "nowhere:app", "none": "json:dumps"}})
    done = geval(tmp_path, "--help", packages=tmp_path / "site", is_loaded_anew=True)
    assert done.code == 0, done.stderr
    assert re.findall(r"^  (gone|none|run|serve) +(.*)$", done.stdout, re.M)[2:] == [
        ("gone", "(cannot be loaded)"),
        ("none", "(cannot be loaded)"),
    ]


def test_no_package_takes_a_name_of_gevals_own(tmp_path: Path) -> None:
    """Nothing of it is imported either: what geval knows by itself it never looks for elsewhere."""
    names = {"assertions": "contains", "providers": "echo", "reports": "json", "commands": "run"}
    add_package(
        tmp_path / "site", "greedy", {f"geval.{group}": {name: "leaves:X"} for group, name in names.items()}
    )
    (tmp_path / "site" / "leaves.py").write_text("raise SystemExit(9)\n")
    (tmp_path / "config.yaml").write_text(ECHO)
    words = ("run", "config.yaml", "-o", "r.json")
    done = geval(tmp_path, *words, packages=tmp_path / "site", is_loaded_anew=True)
    assert (done.code, (tmp_path / "r.json").is_file()) == (0, True), done.stderr


def test_a_package_in_the_current_folder_is_not_looked_at(tmp_path: Path) -> None:
    """With `python -m geval_cli` the folder of a stranger's checkout is on the path of modules."""
    add_package(tmp_path, "planted", {"geval.commands": {"planted": "planted:app"}})
    (tmp_path / "planted.py").write_text("open('done', 'w')\n")
    done = subprocess.run(
        [sys.executable, "-m", "geval_cli", "planted"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no command `planted`" in done.stderr
    assert not (tmp_path / "done").exists()


def requirements_of(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The installed packages that one declares, and those that they declare, without extras."""
    for line in distribution(name).requires or ():
        needed = Requirement(line)
        if needed.name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found[needed.name] = distribution(needed.name)
            requirements_of(needed.name, found)
    return found


def empty_environment(folder: Path) -> Path:
    """Make an environment that has the wheel, installed by pip, and of all else only what the wheel declares."""
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT))
    subprocess.run(build, check=True, capture_output=True)
    [wheel], [_] = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    venv.create(folder / "env", symlinks=True)
    [site] = (folder / "env").glob("lib/python*/site-packages")
    for package in requirements_of("geval-cli", {}).values():
        tops = {path.parts[0] for path in package.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(package.locate_file(top))))
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "env" / "bin" / "python"))
    subprocess.run(
        (*pip, "install", "--no-index", "--no-compile", "--quiet", str(wheel)),
        check=True,
        capture_output=True,
    )
    return folder / "env"


def test_the_wheel_in_an_empty_environment_writes_a_config_and_runs_it(tmp_path: Path) -> None:
    environment = empty_environment(tmp_path)
    env = {name: value for name, value in clean_environment().items() if name != "PYTHONPATH"}
    for words in (["init"], ["run", "-o", "r.html", "-o", "r.json"]):
        command = [environment / "bin" / "geval", *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["run"]["tool_version"] == __version__
    # What is in the package but no module (prompts, pages, styles) is in the wheel too.
    assert "<style" in (tmp_path / "r.html").read_text()
    [site] = environment.glob("lib/python*/site-packages")
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "geval_cli").rglob("*") if path.is_file()}
    there = {path.relative_to(site).as_posix() for path in (site / "geval_cli").rglob("*") if path.is_file()}
    assert {name for name in here ^ there if "__pycache__" not in name} == set()
