"""The config that `geval init` writes: small, explained line by line, and good to run without any key."""

STARTER_CONFIG = """\
# yaml-language-server: $schema=./gevalconfig.schema.json
# The line above lets editors check this file; `geval schema -o gevalconfig.schema.json` writes the schema it names.
# Run it with: geval run gevalconfig.yaml

description: Short answers for visitors of a museum

# What is sent. {{ question }} is a variable that every test fills in. Longer prompts: file://prompts/answer.txt
prompts:
  - "Answer in one sentence: {{ question }}"

# Who answers: a small model on this machine, or a service whose key stands in an environment variable.
providers:
  - local:smollm2
  # - openai:gpt-4.1-mini   # needs OPENAI_API_KEY

# What all tests have. The judge is a model too; a larger one judges better.
defaultTest:
  options:
    provider: local:smollm2
    # provider: openai:gpt-4.1
  assert:
    - type: g-eval
      metric: helpful
      criteria: The answer is correct, polite, and answers the question that was asked.
      threshold: 0.5 # on a scale from 0 to 1

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
