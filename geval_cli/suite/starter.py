"""The config that `geval init` writes: small, explained line by line, and good to run where it is written."""

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


def starter_config(model: str | None) -> str:
    """Return the config with `model` as the one that answers and judges; None: one that runs without any."""
    text = _TEMPLATE if model is not None else _without_expectations(_TEMPLATE)
    comment = _OFFLINE_COMMENT if model is None else "any model works here, and you can list several."
    judge = "" if model is None else " The judge is a model too; a larger one judges better."
    default = _UNJUDGED if model is None else _JUDGED.replace("JUDGE", model)
    text = text.replace("WHO_COMMENT", comment).replace("ANSWERER", model or "echo")
    return text.replace("JUDGE_COMMENT", judge).replace("DEFAULT_TEST\n", default)


def _without_expectations(text: str) -> str:
    return text.replace("value: leonardo", "value: mona lisa # `leonardo`, once a model answers")
