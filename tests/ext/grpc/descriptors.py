"""Writes the descriptors of the protos: ``python -m tests.ext.grpc.descriptors`` (needs grpcio-tools).

They are data, not code: messages are made from them at the server's start, in a separate pool. So any version
of protobuf can be installed, and the process may contain other copies of the same messages.
"""

import sys
import tempfile
from importlib import import_module
from pathlib import Path

from modelserver.ext.grpc.messages import DESCRIPTORS, PROTOS


def generate() -> bytes:
    """The descriptors of all protos and of what they import, in the order of their names.

    Raises:
        ImportError: grpcio-tools is not installed.
        ValueError: a proto is invalid; protoc prints the reason to stderr.
    """
    protoc = import_module("grpc_tools.protoc")
    well_known = Path(str(protoc.__file__)).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made")
        arguments = [f"-I{PROTOS}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={made}"]
        if protoc.main(["protoc", *arguments, *sorted(path.name for path in PROTOS.glob("*.proto"))]):
            raise ValueError(f"the protos in {PROTOS} cannot be compiled")
        return made.read_bytes()


if __name__ == "__main__":
    DESCRIPTORS.write_bytes(generate())
    sys.stdout.write(f"{DESCRIPTORS} is written\n")
