"""Celery with real workers: results over rpc://, retries, eta, chains, groups, priorities, tasks
that are acknowledged late, revoked tasks, remote control; kombu by itself."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

from kit import AMQP, PATIENCE_S, check, main, name, same, told_of, wait_for

FOLDER = pathlib.Path(__file__).resolve().parent
OWN = name("celery")
JOURNAL = pathlib.Path(tempfile.mkdtemp(prefix="celery-")) / "journal"
JOURNAL.touch()
os.environ.update(CELERY_OWN=OWN, CELERY_JOURNAL=str(JOURNAL), AMQP=AMQP)
sys.path.insert(0, str(FOLDER))

import celery.utils  # noqa: E402
import celery_tasks as tasks  # noqa: E402  (after its environment is set)
import kombu  # noqa: E402
from amqp.exceptions import ConsumerCancelled  # noqa: E402
from celery import chain, group  # noqa: E402
from celery.exceptions import TaskRevokedError  # noqa: E402



@contextlib.contextmanager
def worker(queues, concurrency=2, pool="threads", **environment):
    """A worker process; it is killed with -9 if it has not ended."""
    title = name("worker")
    log = open(JOURNAL.with_name(f"{title}.log"), "w+")
    queues = ",".join(f"{OWN}.{queue}" for queue in queues)
    command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-Q", queues,
               "--concurrency", str(concurrency), "--pool", pool, "-n", f"{title}@%h",
               "--loglevel", "INFO"]
    process = subprocess.Popen(
        command, cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        env={**os.environ, "C_FORCE_ROOT": "1", **environment}, start_new_session=True)

    def ready():
        assert process.poll() is None, tail(log)
        return " ready." in pathlib.Path(log.name).read_text()

    try:
        wait_for(ready, "the worker is ready")
        yield process
    except BaseException:
        print(tail(log), file=sys.stderr)
        raise
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def tail(log):
    return pathlib.Path(log.name).read_text()[-3000:]


def journal():
    return JOURNAL.read_text().splitlines()


@check
def tasks_and_their_results():
    with worker(["default"]):
        same(tasks.add.delay(2, 3).get(timeout=PATIENCE_S), 5, "one task")
        results = [tasks.add.delay(n, n) for n in range(200)]
        same([r.get(timeout=PATIENCE_S) for r in results], [2 * n for n in range(200)], "many")
        try:
            tasks.fail.delay().get(timeout=PATIENCE_S)
        except ValueError as error:
            same(str(error), "on purpose", "what the task raised")
        else:
            raise AssertionError("it did not fail")
        same(tasks.succeeds_at_the_third_time.delay().get(timeout=PATIENCE_S), 2, "retries")
        start = time.monotonic()
        result = tasks.add.apply_async((1, 1), countdown=1)
        same(result.get(timeout=PATIENCE_S), 2, "with an eta")
        assert time.monotonic() - start >= 0.95, "it came too early"
        same(chain(tasks.add.s(1, 2), tasks.add.s(3), tasks.add.s(4))().get(timeout=PATIENCE_S),
             10, "a chain")
        same(group(tasks.add.s(n, 1) for n in range(20))().get(timeout=PATIENCE_S),
             [n + 1 for n in range(20)], "a group")
        tasks.note.apply_async(("never",), queue=f"{OWN}.default", expires=-1)
        same(tasks.add.delay(1, 2).get(timeout=PATIENCE_S), 3, "behind an expired task")
        assert "never" not in journal(), "an expired task was run"


@check
def processes_in_the_place_of_threads():
    with worker(["default"], pool="prefork"):
        results = [tasks.add.delay(n, 1) for n in range(50)]
        same([r.get(timeout=PATIENCE_S) for r in results], list(range(1, 51)), "results")


@check
def tasks_of_higher_priority_come_first():
    for number in range(5):
        tasks.note.apply_async((f"low {number}",), priority=1)
    for number in range(5):
        tasks.note.apply_async((f"high {number}",), priority=9)
    with worker(["first"], concurrency=1):
        wait_for(lambda: sum(" " in line and line.split()[0] in ("low", "high")
                             for line in journal()) == 10, "all are done")
    found = [line for line in journal() if line.split()[0] in ("low", "high")]
    same(found, [f"{kind} {n}" for kind in ["high", "low"] for n in range(5)], "order")


@check
def a_task_that_is_acknowledged_late_outlives_its_worker():
    with worker(["late"], concurrency=1, pool="solo") as process:
        tasks.slow_late.delay("job", 3)
        wait_for(lambda: "begin job False" in journal(), "it has begun")
        os.killpg(process.pid, signal.SIGKILL)
    assert "end job" not in journal(), "it ended before its worker was killed"
    with worker(["late"], concurrency=1, pool="solo"):
        wait_for(lambda: "end job" in journal(), "another worker has done it")
    same([line for line in journal() if line.startswith("begin job")],
         ["begin job False", "begin job True"], "the second time it is marked as redelivered")


@check
def remote_control_and_revoked_tasks():
    with worker(["default"], concurrency=1):
        control = tasks.app.control
        replies = wait_for(lambda: control.ping(timeout=2), "a worker answers")
        same([list(reply.values()) for reply in replies], [[{"ok": "pong"}]], "answers")
        registered = wait_for(lambda: control.inspect(timeout=2).registered(), "it tells its tasks")
        assert "celery_tasks.add" in list(registered.values())[0], registered
        # A worker runs what it has begun: it must know before.
        known = celery.utils.uuid()
        control.revoke(known)
        wait_for(lambda: known in str(control.inspect(timeout=2).revoked()), "it is known")
        busy = tasks.sleep.delay(3)
        revoked = tasks.note.apply_async(
            ("revoked",), queue=f"{OWN}.default", task_id=known)
        same(busy.get(timeout=PATIENCE_S), 3, "the task before it")
        try:
            revoked.get(timeout=PATIENCE_S)
        except TaskRevokedError:
            pass
        else:
            raise AssertionError("it was run although it was revoked")
        assert "revoked" not in journal(), journal()


@check
def quorum_queues_with_their_delayed_delivery():
    """Celery delays tasks of quorum queues in a chain of queues with dead letters."""
    script = ("import time, celery_tasks as t; start = time.monotonic(); "
              "r = t.add.apply_async((2, 2), countdown=2); assert r.get(timeout=600) == 4; "
              "took = time.monotonic() - start; assert took > 1.0, took; "
              "assert t.add.delay(1, 2).get(timeout=600) == 3")
    with worker(["quorum"], CELERY_QUORUM="1"):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=FOLDER, capture_output=True, text=True,
            timeout=PATIENCE_S, env={**os.environ, "CELERY_QUORUM": "1"})
        assert done.returncode == 0, done.stderr[-2000:]


@check
def events_of_workers():
    seen, stop = [], threading.Event()

    def work():
        while not stop.wait(0.5):
            tasks.add.delay(1, 1)

    with worker(["default"]), tasks.app.connection_for_read() as connection:
        def handle(event):
            seen.append(event["type"])
            receiver.should_stop = {"task-succeeded", "worker-heartbeat"} <= set(seen)

        receiver = tasks.app.events.Receiver(connection, handlers={"*": handle})
        tasks.app.control.enable_events()
        publisher = threading.Thread(target=work, daemon=True)
        publisher.start()
        try:
            receiver.capture(limit=None, timeout=PATIENCE_S, wakeup=True)
        finally:
            stop.set()
            publisher.join(PATIENCE_S)
        assert receiver.should_stop, seen


@check
def kombu_by_itself():
    exchange = kombu.Exchange(name("exchange"), "topic", auto_delete=True)
    queue = kombu.Queue(name("queue"), exchange, "a.#", auto_delete=True)
    found = []

    def handle(body, message):
        found.append((body, message.headers.get("h"), message.delivery_info["routing_key"]))
        message.ack()

    with kombu.Connection(f"amqp://guest:guest@{AMQP}//", heartbeat=5) as connection:
        with connection.Consumer(queue, callbacks=[handle]):
            producer = connection.Producer()
            for number in range(50):
                producer.publish({"number": number}, exchange=exchange, routing_key=f"a.{number}",
                                 headers={"h": number}, compression="zlib", serializer="json",
                                 retry=True)
            while len(found) < 50:
                connection.drain_events(timeout=PATIENCE_S)
        simple = connection.SimpleQueue(name("queue"))
        simple.put("one")
        message = simple.get(timeout=PATIENCE_S)
        same(message.payload, "one", "a simple queue")
        message.ack()
        same(simple.qsize(), 0, "left")
        # Seen once on a busy machine: whose consumer was cancelled, and is its queue still there?
        try:
            simple.close()
        except ConsumerCancelled as error:
            raise AssertionError(f"{error}: active are {simple.consumer._active_tags}; the queue: "
                                 f"{told_of(simple.queue.name)}") from error
        simple.queue.delete()
    same(found, [({"number": n}, n, f"a.{n}") for n in range(50)], "messages")


main()
