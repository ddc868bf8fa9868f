"""Prompts, variables and filters that programs make, in runs of the whole command."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.code_runs import rows_of
from support.geval_command import Finished, clean_environment, run_geval
from support.promptfoo import NAME, write_files

PROMPTS_PY = """
def text(context):
    return f"{context['vars']['x']} by {context['provider']['id']}, {{{{ y }}}}"

async def chat(context):
    return [{"role": "user", "content": context["config"]["greeting"] + context["vars"]["y"]}]

def broken(context):
    raise ValueError("out of ideas")

def nothing(context):
    return None
"""
TALK_PY = """
import json

def build(context):
    return json.dumps(context["vars"]["_conversation"])
"""
VARIABLE_PY = """
def get_var(name, prompt, others):
    return {"output": f"{name} of {others['x']} in {prompt}"}

def refuse(name, prompt, others):
    return {"error": "no such record"}

def bare(name, prompt, others):
    return "text"
"""
FILES = {
    "prompts.py": PROMPTS_PY,
    "talk.py": TALK_PY,
    "whole.py": "import json, sys\nprint('script', json.loads(sys.argv[1])['vars']['x'])\n",
    "prompt.js": "module.exports = ({vars, provider}) => `${vars.x} ${provider.id}`;\n"
    "module.exports.set = async (context) => ({prompt: [{role: 'user', content: 'set'}], config: context.config});\n",
    "v.py": VARIABLE_PY,
    "v.js": "module.exports = (name, prompt, others) => ({output: [name, others.x]});\n",
    "echo.sh": '#!/bin/sh\necho "$1: $2" | cut -c 1-30\n',
    "fail.sh": "#!/bin/sh\necho no luck >&2\nexit 3\n",
}


def run(folder: Path, content: Mapping[str, Any], *options: str) -> tuple[Finished, list[Any]]:
    write_files(folder, {**FILES, NAME: json.dumps({"providers": ["echo"], **content})})
    for script in ("echo.sh", "fail.sh"):
        (folder / script).chmod(0o755)
    env = clean_environment(OPENAI_API_KEY="sk-x")
    done = run_geval("run", "-o", "o.json", "--no-progress", *options, cwd=folder, env=env)
    output = folder / "o.json"
    return done, json.loads(output.read_text())["results"] if output.exists() else []


def test_programs_make_prompts_and_variables(tmp_path: Path) -> None:
    pytest.importorskip("_quickjs")
    prompts = [
        "file://prompts.py:text",
        {"id": "prompts.py:chat", "config": {"greeting": "Hi "}},
        "file://whole.py",
        "exec:./echo.sh Q",
        "prompt.js",
        "prompt.js:set",
        "{{ z }}",
    ]
    tests = [{"vars": {"x": "A", "y": "file://v.py", "z": "file://v.js"}}]
    done, rows = run(tmp_path, {"prompts": prompts, "tests": tests})
    assert done.code == 0, done.stdout + done.stderr
    assert [row["output"] for row in rows] == [
        "A by echo, y of A in ",
        '[\n  {\n    "role": "user",\n    "content": "Hi y of A in "\n  }\n]',
        "script A",
        'Q: {"vars": {"x": "A", "y": "y',
        "A echo",
        '[\n  {\n    "role": "user",\n    "content": "set"\n  }\n]',
        "z,A",
    ]
    assert rows[6]["vars"] == {"x": "A", "y": "y of A in {{ z }}", "z": ["z", "A"]}


def test_programs_that_fail_are_errors_of_their_cases_alone(tmp_path: Path) -> None:
    prompts = ["file://prompts.py:broken", "file://prompts.py:nothing", "exec:./fail.sh", "fine {{x}}"]
    tests = [
        {"vars": {"x": "A"}, "assert": [{"type": "contains", "value": "A"}]},
        {"vars": {"x": "B", "y": "file://v.py:refuse"}, "prompts": ["fine {{x}}"]},
        {"vars": {"x": "C", "y": "file://v.py:bare"}, "prompts": ["fine {{x}}"]},
    ]
    done, rows = run(tmp_path, {"prompts": prompts, "tests": tests})
    assert done.code == 3
    assert [row["status"] for row in rows] == ["error", "error", "error", "passed", "error", "error"]
    messages = [row["error"]["message"] for row in rows if row["error"]]
    assert "cannot make the prompt `" in messages[0]
    assert "prompts.py:broken`" in messages[0]
    assert "out of ideas" in messages[0]
    assert "returned nothing" in messages[1]
    assert "exited with status 3: no luck" in messages[2]
    assert messages[3] == "cannot make the variable `y`: no such record"
    assert "returned no `output`" in messages[4]


def test_what_programs_make_is_asked_without_prefix_and_suffix(tmp_path: Path) -> None:
    pytest.importorskip("_quickjs")
    made = [
        {"id": "prompts.py:chat", "config": {"greeting": "Hi "}},
        "prompt.js",
        "prompt.js:set",
        "file://whole.py",
        "exec:./echo.sh Q",
    ]
    tests = [{"vars": {"x": "A", "y": "B"}}]
    around = {"options": {"prefix": "Before ", "suffix": " {{x}}"}}
    _, without = run(tmp_path, {"prompts": [*made, "plain"], "tests": tests})
    done, rows = run(tmp_path, {"prompts": [*made, "plain"], "tests": tests, "defaultTest": around})
    assert done.code == 0, done.stderr
    assert [row["output"] for row in rows[:-1]] == [row["output"] for row in without[:-1]]
    assert rows[-1]["output"] == "Before plain A"


NO_PROMPTS = (
    ("5", "5", "returned the number 5"),
    ("0.5", "0.5", "returned the number 0.5"),
    ("10", "10n", "returned the number 10"),
    ("True", "true", "returned true"),
    ("None", "undefined", "returned nothing"),
    ("''", "({prompt: ''})", "returned nothing"),
    ("[]", "({prompt: []})", "returned nothing"),
    ("{}", "({prompt: undefined})", "returned nothing"),
    ("{'prompt': None}", "null", "returned nothing"),
)


def test_what_is_no_prompt_is_never_sent(tmp_path: Path) -> None:
    pytest.importorskip("_quickjs")
    python = [f"def f{i}(context):\n    return {row[0]}\n" for i, row in enumerate(NO_PROMPTS)]
    javascript = [f"module.exports.f{i} = () => {row[1]};\n" for i, row in enumerate(NO_PROMPTS)]
    write_files(tmp_path, {"odd.py": "".join(python), "odd.js": "".join(javascript)})
    prompts = [f"file://odd.{kind}:f{i}" for i in range(len(NO_PROMPTS)) for kind in ("py", "js")]
    done, rows = run(tmp_path, {"prompts": prompts, "tests": [{}]})
    assert done.code == 3
    said = [row["error"]["message"].partition("` ")[2] for row in rows]
    assert said == [row[2] for row in NO_PROMPTS for _ in range(2)]


def test_a_prompt_of_a_program_may_hold_a_number_or_be_data(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "odd.py": "def number(context):\n    return {'prompt': 5}\ndef data(context):\n    return {'a': 1}\n"
        },
    )
    done, rows = run(tmp_path, {"prompts": ["file://odd.py:number", "file://odd.py:data"], "tests": [{}]})
    assert done.code == 0, done.stderr
    assert [row["output"] for row in rows] == ["5", '{\n  "a": 1\n}']


def test_programs_of_prompts_see_the_transformed_variables(tmp_path: Path) -> None:
    pytest.importorskip("_quickjs")
    options = {"transformVars": "({...vars, x: vars.x + '!', y: vars.y.toUpperCase()})"}
    tests = [{"vars": {"x": "A", "y": "file://v.py"}, "options": options}]
    prompts = ["file://prompts.py:text", "prompt.js", "file://whole.py", "{{x}} {{y}}"]
    done, rows = run(tmp_path, {"prompts": prompts, "tests": tests})
    assert done.code == 0, done.stderr
    assert [row["output"].partition(" IN ")[0] for row in rows] == [
        "A! by echo, Y OF A",
        "A! echo",
        "script A!",
        "A! Y OF A",
    ]


def test_what_cannot_be_run_is_found_before_anything_is_sent(tmp_path: Path) -> None:
    prompts = ["file://prompts.py:absent", "exec:./missing.sh", "exec:'open", "plain"]
    tests = [{"vars": {"x": "file://v.py:absent"}}]
    done, rows = run(tmp_path, {"prompts": prompts, "tests": tests})
    assert done.code == 2
    assert rows == []
    assert done.stderr.count("has no function `absent`") == 2
    assert "the program `./missing.sh` was not found" in done.stderr
    assert "the command cannot be read" in done.stderr


def test_answers_in_a_prompt_that_a_program_made_are_never_rendered(tmp_path: Path) -> None:
    tests = [
        {
            "vars": {"x": "{% raw %}{{ 7 * 7 }}{% endraw %}"},
            "prompts": ["plain {{x}}"],
            "options": {"storeOutputAs": "y"},
        },
        {"vars": {"x": "B"}, "prompts": ["made"]},
    ]
    prompts = [{"id": "file://again.py:build", "label": "made"}, "plain {{x}}"]
    write_files(tmp_path, {"again.py": "def build(context):\n    return 'again: ' + context['vars']['y']\n"})
    done, rows = run(tmp_path, {"prompts": prompts, "tests": tests})
    assert done.code == 0, done.stderr
    assert [row["output"] for row in rows] == ["plain {{ 7 * 7 }}", "again: plain {{ 7 * 7 }}"]


def test_a_program_sees_former_turns(tmp_path: Path) -> None:
    tests = [{"vars": {"x": "A"}}, {"vars": {"x": "B"}}]
    done, rows = run(tmp_path, {"prompts": ["file://talk.py:build"], "tests": tests})
    assert done.code == 0, done.stderr
    turns = json.loads(rows[1]["output"])
    assert [turn["output"] for turn in turns] == ["[]"]


def test_filters_of_the_config_work_in_prompts_and_assertions(tmp_path: Path) -> None:
    pytest.importorskip("_quickjs")
    write_files(tmp_path, {"shout.js": "module.exports = (text, mark = '!') => text.toUpperCase() + mark;\n"})
    content = {
        "nunjucksFilters": {"shout": "./shout.js"},
        "prompts": ["{{ x | shout }} {{ x | shout('?') }}"],
        "tests": [{"vars": {"x": "hi"}, "assert": [{"type": "equals", "value": "{{ x | shout }} HI?"}]}],
    }
    done, rows = run(tmp_path, content)
    assert done.code == 0, done.stdout + done.stderr
    assert rows[0]["output"] == "HI! HI?"


def test_filters_that_cannot_be_run_are_found_before_anything_is_sent(tmp_path: Path) -> None:
    pytest.importorskip("_quickjs")
    write_files(
        tmp_path,
        {"bad.js": "module.exports = (", "throws.js": "module.exports = () => { throw Error('no') };"},
    )
    content = {
        "nunjucksFilters": {"bad": "bad.js", "throws": "throws.js"},
        "prompts": ["{{ x | bad }}", "{{ x | throws }}"],
        "tests": [{"vars": {"x": "hi"}}],
    }
    done, _ = run(tmp_path, content)
    assert done.code == 2
    assert "bad.js cannot be compiled" in done.stderr
    assert "the filter `throws` failed" in done.stderr


def test_a_stranger_s_filters_are_not_run_and_refused(tmp_path: Path) -> None:
    pytest.importorskip("_quickjs")
    write_files(tmp_path, {"loud.js": "module.exports = () => { throw Error('it ran') };"})
    content = {
        "nunjucksFilters": {"loud": "loud.js"},
        "prompts": ["{{ x | loud }}"],
        "tests": [{"vars": {"x": "hi"}}],
    }
    done, _ = run(tmp_path, content, "--untrusted")
    assert done.code == 2
    assert "`nunjucksFilters.loud` runs code, which --untrusted does not allow" in done.stderr
    assert "it ran" not in done.stderr


SEEN_PY = "import json\ndef call_api(prompt, options, context):\n    return json.dumps([prompt, options, context])\n"
SEEN_JS = """
module.exports = class {
  constructor(options) { this.options = options; }
  async callApi(prompt, context) { return JSON.stringify([prompt, this.options, context]); }
};
"""
OWN_OPTIONS: dict[str, Any] = {
    "model": "m-2", "messages": [], "n": 3, "stream": False, "delay": 3000, "price": {"input": 1, "output": 2},
    "max_retries": 0, "maxConcurrency": 2, "timeoutS": 60, "nothing": None,
}  # fmt: skip
PROMPT_PY = "import json, sys\nprint(json.dumps([sys.argv[1], *map(json.loads, sys.argv[2:])]))\n"


@pytest.mark.parametrize("program", ["exec", "python:seen.py", "file://seen.py", "file://seen.js"])
def test_programs_get_the_prompt_as_it_is_written_their_options_and_where_it_comes_from(
    tmp_path: Path, program: str
) -> None:
    write_files(tmp_path, {"seen.py": SEEN_PY, "seen.js": SEEN_JS, "arguments.py": PROMPT_PY})
    command = f"exec:{shlex.quote(sys.executable)} arguments.py"
    config = {"a": 1, "t": "{{x}}", **OWN_OPTIONS}
    provider = {"id": command if program == "exec" else program, "delay": 1, "config": config}
    chat = '[{"role": "user", "content": "Hi {{x}}"}]'
    content = {
        "dialect": "promptfoo",
        "providers": [provider],
        "prompts": [{"raw": chat, "label": "talk", "config": {"temperature": 0.5}}],
        "tests": [
            {
                "vars": {"x": "Ann", "y": "for {{x}}"},
                "metadata": {"m": 1},
                "options": {"storeOutputAs": "said"},
            },
            {"vars": {"x": "Bob"}, "assert": [{"type": "contains", "value": "Bob"}]},
        ],
    }
    first, second = (json.loads(row["output"]) for row in rows_of(tmp_path, content))
    prompt, options, context = first
    assert prompt == '[\n  {\n    "role": "user",\n    "content": "Hi Ann"\n  }\n]'
    assert options["config"] == {**config, "basePath": str(tmp_path)}
    assert options["id"]
    assert context["vars"] == {"x": "Ann", "y": "for Ann"}
    assert context["prompt"] == {
        "raw": chat,
        "label": "talk",
        "config": {"temperature": 0.5},
        "template": chat,
    }
    assert context["test"]["vars"] == {"x": "Ann", "y": "for {{x}}"}
    assert context["test"]["metadata"] == {"m": 1}
    assert (context["testIdx"], context["promptIdx"], context["repeatIndex"]) == (0, 0, 0)
    assert second[2]["vars"]["said"].startswith("[")
    assert second[2]["test"]["assert"] == [{"type": "contains", "value": "Bob"}]


def test_a_command_that_says_where_its_prompt_goes_gets_nothing_else(tmp_path: Path) -> None:
    write_files(
        tmp_path, {"show.py": "import sys\nprint('\\n \\x1b[31m' + '|'.join(sys.argv[1:]) + '\\x1b[0m ')\n"}
    )
    command = f"exec:{shlex.quote(sys.executable)} show.py {{{{ vars.x }}}} {{{{ prompt }}}} end"
    content = {
        "dialect": "promptfoo",
        "providers": [command],
        "prompts": ["Hi"],
        "tests": [{"vars": {"x": "a b"}, "assert": [{"type": "equals", "value": "a b|Hi|end"}]}],
    }
    (row,) = rows_of(tmp_path, content)
    assert (row["status"], row["output"]) == ("passed", "a b|Hi|end")


@pytest.mark.parametrize(
    ("answered", "output"),
    [
        ({"a": [1, 2.0], "b": None}, {"a": [1, 2], "b": None}),
        ([{"a": 1}], [{"a": 1}]),
        (5, 5),
        (False, False),
        ('{"a": 1}', '{"a": 1}'),
        ("text", "text"),
    ],
)
@pytest.mark.parametrize("program", ["python:p.py", "file://p.js"])
def test_data_that_programs_answer_with_is_data(
    tmp_path: Path, program: str, answered: object, output: object
) -> None:
    text = json.dumps(json.dumps(answered))
    write_files(
        tmp_path,
        {
            "p.py": f"import json\ndef call_api(*given):\n    return {{'output': json.loads({text})}}\n",
            "p.js": f"module.exports = {{ callApi: async () => ({{ output: JSON.parse({text}) }}) }};",
        },
    )
    check = {
        "type": "javascript",
        "value": f"JSON.stringify(output) === JSON.stringify({json.dumps(output)})",
    }
    content = {
        "dialect": "promptfoo",
        "providers": [program],
        "prompts": ["x"],
        "tests": [{"assert": [check]}],
    }
    (row,) = rows_of(tmp_path, content)
    assert (row["status"], row["output"]) == ("passed", output)
    (own,) = rows_of(tmp_path, {**content, "dialect": "geval"})
    assert isinstance(own["output"], str)
    assert own["output"] == answered or json.loads(own["output"]) == answered
