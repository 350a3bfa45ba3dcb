// amqplib: it leaves Nagle's algorithm on, unless it is told not to.

const http = require('http')
const amqp = require('amqplib')
const kit = require('./kit')

const body = Buffer.from('v'.repeat(200))

function connect(name, socket) {
  const clientProperties = { connection_name: name }
  return amqp.connect(process.env.CLOVERLEAF_AMQP_URL, { clientProperties, ...socket })
}

async function syncProduce() {
  const connection = await connect(kit.BEHAVIOUR, { noDelay: true })
  const channel = await connection.createConfirmChannel()
  await channel.assertQueue(kit.BEHAVIOUR)
  while (!kit.isOver()) {
    channel.sendToQueue(kit.BEHAVIOUR, body)
    await channel.waitForConfirms()
  }
  await connection.close()
}

// Puts so many messages into a queue, on a connection of its own: whoever consumes them does nothing
// else.
async function fill(queue, messages) {
  const connection = await connect('feeder', { noDelay: true })
  const channel = await connection.createConfirmChannel()
  await channel.assertQueue(queue)
  for (let i = 0; i < messages; i++) channel.sendToQueue(queue, body)
  // An end of the connection does not wait for what is still to be written.
  await channel.waitForConfirms()
  await connection.close()
}

// Takes what waits, and acknowledges each message by itself.
async function consume(messages, prefetch) {
  let seen = 0
  await fill(kit.BEHAVIOUR, messages)
  const connection = await connect(kit.BEHAVIOUR, { noDelay: true })
  const channel = await connection.createChannel()
  await channel.prefetch(prefetch)
  await channel.consume(kit.BEHAVIOUR, (message) => { seen += 1; channel.ack(message) })
  await kit.untilOver()
  await connection.close()
  if (!seen) throw new Error('nothing came')
}

// Somebody else's messages, some each second.
async function feed(messages) {
  const connection = await connect('feeder', { noDelay: true })
  const channel = await connection.createChannel()
  await channel.assertQueue(kit.BEHAVIOUR)
  const send = () => {
    for (let i = 0; i < messages; i++) channel.sendToQueue(kit.BEHAVIOUR, body)
  }
  send()
  setInterval(send, 1000)
}

// Works off what comes, ten at a time, as fast as it can.
async function heldBack() {
  let seen = 0
  const connection = await connect(kit.BEHAVIOUR, {})
  const channel = await connection.createChannel()
  await channel.assertQueue(kit.BEHAVIOUR)
  await channel.prefetch(10)
  await channel.consume(kit.BEHAVIOUR, (message) => { seen += 1; channel.ack(message) })
  await feed(200)
  await kit.untilOver()
  if (!seen) throw new Error('nothing came')
}

// The same with a call, for all that are there, to something that is as far away as the broker.
async function farDatabase() {
  let seen = 0
  const [host, port] = process.env.CLOVERLEAF_NSQD_HTTP.split(':')
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
  const call = () => new Promise((resolve, reject) => {
    const options = { host, port, path: '/ping', agent }
    const request = http.get(options, (answer) => answer.resume().on('end', resolve))
    request.setNoDelay(true)
    request.on('error', reject)
  })
  const connection = await connect(kit.BEHAVIOUR, { noDelay: true })
  const channel = await connection.createChannel()
  await channel.assertQueue(kit.BEHAVIOUR)
  await channel.prefetch(10)
  let waiting = []
  let works = false
  await channel.consume(kit.BEHAVIOUR, async (message) => {
    waiting.push(message)
    if (works) return
    works = true
    while (waiting.length) {
      const messages = waiting
      waiting = []
      await call()
      for (const message of messages) { seen += 1; channel.ack(message) }
    }
    works = false
  })
  await feed(200)
  await kit.untilOver()
  if (!seen) throw new Error('nothing came')
}

// A pool of four workers that has more to do than it can.
async function slowHandler() {
  let seen = 0
  const connection = await connect(kit.BEHAVIOUR, { noDelay: true })
  const channel = await connection.createConfirmChannel()
  await channel.assertQueue(kit.BEHAVIOUR)
  await channel.prefetch(4)
  const consumer = await channel.consume(kit.BEHAVIOUR, async (message) => {
    await kit.sleep(300)
    seen += 1
    channel.ack(message)
  })
  while (!kit.isOver()) {
    for (let i = 0; i < 20; i++) channel.sendToQueue(kit.BEHAVIOUR, body, {}, () => {})
    await kit.sleep(1000)
  }
  await channel.cancel(consumer.consumerTag)
  await kit.sleep(500)
  await connection.close()
  if (!seen) throw new Error('nothing came')
}

async function good() {
  let seen = 0
  const connection = await connect('good', { noDelay: true })
  const channel = await connection.createConfirmChannel()
  await channel.assertQueue('good-amqplib')
  await channel.prefetch(20)
  await channel.consume('good-amqplib', (message) => { seen += 1; channel.ack(message) })
  while (!kit.isOver()) {
    channel.sendToQueue('good-amqplib', body, {}, () => {})
    await kit.sleep(7)
  }
  await channel.waitForConfirms()
  await connection.close()
  if (!seen) throw new Error('nothing came')
}

kit.say('amqplib', kit.version('amqplib'))
kit.main({
  nagle: heldBack,
  'far-database': farDatabase,
  'sync-produce': syncProduce,
  'window-too-small': () => consume(5000, 1),
  'slow-handler': slowHandler,
  good
})
