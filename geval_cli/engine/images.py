"""Check the images of tests before anything is sent: how many, how large, and who can see them."""

from collections.abc import Iterable, Iterator, Sequence

from geval_cli.assertions.base import Assertion, JudgeDefaults, MergedTest, ModelGradedAssertion
from geval_cli.assertions.graded.judges import judges_of
from geval_cli.engine.plan import NO_PROVIDER
from geval_cli.engine.prompt import Rendered
from geval_cli.errors import Location, Problem
from geval_cli.providers.registry import sees_images
from geval_cli.records import Message
from geval_cli.source.images import (
    find_image,
    image_parts,
    images_of_messages,
    markers_in,
    shown_images,
    too_many,
)
from geval_cli.specs.base import PromptSpec, ProviderSpec

_WHO_CAN = "use a model from OpenAI, Anthropic or Google, or a server with OpenAI's chat API"
_INSTRUCTIONS = ("system", "developer")


def check_prompt_images(
    prompt: PromptSpec, rendered: Rendered, answerers: Iterable[ProviderSpec], where: str
) -> Iterator[Problem]:
    """Yield what is wrong with the images of a prompt as it would be sent to each of `answerers`."""
    messages, images = images_of_messages(rendered.messages)
    place = prompt.place.value()
    for message in messages:
        if message.role in _INSTRUCTIONS and any(map(find_image, markers_in(message.content))):
            hint = "put it into a user message"
            yield Problem(f"a {message.role} message has an image ({where})", place, hint)
    if not images:
        return
    problem = too_many(shown_images(messages, images))
    if problem:
        yield Problem(f"{problem} ({where})", place, "show fewer or smaller images")
    for provider in answerers:
        if provider.id != NO_PROVIDER.id and not sees_images(provider):
            named = _named(messages)
            yield _blind(provider, f"cannot see images, but {named} is in its prompt ({where})", None)


def check_judged_images(
    test: MergedTest, specs: Sequence[Assertion], defaults: JudgeDefaults, where: str
) -> Iterator[Problem]:
    """Yield what is wrong with the images that the judges of a test are shown."""
    shown = tuple(dict.fromkeys((*test.images, *markers_in(test.variables), *markers_in(test.output))))
    if not shown:
        return
    messages, images = images_of_messages((Message("user", "\n".join(shown)),))
    problem = too_many(shown_images(messages, images))
    if problem:
        yield Problem(f"{problem} ({where})", test.place.value(), "show fewer or smaller images")
    for spec in (item for group in specs for item in (group, *group.members)):
        if not isinstance(spec, ModelGradedAssertion) or "text" not in spec.judge_kinds:
            continue
        params = getattr(spec, "evaluation_params", None)
        if params is not None and not {"input", "images"} & set(params) and not any(markers_in(test.output)):
            continue
        for judge in judges_of(spec, test, defaults):
            if not sees_images(judge):
                yield _blind(
                    judge, f"judges but cannot see images, which the test has ({where})", spec.place.value()
                )


def _blind(provider: ProviderSpec, what: str, otherwise: Location | None) -> Problem:
    return Problem(f"{provider.public_id} {what}", provider.place.value() or otherwise, _WHO_CAN)


def _named(messages: Sequence[Message]) -> str:
    count = sum(len(image_parts(message)) for message in messages)
    return "an image" if count == 1 else f"{count} images"
