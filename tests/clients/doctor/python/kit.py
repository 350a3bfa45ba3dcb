"""The common part of the client programs for the doctor.

A program makes the mistakes that its library invites; its behaviour `good` makes none. The argument
names the behaviour, which goes on for SECONDS. The program writes its library and version into the file
IDENTITY. It finds the broker by the environment variables that `cloverleaf lab run` sets.
"""

import asyncio
import json
import os
import sys
import threading
import time

BEHAVIOUR = sys.argv[1]
END = time.monotonic() + float(os.environ.get("SECONDS", "20"))
BEHAVIOURS = {}
SEEN = []

# A message of the usual size.
BODY = b"v" * 200


def behaviour(function):
    BEHAVIOURS[function.__name__.replace("_", "-")] = function
    return function


def left():
    """Seconds until the end."""
    return max(0, END - time.monotonic())


def is_over():
    return not left()


def every(seconds):
    """Ticks by the clock until the end. A late tick delays those after it."""
    due = time.monotonic()
    while not is_over():
        yield
        due = max(due + seconds, time.monotonic())
        time.sleep(max(0, due - time.monotonic()))


def saw(*messages):
    """Counts messages that came."""
    SEEN.extend(messages)


def work(seconds):
    """Keeps a processor busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def together(*functions):
    """Runs each function on a thread. If one fails, the program ends."""

    def run(function):
        try:
            function()
        except BaseException as problem:  # noqa: B902, whatever it is
            print(f"{function.__name__}: {problem!r}", file=sys.stderr, flush=True)
            os._exit(1)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def say(library, version):
    """Writes library and version into IDENTITY, to be compared with what the broker recognises."""
    path = os.environ.get("IDENTITY")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"library": library, "version": version}, file)


def main(receives=()):
    """Plays the behaviour, which may be a coroutine. Those in `receives` fail if no message comes."""
    behaviour = BEHAVIOURS[BEHAVIOUR]()
    if asyncio.iscoroutine(behaviour):
        asyncio.run(behaviour)
    assert SEEN or BEHAVIOUR not in receives, "nothing came"
