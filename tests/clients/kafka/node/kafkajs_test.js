// KafkaJS: produce, consume, groups, administration.
//
// The address comes from the environment: KAFKA, and KAFKA_TLS with KAFKA_TLS_CA.
// Prints `ok NAME` or `not ok NAME: WHY` per check; the exit status is 1 when one failed.
'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const kafkajs = require('kafkajs');

const { CompressionTypes, CompressionCodecs, Kafka, logLevel } = kafkajs;
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy');
CompressionCodecs[CompressionTypes.LZ4] = new (require('kafkajs-lz4'))().codec;

// Only what hangs takes so long; a machine that is slow and busy does not decide.
const CHECK_MS_MAX = 1800000;
const PATIENCE_MS = 600000;
const kafka = new Kafka({
  clientId: 'checks', brokers: [process.env.KAFKA], logLevel: logLevel.NOTHING,
  retry: { retries: 3 }, connectionTimeout: PATIENCE_MS,
});
let numbers = 0;
const name = (kind = 'topic') => `${kind}-js-${process.pid}-${numbers++}`;
const checks = [];
const check = (title, run) => checks.push({ title, run });

async function until(condition, what) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!(await condition())) {
    assert(Date.now() < deadline, `waited in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function withAdmin(run) {
  const admin = kafka.admin();
  await admin.connect();
  try {
    return await run(admin);
  } finally {
    await admin.disconnect();
  }
}

async function create(numPartitions = 1, configEntries = []) {
  const topic = name();
  const topics = [{ topic, numPartitions, configEntries }];
  await withAdmin((admin) => admin.createTopics({ topics, waitForLeaders: true }));
  return topic;
}

async function produce(topic, messages, options = {}, settings = {}, client = kafka) {
  const producer = client.producer(settings);
  await producer.connect();
  const reports = await producer.send({ topic, messages, ...options });
  await producer.disconnect();
  return reports;
}

// A group member that collects messages. On a slow machine KafkaJS may read some twice.
class Member {
  constructor(groupId, client = kafka, settings = {}) {
    this.seen = new Map();
    this.assigned = [];
    this.consumer = client.consumer({ groupId, maxWaitTimeInMs: 200, ...settings });
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => {
      this.assigned = Object.values(payload.memberAssignment).flat();
    });
  }

  async start(topic) {
    await this.consumer.connect();
    await this.consumer.subscribe({ topic, fromBeginning: true });
    await this.consumer.run({
      eachMessage: async ({ partition, message }) => {
        this.seen.set(`${partition} ${message.offset}`, { ...message, partition });
      },
    });
    return this;
  }

  get messages() {
    return [...this.seen.values()];
  }

  async take(count) {
    await until(() => this.seen.size >= count, `${count} messages have come`);
    return this.messages;
  }

  stop() {
    return this.consumer.disconnect();
  }
}

async function consume(topic, count, client = kafka, groupId = name('group')) {
  const member = await new Member(groupId, client).start(topic);
  try {
    return await member.take(count);
  } finally {
    await member.stop();
  }
}

const numbered = (count) => Array.from({ length: count }, (_, n) => ({ value: `message ${n}` }));
const values = (messages) => messages.map(({ value }) => value.toString());

check('produce and consume', async () => {
  const topic = await create();
  const sent = numbered(500);
  const reports = await produce(topic, sent);
  assert.deepStrictEqual(reports.map((r) => [r.partition, r.baseOffset]), [[0, '0']]);
  assert.deepStrictEqual(values(await consume(topic, 500)), sent.map((m) => m.value));
});

check('keys, headers and tombstones', async () => {
  const topic = await create();
  await produce(topic, [
    { key: 'k', value: 'v', headers: { one: 'a', many: ['b', 'c'] } },
    { key: 'k', value: null },
  ]);
  const [first, second] = await consume(topic, 2);
  assert.strictEqual(first.key.toString(), 'k');
  assert.strictEqual(first.headers.one.toString(), 'a');
  assert.deepStrictEqual(first.headers.many.map(String), ['b', 'c']);
  assert.strictEqual(second.value, null);
});

check('each compression and each acks', async () => {
  const { None, GZIP, Snappy, LZ4 } = CompressionTypes;
  for (const compression of [None, GZIP, Snappy, LZ4]) {
    for (const acks of [0, 1, -1]) {
      const topic = await create();
      const sent = numbered(100);
      await produce(topic, sent, { compression, acks });
      assert.deepStrictEqual(values(await consume(topic, 100)), sent.map((m) => m.value));
    }
  }
});

check('idempotent producer', async () => {
  const topic = await create();
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (let n = 0; n < 50; n++) await producer.send({ topic, messages: [{ value: `${n}` }] });
  await producer.disconnect();
  const got = values(await consume(topic, 50));
  assert.deepStrictEqual(got, Array.from({ length: 50 }, (_, n) => `${n}`));
});

check('eight partitions', async () => {
  const topic = await create(8);
  const messages = Array.from({ length: 800 }, (_, n) => ({ key: `${n % 50}`, value: `${n}` }));
  await produce(topic, messages);
  const got = await consume(topic, 800);
  assert.strictEqual(new Set(got.map((m) => `${m.partition} ${m.key}`)).size, 50);
});

check('a group commits and goes on', async () => {
  const topic = await create();
  const group = name('group');
  await produce(topic, numbered(10));
  await consume(topic, 10, kafka, group);
  await produce(topic, [{ value: 'later' }]);
  assert.deepStrictEqual(values(await consume(topic, 1, kafka, group)), ['later']);
});

check('two members share', async () => {
  const topic = await create(4);
  const group = name('group');
  const first = await new Member(group).start(topic);
  await until(() => first.assigned.length === 4, 'the first has all');
  const second = await new Member(group).start(topic);
  const both = () => first.assigned.length === 2 && second.assigned.length === 2;
  await until(both, 'both have two');
  await second.stop();
  await until(() => first.assigned.length === 4, 'the first has all again');
  await first.stop();
});

check('seek, offsets and times', async () => {
  // The timestamps are of years ago, which would be old enough to go.
  const topic = await create(1, [{ name: 'retention.ms', value: '-1' }]);
  const at = 1700000000000;
  const messages = Array.from(
    { length: 10 }, (_, n) => ({ value: `${n}`, timestamp: `${at + n * 10}` }));
  await produce(topic, messages);
  await withAdmin(async (admin) => {
    const [ends] = await admin.fetchTopicOffsets(topic);
    assert.deepStrictEqual([ends.low, ends.high], ['0', '10']);
    const [found] = await admin.fetchTopicOffsetsByTimestamp(topic, at + 45);
    assert.strictEqual(found.offset, '5');
  });
  const member = await new Member(name('group')).start(topic);
  await member.take(10);
  // It has read them all: what comes now comes because of the seek.
  member.seen.clear();
  member.consumer.seek({ topic, partition: 0, offset: '7' });
  await member.take(3);
  await member.stop();
  assert.deepStrictEqual(member.messages.map((m) => m.offset).sort(), ['7', '8', '9']);
});

check('administration', async () => {
  const topic = await create(2, [{ name: 'retention.ms', value: '60000' }]);
  const group = name('group');
  await produce(topic, numbered(5));
  await consume(topic, 5, kafka, group);
  await withAdmin(async (admin) => {
    assert((await admin.listTopics()).includes(topic));
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
    assert.strictEqual(topics[0].partitions.length, 3);
    const resource = { type: kafkajs.ConfigResourceTypes.TOPIC, name: topic };
    const { resources } = await admin.describeConfigs({ resources: [resource] });
    const entry = resources[0].configEntries.find((e) => e.configName === 'retention.ms');
    assert.strictEqual(entry.configValue, '60000');
    const configEntries = [{ name: 'retention.ms', value: '70000' }];
    await admin.alterConfigs({ resources: [{ ...resource, configEntries }] });
    assert((await admin.listGroups()).groups.some((g) => g.groupId === group));
    const { groups } = await admin.describeGroups([group]);
    assert.strictEqual(groups[0].state, 'Empty');
    await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: '1' }] });
    const [offsets] = await admin.fetchOffsets({ groupId: group, topics: [topic] });
    assert.strictEqual(offsets.partitions.find((p) => p.partition === 0).offset, '1');
    await admin.deleteGroups([group]);
    const partitions = [{ partition: 0, offset: '-1' }];
    await admin.deleteTopicRecords({ topic, partitions });
    const cluster = await admin.describeCluster();
    assert.strictEqual(cluster.brokers.length, 1);
    await admin.deleteTopics({ topics: [topic] });
    await until(async () => !(await admin.listTopics()).includes(topic), 'it is gone');
  });
});

check('a topic made by producing', async () => {
  const topic = name();
  await produce(topic, [{ value: 'x' }]);
  assert.deepStrictEqual(values(await consume(topic, 1)), ['x']);
});

if (process.env.KAFKA_TLS) {
  check('TLS', async () => {
    const client = new Kafka({
      brokers: [process.env.KAFKA_TLS], logLevel: logLevel.NOTHING, connectionTimeout: PATIENCE_MS,
      ssl: { ca: [fs.readFileSync(process.env.KAFKA_TLS_CA)], servername: 'localhost' },
    });
    const topic = await create();
    const sent = numbered(200);
    await produce(topic, sent, {}, {}, client);
    assert.deepStrictEqual(values(await consume(topic, 200, client)), sent.map((m) => m.value));
  });
}

async function main() {
  let failed = false;
  for (const { title, run } of checks) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error('took too long')), CHECK_MS_MAX);
    });
    try {
      await Promise.race([run(), late]);
      console.log(`ok ${title}`);
    } catch (error) {
      failed = true;
      console.error(error);
      console.log(`not ok ${title}: ${String(error.message).replace(/\s+/g, ' ').slice(0, 500)}`);
    }
    clearTimeout(timer);
  }
  process.exit(failed ? 1 : 0);
}

main();
