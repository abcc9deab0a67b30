"""Refuses images, which no model here reads, in the words of the request, for every API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BeforeValidator

from twostroke.server.errors import Unsupported

_IMAGE_TYPES = ("image", "image_url", "input_image")


def refuse_images(messages: object) -> object:
    """Return raw messages unchanged; a shape that is no list of messages is for others to judge.

    Raises:
        Unsupported: a message has an image, in its content, in a tool result, or as `images`.
    """
    for index, message in enumerate(messages if isinstance(messages, Sequence) else ()):
        if not isinstance(message, Mapping):
            continue
        places = list(_images_of(message.get("content"), "content"))
        places += list(_images_of(message.get("output"), "output"))
        if message.get("type") in _IMAGE_TYPES:
            places.append("type")
        if message.get("images"):
            places.append("images")
        if places:
            raise image_error(f"messages.{index}.{places[0]}", f": message {index} has one")
    return messages


def image_error(param: str, where: str = "") -> Unsupported:
    """Return the error of a request that has an image at the field `param`."""
    return Unsupported(
        f"images are not supported by this model{where}", remedy="Send text alone.", param=param
    )


def _images_of(content: object, where: str) -> Iterator[str]:
    """Yield the places of the images in the parts of content, those of tool results included."""
    if not isinstance(content, Sequence) or isinstance(content, (str, bytes)):
        return
    for index, part in enumerate(content):
        if not isinstance(part, Mapping):
            continue
        if part.get("type") in _IMAGE_TYPES:
            yield f"{where}.{index}"
        elif part.get("type") == "tool_result":
            yield from _images_of(part.get("content"), f"{where}.{index}.content")


# Of a body's field that holds messages: looked at before the strict validation of its parts.
NoImages = BeforeValidator(refuse_images)
