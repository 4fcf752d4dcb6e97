"""A client of the Model Context Protocol that knows nothing of Baton: the `mcp` package from PyPI.

Lists every tool and calls every one, standing alone with a token and inside an attempt that a daemon runs. What a
schema forbids must be refused, what it allows must not be refused for its shape: the arguments are checked here by
the package `jsonschema` as well, and both must say the same.
"""

import argparse
import asyncio
import json
import os
import subprocess

import jsonschema
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

TOOLS = {
    "list_blocked_tasks", "get_blocked_task", "pick_up_task", "task_start", "claim_task", "task_progress",
    "save_task_progress", "task_checkpoint", "task_block", "task_needs_help", "task_complete", "release_task",
    "task_get", "task_list",
}
UNKNOWN = "019aaaaa-0000-7000-8000-000000000000"

# Good and bad arguments of every tool. Whether they are good in shape is for the schema to say.
ARGUMENTS = {
    "list_blocked_tasks": [{}, {"page_size": 3}, {"page_size": 0}, {"other": 1}],
    "get_blocked_task": [{"task_id": UNKNOWN}, {}, {"task_id": " "}],
    "pick_up_task": [{"task_id": UNKNOWN}, {"task_id": UNKNOWN, "reason": "free"}, {"reason": "x"}],
    "task_start": [{"goal": " "}, {"goal": "x", "labels": {"a": 1}}, {"goal": "x", "lease_seconds": 1}],
    "claim_task": [{"task_id": UNKNOWN}, {"task_id": 7}],
    "task_progress": [{"summary": "s", "completed_items": ["a"], "failed_items": [{"item": "b", "reason": "c"}]},
                      {"completed_items": "abc"}, {"failed_items": [{"item": "b"}]}, {"evidence": [{"kind": "url"}]}],
    "task_checkpoint": [{"summary": "half", "cursor": "7", "evidence": [{"kind": "file", "ref": "a"}]},
                        {"summary": ""}, {"summary": "x" * 8193}, {}],
    "task_block": [{"reason": " ", "task_id": UNKNOWN}, {"reason": 1}, {}],
    "task_complete": [{"outcome": "done", "summary": "x"}, {"outcome": "completed"}, {"outcome": "failed", "summary": ""}],
    "release_task": [{"reason": 1}, {"task_id": UNKNOWN}],
    "task_get": [{"task_id": UNKNOWN}, {"task_id": ""}, {"task_id": "nonsense"}],
    "task_list": [{}, {"states": ["running"]}, {"states": ["gone"]}, {"labels": []}],
}
ARGUMENTS["save_task_progress"] = ARGUMENTS["task_progress"]
ARGUMENTS["task_needs_help"] = ARGUMENTS["task_block"]
# Refusals of shape; every other refusal is about the task.
SHAPE = {
    "missing", "blank", "too_large", "too_many", "out_of_range", "unknown_enum_value", "wrong_type", "unknown_argument",
    "malformed_id", "malformed_name", "bad_path", "bad_digest", "bad_label",
}


async def call(session, name, arguments):
    """The object that a tool answered, and whether it refused."""
    result = await session.call_tool(name, arguments)
    assert result.structured_content is not None, (name, result)
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content, bool(result.is_error)


async def granted(session, name, arguments):
    said, refused = await call(session, name, arguments)
    assert not refused, (name, said)
    return said


async def refused(session, name, arguments, code):
    said, was_refused = await call(session, name, arguments)
    assert was_refused and said["error"]["code"] == code, (name, said)
    for part in ("status", "what", "next"):
        assert said["error"][part], (name, said)


def fits(schema, arguments):
    try:
        jsonschema.validate(arguments, schema)
        return True
    except jsonschema.ValidationError:
        return False


async def check_schemas(session):
    """Every tool is there, and its schema and its behaviour agree."""
    tools = {tool.name: tool for tool in (await session.list_tools()).tools}
    assert set(tools) == TOOLS, set(tools) ^ TOOLS
    calls = 0
    for name, tool in tools.items():
        assert tool.input_schema["additionalProperties"] is False
        assert tool.annotations.read_only_hint is not None
        for arguments in ARGUMENTS[name]:
            said, was_refused = await call(session, name, arguments)
            shape = was_refused and said["error"]["code"] in SHAPE
            assert shape != fits(tool.input_schema, arguments), (name, arguments, said)
            calls += 1
    return calls


async def alone(baton, environment, token_file):
    """With a token, and leases of its own."""
    parameters = StdioServerParameters(command=baton, args=["mcp", "--token-file", token_file], env=environment)
    async with stdio_client(parameters) as pipes, ClientSession(*pipes) as session:
        told = await session.initialize()
        assert "list_blocked_tasks" in told.instructions and told.server_info.name == "baton"
        calls = await check_schemas(session)
        await story(session)
    print(f"alone: {len(TOOLS)} tools, {calls} calls judged by schema and server alike")


