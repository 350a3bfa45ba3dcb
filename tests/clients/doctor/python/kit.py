"""The common part of the client programs for the doctor: a behaviour, an end, and the broker's address.

A program is as somebody would write it who does not know better (or, as `good`, who does). It is called
with the name of its behaviour, goes on for SECONDS, and writes down which library in which version it
is, into the file IDENTITY. The broker's addresses are those that `cloverleaf lab run` tells.
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
    """By the clock, until the end; late ones are not made up for."""
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
    """Runs all in threads. A failure of one ends the program."""

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
    """Writes down who this is, for the doctor to find out by itself."""
    path = os.environ.get("IDENTITY")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"library": library, "version": version}, file)


def main(receives=()):
    """Plays the behaviour, which may be a coroutine. Messages have to come to those that receive."""
    behaviour = BEHAVIOURS[BEHAVIOUR]()
    if asyncio.iscoroutine(behaviour):
        asyncio.run(behaviour)
    assert SEEN or BEHAVIOUR not in receives, "nothing came"
