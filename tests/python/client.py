"""A Baton client in another language: submits, watches and cancels.

Knows the protocol in two ways: from the published .proto files (compiled by run.sh) and from the relay's own
reflection, whose answer must name the same services and methods.
"""

import argparse
import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from baton.v1 import common_pb2, spec_pb2, tasks_pb2, tasks_pb2_grpc


def check_reflection(channel):
    """The relay describes itself as the published files do."""
    database = ProtoReflectionDescriptorDatabase(channel)
    services = set(database.get_services())
    expected = {"baton.v1.Tasks", "baton.v1.Fleet", "baton.v1.Operator", "baton.v1.DaemonLink"}
    assert expected <= services, f"reflection lists {services}"
    reflected = DescriptorPool(database).FindServiceByName("baton.v1.Tasks")
    published = tasks_pb2.DESCRIPTOR.services_by_name["Tasks"]
    names = [method.name for method in reflected.methods]
    assert names == [method.name for method in published.methods], names
    print(f"reflection: {len(services)} services, Tasks has {len(names)} methods")


def submit(tasks, metadata, argv, key):
    spec = spec_pb2.TaskSpec(agent="command", command=spec_pb2.CommandSpec(argv=argv))
    request = tasks_pb2.SubmitRequest(spec=spec, idempotency_key=key)
    task = tasks.Submit(request, metadata=metadata, timeout=20).task
    again = tasks.Submit(request, metadata=metadata, timeout=20)
    assert again.existed and again.task.task_id == task.task_id, "one key, one task"
    return task.task_id


def watch(tasks, metadata, task_id, on_event=lambda event: None):
    """Follows a task to its end and returns its last event. Revisions have no gap."""
    revision, last = 0, None
    for item in tasks.Watch(tasks_pb2.WatchTaskRequest(task_id=task_id), metadata=metadata, timeout=60):
        if item.WhichOneof("item") != "event":
            continue
        last = item.event
        revision += 1
        assert last.revision == revision, f"revision {last.revision} after {revision - 1}"
        on_event(last)
    return last


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--relay", required=True, help="host:port")
    parser.add_argument("--token-file", required=True)
    arguments = parser.parse_args()
    with open(arguments.token_file, encoding="ascii") as file:
        metadata = [("authorization", f"Bearer {file.read().strip()}")]
    with grpc.insecure_channel(arguments.relay) as channel:
        check_reflection(channel)
        tasks = tasks_pb2_grpc.TasksStub(channel)

        done = submit(tasks, metadata, ["sh", "-c", "echo hello from python"], "python-1")
        end = watch(tasks, metadata, done)
        assert end.task_state == common_pb2.TASK_STATE_COMPLETED, end
        output = b"".join(
            item.chunk.data
            for item in tasks.ReadOutput(tasks_pb2.ReadOutputRequest(task_id=done, follow=True), metadata=metadata, timeout=20)
            if item.WhichOneof("item") == "chunk"
        )
        assert output == b"hello from python\n", output
        print(f"completed {done}: {output.decode().strip()}")

        stopped = submit(tasks, metadata, ["sh", "-c", "echo begun; exec sleep 600"], "python-2")
        canceled = []

        def cancel_when_running(event):
            if event.state == common_pb2.ATTEMPT_STATE_STREAMING and not canceled:
                request = tasks_pb2.CancelTaskRequest(task_id=stopped, reason="enough")
                canceled.append(tasks.Cancel(request, metadata=metadata, timeout=20))

        end = watch(tasks, metadata, stopped, cancel_when_running)
        assert end.task_state == common_pb2.TASK_STATE_CANCELED, end
        again = tasks.Cancel(tasks_pb2.CancelTaskRequest(task_id=stopped), metadata=metadata, timeout=20)
        assert again.already_finished
        print(f"canceled {stopped}")

        try:
            tasks.Get(tasks_pb2.GetTaskRequest(task_id="nonsense"), metadata=metadata, timeout=20)
            sys.exit("a malformed id was accepted")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
            print(f"refused: {error.details()}")


if __name__ == "__main__":
    main()
