"""Reflection, under its old name and its new one; the messages are the same."""

from collections.abc import Sequence

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

_ALPHA = "grpc.reflection.v1alpha"
_STABLE = "grpc.reflection.v1"
_SERVICE = "ServerReflection"

REFLECTION_SERVICES = (f"{_ALPHA}.{_SERVICE}", f"{_STABLE}.{_SERVICE}")


class _Reflection(ReflectionServicer):  # type: ignore[misc] # it publishes no types
    """Also finds methods by their full names, which the pool knows by their service alone."""

    def _file_containing_symbol(
        self, request: reflection_pb2.ServerReflectionRequest, fully_qualified_name: str
    ) -> reflection_pb2.ServerReflectionResponse:
        try:
            self._pool.FindFileContainingSymbol(fully_qualified_name)
        except KeyError:
            fully_qualified_name = fully_qualified_name.rpartition(".")[0]
        found: reflection_pb2.ServerReflectionResponse = super()._file_containing_symbol(
            request, fully_qualified_name
        )
        return found


def add_reflection(server: grpc.aio.Server, names: Sequence[str]) -> None:
    """Serves reflection of the named services."""
    _describe_stable()
    servicer = _Reflection(names)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                f"{_STABLE}.{_SERVICE}", {"ServerReflectionInfo": method}
            ),
        )
    )


def _describe_stable() -> None:
    """Makes the new name describable: the old file with its package renamed."""
    pool = Default()
    try:
        pool.FindServiceByName(f"{_STABLE}.{_SERVICE}")
    except KeyError:
        pass
    else:
        return
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = _STABLE
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(f".{_ALPHA}.", f".{_STABLE}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{_ALPHA}.", f".{_STABLE}.")
            method.output_type = method.output_type.replace(f".{_ALPHA}.", f".{_STABLE}.")
    file.ClearField("options")
    pool.Add(file)
