"""Check the images and audio of tests before anything is sent: how much of it, and who can see and hear it."""

from collections.abc import Iterable, Iterator, Sequence

from geval_cli.assertions.base import Assertion, JudgeDefaults, MergedTest, ModelGradedAssertion
from geval_cli.assertions.graded.judges import judges_of
from geval_cli.engine.plan import NO_PROVIDER
from geval_cli.engine.prompt import Rendered
from geval_cli.errors import Location, Problem, Severity
from geval_cli.providers.options import ENDPOINT_KEYS, own_settings
from geval_cli.providers.registry import hears_audio, sees_images
from geval_cli.records import Message
from geval_cli.source.media import (
    FEWER_HINT,
    MEDIA_FIELDS,
    Media,
    called,
    counted,
    find_media,
    markers_in,
    media_of_messages,
    shown_media,
    too_many,
)
from geval_cli.specs.base import PromptSpec, ProviderSpec

_WHO_SEES = "use a model from OpenAI, Anthropic or Google, or a server with OpenAI's chat API"
_WHO_HEARS = "use Gemini (`google:`, `vertex:`), or a model with OpenAI's chat API such as openai:gpt-audio"
_INSTRUCTIONS = ("system", "developer")


def check_prompt_media(
    prompt: PromptSpec, rendered: Rendered, answerers: Iterable[ProviderSpec], where: str
) -> Iterator[Problem]:
    """Yield what is wrong with the images and audio of a prompt as it would be sent to each of `answerers`."""
    messages, found = media_of_messages(rendered.messages)
    for message in messages:
        held = list(filter(None, map(find_media, markers_in(message.content))))
        if message.role in _INSTRUCTIONS and held:
            hint = "put it into a user message"
            said = f"a {message.role} message has {counted(held[:1])} ({where})"
            yield Problem(said, prompt.place.value(), hint)
    if not found:
        return
    shown = shown_media(messages, found)
    problem = too_many(shown)
    if problem:
        yield Problem(f"{problem} ({where})", prompt.place.value(), FEWER_HINT)
    for provider in answerers:
        if provider.id == NO_PROVIDER.id:
            continue
        for lack, kind, hint in _lacks(provider, shown):
            named = counted([item for item in shown if item.kind == kind])
            said = f"{provider.public_id} {lack}, but {named} is in its prompt ({where})"
            yield Problem(said, provider.place.value(), hint)
        yield from _doubtful(provider, shown, provider.place.value())


def check_judged_media(
    test: MergedTest, specs: Sequence[Assertion], defaults: JudgeDefaults, where: str
) -> Iterator[Problem]:
    """Yield what is wrong with the images and audio that the judges of a test are shown."""
    shown = tuple(
        dict.fromkeys((*test.images, *test.audio, *markers_in(test.variables), *markers_in(test.output)))
    )
    if not shown:
        return
    messages, found = media_of_messages((Message("user", "\n".join(shown)),))
    problem = too_many(shown_media(messages, found))
    if problem:
        yield Problem(f"{problem} ({where})", test.place.value(), FEWER_HINT)
    for spec in (item for group in specs for item in (group, *group.members)):
        if not isinstance(spec, ModelGradedAssertion) or "text" not in spec.judge_kinds:
            continue
        params = getattr(spec, "evaluation_params", None)
        seen = list(found.values())
        if params is not None and "input" not in params:
            of_output = {item.sha256 for item in filter(None, map(find_media, markers_in(test.output)))}
            named = {kind for name, kind in MEDIA_FIELDS.items() if name in params}
            seen = [item for item in seen if item.kind in named or item.sha256 in of_output]
        for judge in judges_of(spec, test, defaults):
            place = judge.place.value() or spec.place.value()
            for lack, _, hint in _lacks(judge, seen):
                message = f"{judge.public_id} judges but {lack}, which the test has ({where})"
                yield Problem(message, place, hint)
            yield from _doubtful(judge, seen, place)


def _lacks(provider: ProviderSpec, shown: Sequence[Media]) -> Iterator[tuple[str, str, str]]:
    """Yield what of this a provider cannot take: in words, the kind, and a hint."""
    if any(item.kind == "image" for item in shown) and not sees_images(provider):
        yield "cannot see images", "image", _WHO_SEES
    heard, sounds = hears_audio(provider), {item.media_type for item in shown if item.kind == "audio"}
    if sounds and not heard:
        yield "cannot hear audio", "audio", _WHO_HEARS
    elif sounds - heard:
        names = " and ".join(sorted(map(called, sounds - heard)))
        hint = f"convert it to {' or '.join(sorted(map(called, heard)))}"
        yield f"cannot hear audio as {names}", "audio", hint


def _doubtful(provider: ProviderSpec, shown: Sequence[Media], place: Location | None) -> Iterator[Problem]:
    """Yield a warning for a model of OpenAI's own that takes no audio, judging by its name."""
    if (
        any(item.kind == "audio" for item in shown)
        and provider.id.startswith("openai:")
        and "audio" not in provider.id
        and hears_audio(provider)
        and not own_settings(provider.config, ENDPOINT_KEYS).keys() & {"base_url", "api_host", "api_endpoint"}
    ):
        message = (
            f"{provider.public_id} may refuse audio: OpenAI's models that hear have `audio` in their names"
        )
        yield Problem(message, place, "for example openai:gpt-audio", severity=Severity.WARNING)
