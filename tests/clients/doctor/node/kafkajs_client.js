// KafkaJS: it awaits each message, or many. It tells the broker nothing but its clientId.

const { Kafka, logLevel } = require('kafkajs')
const kit = require('./kit')

const kafka = (settings) =>
  new Kafka({ brokers: [process.env.CLOVERLEAF_KAFKA], logLevel: logLevel.NOTHING, ...settings })
const message = { value: 'v'.repeat(200) }

async function topic(kafka, name) {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic: name, numPartitions: 1 }] })
  await admin.disconnect()
}

async function syncProduce() {
  const client = kafka()
  await topic(client, 'kafkajs')
  const producer = client.producer()
  await producer.connect()
  while (!kit.isOver()) await producer.send({ topic: 'kafkajs', messages: [message] })
  await producer.disconnect()
}

async function good() {
  const client = kafka({ clientId: 'kafkajs-good' })
  await topic(client, 'good-kafkajs')
  const producer = client.producer()
  const consumer = client.consumer({ groupId: 'good-kafkajs' })
  await consumer.connect()
  await consumer.subscribe({ topic: 'good-kafkajs', fromBeginning: true })
  await consumer.run({ eachMessage: async () => kit.saw() })
  await producer.connect()
  const sent = []
  while (!kit.isOver()) {
    sent.push(producer.send({ topic: 'good-kafkajs', messages: Array(5).fill(message) }))
    await kit.sleep(7)
  }
  await Promise.all(sent)
  await producer.disconnect()
  await consumer.disconnect()
  await kit.untilOverAndSeen()
}

kit.say('', '')
kit.main({ 'sync-produce': syncProduce, good })
