"""A protoc plugin for Python gRPC stubs.

buf runs plugins; grpc_tools has its generator built into its own protoc. This
hands the files that buf asks for to that protoc and hands its output back.
"""

import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.compiler import plugin_pb2
from grpc_tools import protoc


def main() -> int:
    """Answers one CodeGeneratorRequest; returns the exit status."""
    request = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    response = plugin_pb2.CodeGeneratorResponse(
        supported_features=plugin_pb2.CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL
    )
    with tempfile.TemporaryDirectory() as folder:
        descriptors = Path(folder, "set.binpb")
        files = descriptor_pb2.FileDescriptorSet(file=request.proto_file)
        descriptors.write_bytes(files.SerializeToString())
        out = Path(folder, "out")
        out.mkdir()
        status = protoc.main(
            [
                "protoc",
                f"--descriptor_set_in={descriptors}",
                f"--grpc_python_out={out}",
                *request.file_to_generate,
            ]
        )
        if status:
            return int(status)
        for path in sorted(out.rglob("*.py")):
            # A file without a service has nothing but a version check; leave it out.
            if path.name.endswith("_service_pb2_grpc.py"):
                response.file.add(name=str(path.relative_to(out)), content=path.read_text())
    sys.stdout.buffer.write(response.SerializeToString())
    return 0


if __name__ == "__main__":
    sys.exit(main())
