"""Prompts as chats: the one user message that a prompt of token IDs stands for, between what the template adds."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kvgate.engines.wire import EncodedPrompt

# A group has one prompt, or few, and each is sent many times.
MOST_KEPT = 64


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Token IDs that the chat template puts before and after one user message."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


def frame_between(one: tuple[int, ...], other: tuple[int, ...]) -> ChatFrame:
    """The frame that two chats have in common, which differ from the first to the last token of their messages.

    Raises ValueError if there is nothing of the messages between.
    """
    most = min(len(one), len(other))
    before = next((at for at in range(most) if one[at] != other[at]), most)
    after = next((at for at in range(most - before) if one[-1 - at] != other[-1 - at]), most - before)
    if before + after >= most:
        raise ValueError("two different messages make the same chat")
    return ChatFrame(one[:before], one[len(one) - after :])


class ChatPrompts:
    """Messages by prompt. Text comes from the server's own tokenizer, so that it makes the same IDs of it again."""

    def __init__(self, frame: ChatFrame, detokenize: Callable[[list[int]], Awaitable[str]]) -> None:
        self._frame = frame
        self._detokenize = detokenize
        self._kept: dict[bytes, list[dict[str, str]]] = {}

    async def messages(self, prompt: EncodedPrompt) -> list[dict[str, str]]:
        """The one message of a prompt. Raises RemoteError if the server does not give its text."""
        if prompt.encoded not in self._kept:
            end = prompt.length - len(self._frame.suffix)
            text = await self._detokenize(prompt.ids[len(self._frame.prefix) : end])
            while len(self._kept) >= MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[prompt.encoded] = [{"role": "user", "content": text}]
        return self._kept[prompt.encoded]
