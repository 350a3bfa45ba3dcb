// KafkaJS: it awaits each message, or many. The broker learns only its clientId.

const { Kafka, logLevel } = require('kafkajs')
const kit = require('./kit')

const message = { value: 'v'.repeat(200) }

// Makes a topic and a producer for it. `send` sends this many messages in one call.
async function open(topic, settings) {
  const brokers = [process.env.CLOVERLEAF_KAFKA]
  const client = new Kafka({ brokers, logLevel: logLevel.NOTHING, ...settings })
  const admin = client.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] })
  await admin.disconnect()
  const producer = client.producer()
  await producer.connect()
  const send = (messages) => producer.send({ topic, messages: Array(messages).fill(message) })
  return { client, producer, send }
}

async function syncProduce() {
  const { producer, send } = await open('kafkajs')
  await kit.every(0, () => send(1))
  await producer.disconnect()
}

async function good() {
  const topic = 'good-kafkajs'
  const { client, producer, send } = await open(topic, { clientId: 'kafkajs-good' })
  const consumer = client.consumer({ groupId: topic })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({ eachMessage: async () => kit.saw() })
  const sent = []
  await kit.every(7, () => { sent.push(send(5)) })
  await Promise.all(sent)
  await producer.disconnect()
  await consumer.disconnect()
  await kit.untilOverAndSeen()
}

kit.main('', '', { 'sync-produce': syncProduce, good })
