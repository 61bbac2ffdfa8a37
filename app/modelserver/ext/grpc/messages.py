"""The messages and services of ``protos/``, made from their descriptors in a separate pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, ServiceDescriptor


__all__ = ["DecodeError", "message", "service"]

PROTOS = Path(__file__).parent / "protos"
DESCRIPTORS = PROTOS / "descriptors.binpb"

# Fields are known at run time only.
AnyMessage: TypeAlias = Any


def _load() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    return pool


POOL = _load()


def message(name: str) -> type[AnyMessage]:
    """The class of a message by its full name. Raises KeyError."""
    return message_class(POOL.FindMessageTypeByName(name))


def message_class(descriptor: Descriptor) -> type[AnyMessage]:
    """The class of a message of the pool."""
    made: type[AnyMessage] = message_factory.GetMessageClass(descriptor)
    return made


def service(name: str) -> ServiceDescriptor:
    """A service by its full name. Raises KeyError."""
    return POOL.FindServiceByName(name)
