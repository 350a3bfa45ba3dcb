// amqplib: publish, consume, confirms, errors.
//
// The address comes from the environment: AMQP, and AMQP_TLS with AMQP_TLS_CA.
// Prints `ok NAME` or `not ok NAME: WHY` per check; the exit status is 1 when one failed.
'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const amqplib = require('amqplib');

// Only what hangs takes so long; a machine that is slow and busy does not decide.
const CHECK_MS_MAX = 1800000;
const PATIENCE_MS = 600000;
const URL = `amqp://guest:guest@${process.env.AMQP}/`;
let numbers = 0;
const name = (kind = 'queue') => `${kind}-js-${process.pid}-${numbers++}`;
const checks = [];
const check = (title, run) => checks.push({ title, run });

async function until(condition, what) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!(await condition())) {
    assert(Date.now() < deadline, `waited in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function withConnection(run, url = URL, options = {}) {
  const connection = await amqplib.connect(url, options);
  connection.on('error', () => {});
  try {
    return await run(connection);
  } finally {
    await connection.close().catch(() => {});
  }
}

// A channel whose errors are kept.
async function open(connection, confirms = false) {
  const channel = await (confirms ? connection.createConfirmChannel() : connection.createChannel());
  channel.errors = [];
  channel.on('error', (error) => channel.errors.push(error));
  return channel;
}

check('publish and consume', () => withConnection(async (connection) => {
  const channel = await open(connection);
  const title = name('exchange');
  const { exchange } = await channel.assertExchange(title, 'topic', { autoDelete: true });
  const { queue } = await channel.assertQueue('', { exclusive: true });
  assert.match(queue, /^amq\.gen-/);
  await channel.bindQueue(queue, exchange, 'a.#');
  const got = [];
  await channel.prefetch(20);
  const { consumerTag } = await channel.consume(queue, (message) => {
    got.push(message);
    channel.ack(message);
  });
  for (let n = 0; n < 500; n += 1) {
    channel.publish(exchange, `a.${n}`, Buffer.from(`${n}`), {
      headers: { n, nested: { list: [1, 'two', true, null] } }, contentType: 'text/plain',
      correlationId: `${n}`, persistent: true, priority: 3,
    });
  }
  await until(() => got.length === 500, 'all have come');
  got.forEach((message, n) => {
    assert.strictEqual(message.content.toString(), `${n}`);
    const headers = { n, nested: { list: [1, 'two', true, null] } };
    assert.deepStrictEqual(message.properties.headers, headers);
    assert.strictEqual(message.fields.routingKey, `a.${n}`);
    assert.strictEqual(message.fields.redelivered, false);
    assert.strictEqual(message.properties.deliveryMode, 2);
  });
  await channel.cancel(consumerTag);
  assert.strictEqual((await channel.checkQueue(queue)).messageCount, 0);
}));

check('confirms, many in flight', () => withConnection(async (connection) => {
  const channel = await open(connection, true);
  const { queue } = await channel.assertQueue(name(), { durable: true });
  let confirmed = 0;
  for (let n = 0; n < 3000; n += 1) {
    channel.sendToQueue(queue, Buffer.from(`${n}`), { persistent: n % 2 === 0 }, (error) => {
      assert.ifError(error);
      confirmed += 1;
    });
  }
  await channel.waitForConfirms();
  assert.strictEqual(confirmed, 3000);
  assert.strictEqual((await channel.deleteQueue(queue)).messageCount, 3000);
}));

check('refused when the queue is full', () => withConnection(async (connection) => {
  const channel = await open(connection, true);
  const { queue } = await channel.assertQueue(name(), {
    exclusive: true, maxLength: 2, arguments: { 'x-overflow': 'reject-publish' },
  });
  const refused = [];
  for (let n = 0; n < 5; n += 1) {
    await new Promise((resolve) => channel.sendToQueue(queue, Buffer.from('x'), {}, (error) => {
      if (error) refused.push(n);
      resolve();
    }));
  }
  assert.deepStrictEqual(refused, [2, 3, 4]);
}));

check('returns', () => withConnection(async (connection) => {
  const channel = await open(connection, true);
  const returned = [];
  channel.on('return', (message) => returned.push(message));
  channel.publish('', name('missing'), Buffer.from('lost'), { mandatory: true });
  await channel.waitForConfirms();
  assert.strictEqual(returned.length, 1);
  assert.strictEqual(returned[0].fields.replyText, 'NO_ROUTE');
  assert.strictEqual(returned[0].content.toString(), 'lost');
}));

check('dead letters, time to live, priorities', () => withConnection(async (connection) => {
  const channel = await open(connection);
  const dead = (await channel.assertQueue('', { exclusive: true })).queue;
  const { queue } = await channel.assertQueue(name(), {
    exclusive: true, deadLetterExchange: '', deadLetterRoutingKey: dead, messageTtl: 5000,
    maxPriority: 3,
  });
  channel.sendToQueue(queue, Buffer.from('low'), { priority: 1 });
  channel.sendToQueue(queue, Buffer.from('high'), { priority: 3 });
  let first;
  await until(async () => {
    first = first || await channel.get(queue);
    return first;
  }, 'a message is there');
  channel.nack(first, false, false);
  const letters = [];
  await channel.consume(dead, (message) => letters.push(message), { noAck: true });
  await until(() => letters.length === 2, 'both are dead');
  const told = letters.map((message) => [
    message.content.toString(), message.properties.headers['x-death'][0].reason]);
  assert.strictEqual(told.length, 2);
  assert(told.some(([, reason]) => reason === 'rejected'), JSON.stringify(told));
}));

check('errors close the channel, and tell why', () => withConnection(async (connection) => {
  const cases = [
    [404, /no queue 'missing' in vhost '\/'/, (channel) => channel.checkQueue('missing')],
    [404, /no exchange 'missing'/, (channel) => channel.checkExchange('missing')],
    [403, /reserved prefix 'amq.\*'/, (channel) => channel.assertQueue('amq.mine')],
    [406, /inequivalent arg 'durable'/, async (channel) => {
      const { queue } = await channel.assertQueue(name(), { durable: false, autoDelete: true });
      await channel.assertQueue(queue, { durable: true, autoDelete: true });
    }],
    [406, /unknown delivery tag 7/, async (channel) => {
      channel.ack({ fields: { deliveryTag: 7 } });
      await channel.checkExchange('amq.direct');
    }],
  ];
  for (const [code, text, run] of cases) {
    const channel = await open(connection);
    await assert.rejects(async () => run(channel));
    await until(() => channel.errors.length > 0, 'the channel is told', 5000);
    assert.strictEqual(channel.errors[0].code, code);
    assert.match(channel.errors[0].message, text);
  }
  await open(connection);
}));

check('a wrong password', async () => {
  const wrong = URL.replace('guest:guest', 'guest:wrong');
  await assert.rejects(amqplib.connect(wrong), /ACCESS[_-]REFUSED/);
});

check('consumers hear that their queue is gone', () => withConnection(async (connection) => {
  const channel = await open(connection);
  const { queue } = await channel.assertQueue(name(), { durable: false });
  let told = 0;
  await channel.consume(queue, (message) => {
    if (message === null) told += 1;
  });
  const other = await open(connection);
  await other.deleteQueue(queue);
  await until(() => told === 1, 'it is told');
}));

check('large messages and small frames', () => withConnection(async (connection) => {
  const channel = await open(connection, true);
  const { queue } = await channel.assertQueue('', { exclusive: true });
  for (const size of [0, 1, 4088, 4089, 1 << 20, 5 << 20]) {
    const body = Buffer.alloc(size, 'abcdefg');
    channel.sendToQueue(queue, body);
    await channel.waitForConfirms();
    const message = await channel.get(queue, { noAck: true });
    assert(message.content.equals(body), `${size} bytes came as ${message.content.length}`);
  }
}, `${URL}?frameMax=8192`));

check('recover', () => withConnection(async (connection) => {
  const channel = await open(connection);
  const { queue } = await channel.assertQueue('', { exclusive: true });
  channel.sendToQueue(queue, Buffer.from('x'));
  let message;
  await until(async () => {
    message = await channel.get(queue);
    return message;
  }, 'it is there');
  await channel.recover();
  message = await channel.get(queue, { noAck: true });
  assert.strictEqual(message.fields.redelivered, true);
}));

if (process.env.AMQP_TLS) {
  const url = `amqps://guest:guest@${process.env.AMQP_TLS}/`;
  const ca = [fs.readFileSync(process.env.AMQP_TLS_CA)];
  check('TLS', () => withConnection(async (connection) => {
    const channel = await open(connection, true);
    const { queue } = await channel.assertQueue('', { exclusive: true });
    channel.sendToQueue(queue, Buffer.alloc(200000, 'x'));
    await channel.waitForConfirms();
    const message = await channel.get(queue, { noAck: true });
    assert.strictEqual(message.content.length, 200000);
  }, url, { ca }));
}

(async () => {
  let failed = false;
  for (const { title, run } of checks) {
    let timer;
    const limit = new Promise((_, reject) => {
      const why = new Error(`took longer than ${CHECK_MS_MAX} ms`);
      timer = setTimeout(() => reject(why), CHECK_MS_MAX);
    });
    try {
      await Promise.race([run(), limit]);
      console.log(`ok ${title}`);
    } catch (error) {
      failed = true;
      console.error(error);
      console.log(`not ok ${title}: ${String(error.message).replace(/\s+/g, ' ')}`);
    } finally {
      clearTimeout(timer);
    }
  }
  process.exit(failed ? 1 : 0);
})();
