"""docs/ci.md and action.yml: the YAML is valid, every geval option in it exists, and the action's script runs."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.geval_command import clean_environment, run_geval
from support.geval_on_path import geval_on_path

from geval_cli.version import install_hint

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/ci.md").read_text("utf-8")
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
FORKED: list[str] = []
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def reports_of(folder: Path) -> Path:
    """The folder that the action's step named as its output."""
    (line,) = (folder.parent / f"{folder.name}-runner" / "output").read_text("utf-8").splitlines()
    return Path(line.removeprefix("reports="))


def script_of(name: str) -> str:
    step = next(step for step in ACTION["runs"]["steps"] if step.get("name") == name)
    script: str = step["run"]
    return script


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[Path]:
    """The folder of a `geval` that costs little."""
    with geval_on_path() as folder:
        FORKED.append(str(folder))
        yield folder
        FORKED.clear()


def environment(folder: Path, *, is_forked: bool = True, **inputs: str) -> dict[str, str]:
    path = os.pathsep.join(
        [*(FORKED if is_forked else []), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    loaded = {name: value for name, value in clean_environment().items() if name in {"LANG", "PYTHONUTF8"}}
    summary, temporary = folder / "step-summary.md", folder.parent / f"{folder.name}-runner"
    temporary.mkdir(exist_ok=True)
    return {
        "RUNNER_TEMP": str(temporary),
        "GITHUB_OUTPUT": str(temporary / "output"),
        "PATH": path,
        "HOME": str(folder),
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        **loaded,
        **inputs,
    }


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_examples_are_yaml(block: str) -> None:
    assert yaml.safe_load(block)


def test_the_example_uses_inputs_that_the_action_has() -> None:
    steps = yaml.safe_load(BLOCKS[0])["jobs"]["evals"]["steps"]

    assert set(steps[-1]["with"]) <= set(ACTION["inputs"])


def test_every_option_on_the_page_exists() -> None:
    help_text = "".join(run_geval(name, "--help", cwd=ROOT).stdout for name in ("run", "validate", "comment"))
    of_geval = re.sub(r"\bgh run .*", "", PAGE)  # GitHub's command has options of its own
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", of_geval))

    assert named
    assert {option for option in named if option not in help_text} == set()


@pytest.mark.parametrize(("expected", "code"), [("hello", 0), ("bye", 1)])
def test_the_actions_script_runs(tmp_path: Path, expected: str, code: int) -> None:
    config = tmp_path / "my evals.yaml"
    config.write_text(
        f"prompts: [hello]\nproviders: [echo]\ntests:\n  - assert:\n      - type: equals\n        value: {expected}\n"
    )
    (tmp_path / "evals.yaml").write_text(config.read_text())
    done = subprocess.run(
        ["bash", "-e", "-c", script_of("Run geval")],
        cwd=tmp_path,
        env=environment(tmp_path, CONFIG="evals.yaml", ARGS="--no-progress -j 2"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code, done.stderr
    written = {path.name for path in reports_of(tmp_path).iterdir()}
    assert written == {"results.json", "results.html", "results.junit.xml", "summary.md"}
    assert (tmp_path / "step-summary.md").read_text("utf-8").startswith("# geval: ")
    assert ("::error file=evals.yaml,line=5,col=9" in done.stdout) is (code == 1)


@pytest.mark.parametrize("has_results", [False, True])
def test_the_actions_comment_is_about_the_results_it_made_or_says_that_there_are_none(
    tmp_path: Path, *, has_results: bool
) -> None:
    config = "prompts: [hello]\nproviders: [echo]\ntests: [{assert: [{type: equals, value: hello}]}]\n"
    (tmp_path / "evals.yaml").write_text(config)
    if has_results:
        assert run_geval("run", "evals.yaml", "-o", "results.json", cwd=tmp_path).code == 0
    done = subprocess.run(
        ["bash", "-e", "-c", script_of("Comment on the pull request")],
        cwd=tmp_path,
        env=environment(
            tmp_path,
            REPORTS=".",
            CONFIG="evals.yaml",
            BASELINE="no.json",
            GITHUB_REPOSITORY="o/r",
            GITHUB_TOKEN="t",
        ),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "this workflow was not started by a pull request" in done.stderr


@pytest.mark.parametrize("file", ["action.yml", "templates/evals.yml"])
def test_comments_of_one_config_have_one_name_whatever_file_a_run_found_for_it(file: str) -> None:
    comments = re.findall(r"geval comment [^;\n]+", (ROOT / file).read_text("utf-8"))

    assert len(comments) == 2
    assert all(re.search(r' --name "\$(GEVAL_)?CONFIG" ', words) for words in comments), comments


def compare_script() -> str:
    """The step of the page that compares a pull request with the main branch."""
    steps = next(
        job["jobs"]["evals"]["steps"]
        for job in map(yaml.safe_load, BLOCKS)
        if "Compare with main" in str(job)
    )
    script: str = next(step["run"] for step in steps if step.get("name") == "Compare with main")
    return script


@pytest.mark.parametrize(
    ("bad", "gate", "code", "said"),
    [
        (0, "failures <= 0", 0, "identical"),
        (14, "tone.delta >= -0.02 vs baseline", 1, "worse"),
        (1, "tone.delta >= -0.02 vs baseline", 0, "undecided"),
        (0, "tone.delta >= -0.02", 2, ""),
    ],
)
def test_a_pull_request_is_compared_with_main(
    tmp_path: Path, bad: int, gate: str, code: int, said: str
) -> None:
    def run_script() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-e", "-c", compare_script()],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )

    def write_config(bad: int, gate: str) -> None:
        tests = [
            {
                "vars": {"question": number},
                "output": "bad" if number < bad else "good",
                "assert": [{"type": "equals", "value": "good", "metric": "tone"}],
            }
            for number in range(20)
        ]
        (tmp_path / "evals" / "gevalconfig.yaml").write_text(
            yaml.safe_dump({"tests": tests, "gates": [gate]})
        )

    (tmp_path / "evals").mkdir()
    write_config(0, "tone.delta >= -0.02 vs baseline")
    first = run_script()
    assert first.returncode == 0, first.stderr
    assert "is skipped: there is no baseline" in first.stderr
    runner = Path(environment(tmp_path)["RUNNER_TEMP"])
    (runner / "main").mkdir()
    (runner / "results.json").rename(runner / "main" / "results.json")
    (runner / "summary.md").unlink()
    (tmp_path / "step-summary.md").unlink()

    write_config(bad, gate)
    second = run_script()
    assert second.returncode == code, second.stderr
    summary = tmp_path / "step-summary.md"
    assert summary.exists() is (code != 2)
    if code != 2:
        page = summary.read_text("utf-8")
        assert "## Compared with the baseline" in page
        assert re.search(rf"tone` \| 100 % \| {100 - 5 * bad} % \|", page)
        assert said in page


def test_a_broken_config_keeps_its_exit_code_and_writes_no_summary(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text("promts: []\n")
    done = subprocess.run(
        ["bash", "-e", "-c", script_of("Run geval")],
        cwd=tmp_path,
        env=environment(tmp_path, CONFIG="evals.yaml", ARGS=""),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "did you mean `prompts`" in done.stderr
    assert not (tmp_path / "step-summary.md").exists()


def test_mistakes_in_a_config_show_on_its_lines_in_a_workflow(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text("promts: []\n")
    for command in ("run", "validate"):
        done = run_in_workflow(tmp_path, f"geval {command} evals.yaml")
        assert done.returncode == 2
        assert (
            "::error file=evals.yaml,line=1,col=1,title=geval%3A config::unknown key `promts`" in done.stderr
        )


def run_in_workflow(folder: Path, script: str, **inputs: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environment(folder, GITHUB_WORKSPACE=str(folder), **inputs),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("promts", "code"), [("promts", 2), ("prompts", 0)])
@pytest.mark.parametrize("form", ["concise", "github", "gitlab", "sarif", "json"])
def test_validate_writes_problems_for_programs(form: str, promts: str, code: int, tmp_path: Path) -> None:
    text = f"{promts}: [hello]\nproviders: [echo]\ntests: [{{assert: [{{type: equals, value: a}}]}}]\n"
    (tmp_path / "evals.yaml").write_text(text)
    words = ("validate", "evals.yaml", "--format", form, "-o", "all.sarif")
    done = run_geval(*words, cwd=tmp_path, env={**clean_environment(), **environment(tmp_path)})

    assert (done.code, done.stderr) == (code, "")
    assert ("unknown key `promts`" in done.stdout) is (code == 2)
    results = json.loads((tmp_path / "all.sarif").read_text("utf-8"))["runs"][0]["results"]
    assert bool(results) is (code == 2)


def test_a_file_of_problems_needs_an_ending_that_names_a_format(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text("prompts: [hello]\nproviders: [echo]\ntests: []\n")
    done = run_in_workflow(tmp_path, "geval validate evals.yaml -o problems.txt")

    assert done.returncode == 2
    assert "ends in one of: .codequality.json, .json, .sarif" in done.stderr


def test_the_gitlab_component_runs(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(
        "prompts: [hello]\nproviders: [echo]\ntests:\n  - assert: [{type: equals, value: bye}]\n"
    )
    head, body = yaml.safe_load_all((ROOT / "templates/evals.yml").read_text("utf-8"))
    inputs = {"config": "evals.yaml", "args": "-j 2 --no-progress"}
    (job,) = body.values()
    written = re.findall(r"\$\[\[ inputs\.(\w+) ]]", yaml.dump(body))
    assert set(written) == set(head["spec"]["inputs"])

    (tmp_path / "outside").mkdir()
    for name in ("geval-reports", ".geval"):  # answers and links that the merge request brought
        (tmp_path / name).symlink_to(tmp_path / "outside")
    for words in (("init", "--quiet"), ("add", "--force", ".geval")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    install, *run = job["script"]
    assert "geval comment geval-reports/results.json --name" in job["after_script"][-1]
    assert install == 'pip install --quiet "$GEVAL_SOURCE"'
    variables = {
        name: re.sub(r"\$\[\[ inputs\.(\w+) ]]", lambda found: inputs.get(found[1], ""), value)
        for name, value in job["variables"].items()
    }
    done = run_in_workflow(tmp_path, "\n".join(run), **variables)

    assert done.returncode == 1, done.stderr
    assert not list((tmp_path / "outside").iterdir())
    made = [*job["artifacts"]["paths"], *job["artifacts"]["reports"].values()]
    assert all((tmp_path / name).is_file() for name in made)
    (problem,) = json.loads((tmp_path / job["artifacts"]["reports"]["codequality"]).read_text("utf-8"))
    assert problem["location"] == {"path": "evals.yaml", "lines": {"begin": 4}}


def test_the_pre_commit_hook_takes_configs_and_stops_at_mistakes(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    names = ["gevalconfig.yaml", "evals/gevalconfig.prod.yml", "promptfooconfig.yaml"]
    assert all(re.search(hook["files"], name) for name in names)
    assert not re.search(hook["files"], "docs/mygevalconfig.yaml.md")
    assert f"id: {hook['id']}" in PAGE

    (tmp_path / "gevalconfig.yaml").write_text(
        "prompts: [hello]\nproviders: [echo]\ntests: [{assert: [{type: equals, value: hello}]}]\n"
    )
    (tmp_path / "promptfooconfig.yaml").write_text("prompts: [hello]\nproviders: 3\n")
    done = run_in_workflow(tmp_path, f"{hook['entry']} gevalconfig.yaml promptfooconfig.yaml")
    assert done.returncode == 2
    assert run_in_workflow(tmp_path, f"{hook['entry']} gevalconfig.yaml").returncode == 0


def test_inputs_reach_the_script_only_as_environment_values() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize(
    ("config", "name"), [("my evals.yaml", "my evals.yaml"), ("'my evals.yaml'", "my evals.yaml")]
)
def test_the_action_passes_words_with_blanks_as_they_are(tmp_path: Path, config: str, name: str) -> None:
    (tmp_path / name).write_text(
        "prompts: [hello]\nproviders: [echo]\ntests:\n"
        "  - description: two words\n    assert: [{type: equals, value: hello}]\n"
        "  - description: another\n    assert: [{type: equals, value: bye}]\n"
    )
    done = subprocess.run(
        ["bash", "-e", "-c", script_of("Run geval")],
        cwd=tmp_path,
        env=environment(tmp_path, CONFIG=config, ARGS="--no-progress --filter-pattern 'two words'"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (reports_of(tmp_path) / "results.json").is_file()


@pytest.mark.parametrize("is_valid", [True, False])
def test_a_pull_request_s_links_and_modules_do_nothing(tmp_path: Path, is_valid: bool) -> None:
    """Links where reports were once written, and files that Python would import from the current folder."""
    checkout, outside, home = tmp_path / "checkout", tmp_path / "outside", tmp_path / "home"
    for folder in (checkout, outside, home):
        folder.mkdir()
    (outside / "secret").write_text("not to be shown")
    for name in ("geval-reports", "reports", ".geval", "geval-state"):
        (checkout / name).symlink_to(outside)
    for name in ("summary.md", "results.json", "results.html", "results.junit.xml"):
        (checkout / name).symlink_to(outside / "secret")
    for name in ("pip", "os", "shlex", "geval_cli", "json", "typer"):
        (checkout / f"{name}.py").write_text("open('ran', 'w')\n")
    (checkout / "evals.yaml").write_text(
        "prompts: [hello]\nproviders: [echo]\ntests: [{assert: [{type: equals, value: hello}]}]\n"
        if is_valid
        else "promts: []\n"
    )
    words = {"CONFIG": "evals.yaml", "ARGS": "--untrusted --no-progress", "SOURCE": "--version", "EXTRAS": ""}
    env = environment(home, is_forked=False, **words)
    for name in ("Install geval", "Run geval"):
        done = subprocess.run(
            ["bash", "-e", "-c", script_of(name)],
            cwd=checkout,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == (0 if is_valid else 2), done.stderr
    assert not (checkout / "ran").exists()
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "not to be shown"
    summary = home / "step-summary.md"
    assert summary.exists() is is_valid
    assert not is_valid or "not to be shown" not in summary.read_text("utf-8")
    assert reports_of(home).parent == Path(env["RUNNER_TEMP"])
    uploaded = next(step for step in ACTION["runs"]["steps"] if "upload-artifact" in step.get("uses", ""))
    assert uploaded["with"]["path"] == "${{ steps.geval.outputs.reports }}"


def test_other_actions_are_pinned_by_commit() -> None:
    used = [step["uses"] for step in ACTION["runs"]["steps"] if "uses" in step]
    assert len(used) == 4
    assert all(re.fullmatch(r"actions/[a-z/-]+@[0-9a-f]{40}", name) for name in used)


def test_an_open_quote_fails_before_anything_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-e", "-c", script_of("Run geval")],
        cwd=tmp_path,
        env=environment(tmp_path, CONFIG="a.yaml", ARGS="--var 'x"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "No closing quotation" in done.stderr


def test_the_action_installs_its_own_folder() -> None:
    assert script_of("Install geval") == 'python -I -m pip install --quiet "$SOURCE${EXTRAS:+[$EXTRAS]}"'
    step = next(step for step in ACTION["runs"]["steps"] if step.get("name") == "Install geval")
    assert step["env"]["SOURCE"] == "${{ github.action_path }}"


def test_answers_are_cached_when_the_gate_is_red_and_matrices_do_not_collide() -> None:
    steps = {step["uses"].split("@")[0]: step for step in ACTION["runs"]["steps"] if "uses" in step}
    restore, save = steps["actions/cache/restore"], steps["actions/cache/save"]

    assert save["if"] == "always()"
    assert save["with"]["key"] == restore["with"]["key"]
    for text in (save["with"]["key"], steps["actions/upload-artifact"]["with"]["name"]):
        assert "${{ github.job }}-${{ strategy.job-index }}" in text


def places_that_name_geval_on_an_index() -> list[str]:
    """Every command that would install a package called geval from an index, where anybody may claim the name."""
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "action.yml", "Makefile")]
    pages += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.y*ml")]
    pages += [
        path for path in (ROOT / "geval_cli").rglob("*") if path.suffix in {".py", ".html", ".js", ".md"}
    ]
    wrong = re.compile(r"(?:pipx? (?:run|install)|uv add|uvx)(?:\s+-\S+)*\s+[\"'`]?geval\b[^\n]*")
    return [
        f"{page.relative_to(ROOT)}: {found.group()}"
        for page in pages
        for found in wrong.finditer(page.read_text("utf-8"))
        if "@ git+https://" not in found.group()
    ]


def test_nothing_is_installed_from_an_index_under_our_name() -> None:
    assert places_that_name_geval_on_an_index() == []


def test_every_hint_to_install_an_extra_names_one_that_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    sources = [path.read_text("utf-8") for path in (ROOT / "geval_cli").rglob("*.py")]
    named = {name for source in sources for name in re.findall(r"install_hint\(['\"]([a-z-]+)", source)}
    named |= {
        name
        for source in sources
        for name in re.findall(r"^    extra = ['\"]([a-z-]+)", source, re.MULTILINE)
    }

    assert named == {
        *(
            "aws",
            "azure",
            "compression",
            "gcp",
            "gepa",
            "js",
            "local",
            "mcp",
            "otel",
            "pdf",
            "server",
            "socks",
            "sql",
            "text-metrics",
        ),
        *("parquet", "ray", "remote", "trust", "workers", "xlsx"),
    }
    assert named <= set(extras)
    assert sum("pip install" in source for source in sources) == 1  # the helper's own


FROM_GIT = '{"url": "https://ci:secret@host.example/geval", "vcs_info": {"vcs": "git", "commit_id": "0a"}}'
WANTED = '"geval-cli[js] @ git+https://host.example/geval"'


@pytest.mark.parametrize(
    ("record", "prefix", "hint"),
    [
        ("", "/venv", 'in your clone of geval: pip install ".[js]"'),
        ("{", "/venv", 'in your clone of geval: pip install ".[js]"'),
        ("[]", "/venv", 'in your clone of geval: pip install ".[js]"'),
        ('{"url": "file:///x", "dir_info": {}}', "/venv", 'in your clone of geval: pip install ".[js]"'),
        (FROM_GIT, "/venv", f"as geval itself was: pip install {WANTED}"),
        (FROM_GIT, "/root/.local/share/pipx/venvs/geval-cli", f"as geval itself was: pipx install --force {WANTED}"),
        (FROM_GIT, "/root/.local/share/uv/tools/geval-cli", f"as geval itself was: uv tool install --force {WANTED}"),
        (FROM_GIT, "/root/.cache/uv/archive-v0/x", f"as geval itself was: uvx --from {WANTED} geval"),
    ],
)  # fmt: skip
def test_an_extra_is_installed_as_geval_itself_was(
    record: str, prefix: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "geval_cli-0.2.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: geval-cli\nVersion: 0.2.0\n", encoding="utf-8")
    (installed / "direct_url.json").write_text(record, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "prefix", prefix)
    assert install_hint("js") == hint
