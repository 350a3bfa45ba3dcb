"""Takes twelve messages at a time for four workers: the last of them wait for too long."""

import concurrent.futures
import os
import sys
import time
import urllib.request

import nsq
import tornado.ioloop

topic, deadline_s = sys.argv[1:]
address, http = os.environ["CLOVERLEAF_NSQD"], os.environ["CLOVERLEAF_NSQD_HTTP"]
bodies = "\n".join(str(number) for number in range(2000))
url = "http://%s/mpub?topic=%s" % (http, topic)
urllib.request.urlopen(url, bodies.encode()).read()

workers = concurrent.futures.ThreadPoolExecutor(4)
first_taken = {}


def handle(message):
    message.enable_async()
    first_taken.setdefault(message.id, time.monotonic())
    loop = tornado.ioloop.IOLoop.current()
    loop.add_future(loop.run_in_executor(workers, time.sleep, 0.5), lambda _: done(message))


def done(message):
    message.finish()
    # What is done for the second time counts for nothing.
    taken = first_taken.get(message.id)
    if taken is not None:
        print("done", int((time.monotonic() - taken) * 1e6))
    first_taken[message.id] = None


nsq.Reader(
    topic=topic,
    channel="work",
    message_handler=handle,
    nsqd_tcp_addresses=[address],
    max_in_flight=12,
    max_tries=0,
    msg_timeout=int(deadline_s),
)
nsq.run()
