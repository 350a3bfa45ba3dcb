"""The tasks that `celery_test.py` calls; its workers import this module."""

import os
import time

from celery import Celery
from kombu import Queue

AMQP = os.environ.get("AMQP", "127.0.0.1:5672")
# So that programs that run at once do not take each other's tasks.
OWN = os.environ.get("CELERY_OWN", "own")
# What a test looks into: lines of text.
JOURNAL = os.environ.get("CELERY_JOURNAL", os.devnull)

app = Celery("tasks", broker=f"amqp://guest:guest@{AMQP}//", backend="rpc://")
app.conf.update(
    task_default_queue=f"{OWN}.default",
    task_queues=[
        Queue(f"{OWN}.default"),
        Queue(f"{OWN}.first", queue_arguments={"x-max-priority": 10}),
        Queue(f"{OWN}.late"),
    ],
    task_routes={"celery_tasks.note": {"queue": f"{OWN}.first"},
                 "celery_tasks.slow_late": {"queue": f"{OWN}.late"}},
    # So that priorities are seen, and a task that is acknowledged late is the only one held.
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    result_persistent=False,
    worker_detect_quorum_queues=True,
)
if os.environ.get("CELERY_QUORUM"):
    app.conf.update(
        task_default_queue=f"{OWN}.quorum", task_default_queue_type="quorum", task_queues=None,
        task_routes={}, task_default_exchange_type="topic",
        broker_transport_options={"confirm_publish": True})


def write(line):
    with open(JOURNAL, "a") as journal:
        journal.write(f"{line}\n")


@app.task
def add(x, y):
    return x + y


@app.task
def fail():
    raise ValueError("on purpose")


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def succeeds_at_the_third_time(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.3)
    return self.request.retries


@app.task
def note(text):
    write(text)
    return text


@app.task
def sleep(seconds):
    time.sleep(seconds)
    return seconds


@app.task(acks_late=True, reject_on_worker_lost=True, bind=True)
def slow_late(self, text, seconds):
    redelivered = self.request.delivery_info.get("redelivered")
    write(f"begin {text} {redelivered}")
    time.sleep(seconds)
    write(f"end {text}")
    return text