async def story(session):
    """From the start of a task to its end, through every verb."""
    started = await granted(session, "task_start", {"goal": "write it down"})
    task = started["ref"]["taskId"]
    assert "token" not in started, "the lease token is not the model's business"
    await granted(session, "task_progress", {"summary": "begun", "completed_items": ["one"]})
    await granted(session, "task_checkpoint", {"task_id": task, "summary": "half", "cursor": "2"})
    await refused(session, "claim_task", {}, "lease_held")
    await granted(session, "task_block", {"reason": "a key is missing", "resume_hint": "a key"})
    blocked = await granted(session, "list_blocked_tasks", {})
    assert task in json.dumps(blocked), blocked
    await granted(session, "get_blocked_task", {"task_id": task})
    await granted(session, "pick_up_task", {"task_id": task, "reason": "the key is here"})
    await granted(session, "release_task", {"reason": "somebody else may"})
    await granted(session, "claim_task", {"task_id": task})
    await granted(session, "task_complete", {"outcome": "completed", "summary": "done", "result": "42"})
    ended = await granted(session, "task_get", {"task_id": task})
    assert ended["task"]["state"] == "completed", ended
    assert task in json.dumps(await granted(session, "task_list", {"states": ["completed"]}))
    for outcome in ("failed", "canceled"):
        await granted(session, "task_start", {"goal": outcome})
        await granted(session, "task_complete", {"outcome": outcome, "summary": "because"})
    print("alone: a task was started, blocked, picked up, released, claimed and completed")


async def inside(baton, environment, handed):
    """In an attempt, with its capability."""
    parameters = StdioServerParameters(command=baton, args=["mcp"], env={**environment, **handed})
    async with stdio_client(parameters) as pipes, ClientSession(*pipes) as session:
        told = await session.initialize()
        assert "daemon holds its lease for you" in told.instructions, told.instructions
        calls = await check_schemas(session)
        own = await granted(session, "task_get", {})
        assert own["scope"] == "own_task" and own["task"]["goal"] == "inside"
        for name, arguments in (("task_start", {"goal": "x"}), ("claim_task", {}), ("release_task", {}),
                                ("pick_up_task", {"task_id": UNKNOWN})):
            await refused(session, name, arguments, "inside_an_attempt")
        for name, arguments in (("task_progress", {"summary": "s"}), ("task_checkpoint", {"summary": "half"})):
            said = await granted(session, name, arguments)
            assert said["noted"], said
        await granted(session, "task_complete", {"outcome": "completed", "summary": "done", "result": "43"})
        await refused(session, "task_checkpoint", {"summary": "late"}, "outcome_fixed")
    print(f"inside: {len(TOOLS)} tools, {calls} calls judged by schema and server alike")


def attempt_environment(attempt):
    """What the daemon gave the agent of this attempt."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                pairs = (entry.split("=", 1) for entry in file.read().decode(errors="replace").split("\0") if "=" in entry)
                found = dict(pairs)
        except OSError:
            continue
        if found.get("BATON_ATTEMPT_ID") == attempt and "BATON_CAPABILITY" in found:
            return {name: found[name] for name in ("BATON_CAPABILITY", "BATON_TOOLS_SOCKET")}
    return None


async def running_attempt(baton, environment, let_go):
    """A command that waits for a file, and what it was handed."""
    script = f"while [ ! -e {let_go} ]; do sleep 0.1; done; exit 7"
    submit = [baton, "submit", "--json", "--mcp", "--goal", "inside", "--max-attempts", "1", "--", "sh", "-c", script]
    task = json.loads(subprocess.run(submit, env=environment, check=True, capture_output=True).stdout)
    while (handed := attempt_environment(task["attempts"][0]["attemptId"])) is None:
        await asyncio.sleep(0.1)
    return task["taskId"], handed


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--baton", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--scratch", required=True)
    arguments = parser.parse_args()
    baton = arguments.baton
    environment = {"PATH": os.environ["PATH"], "HOME": arguments.scratch, "BATON_DATA": arguments.data}

    let_go = os.path.join(arguments.scratch, "let-go")
    task, handed = await running_attempt(baton, environment, let_go)
    await inside(baton, environment, handed)
    with open(let_go, "w", encoding="ascii"):
        pass
    watched = subprocess.run([baton, "watch", task], env=environment, capture_output=True)
    assert watched.returncode == 0, watched
    print("inside: completed by the agent's word, whatever its exit code")

    token_file = os.path.join(arguments.scratch, "agent.token")
    create = [baton, "token", "create", "--role", "agent", "--name", "python", "--agent-scope", "python"]
    made = subprocess.run(create, env=environment, check=True, capture_output=True, text=True).stdout
    with open(token_file, "w", encoding="ascii") as file:
        file.write(next(word for word in made.split() if word.startswith("btn_")))
    await alone(baton, environment, token_file)


if __name__ == "__main__":
    asyncio.run(main())
