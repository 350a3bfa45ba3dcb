// amqplib: it leaves Nagle's algorithm on, unless it is told not to.

const http = require('http')
const amqp = require('amqplib')
const kit = require('./kit')

const body = Buffer.from('v'.repeat(200))

// A connection and its channel; confirms and a prefetch count where they are wanted.
async function open(name, queue, { noDelay = true, confirms = false, prefetch = 0 } = {}) {
  const clientProperties = { connection_name: name }
  const socket = noDelay ? { noDelay } : {}
  const connection = await amqp.connect(process.env.CLOVERLEAF_AMQP_URL, { clientProperties, ...socket })
  const channel = await (confirms ? connection.createConfirmChannel() : connection.createChannel())
  await channel.assertQueue(queue)
  if (prefetch) await channel.prefetch(prefetch)
  return { connection, channel }
}

// Acknowledges each message by itself.
const consume = (channel, queue) =>
  channel.consume(queue, (message) => { kit.saw(); channel.ack(message) })

async function syncProduce() {
  const { connection, channel } = await open(kit.BEHAVIOUR, kit.BEHAVIOUR, { confirms: true })
  while (!kit.isOver()) {
    channel.sendToQueue(kit.BEHAVIOUR, body)
    await channel.waitForConfirms()
  }
  await connection.close()
}

// Takes what waits. It came on a connection of its own: whoever consumes does nothing else.
async function windowTooSmall() {
  const feeder = await open('feeder', kit.BEHAVIOUR, { confirms: true })
  for (let i = 0; i < 5000; i++) feeder.channel.sendToQueue(kit.BEHAVIOUR, body)
  // An end of the connection does not wait for what is still to be written.
  await feeder.channel.waitForConfirms()
  await feeder.connection.close()
  const { connection, channel } = await open(kit.BEHAVIOUR, kit.BEHAVIOUR, { prefetch: 1 })
  await consume(channel, kit.BEHAVIOUR)
  await kit.untilOverAndSeen()
  await connection.close()
}

// Somebody else's messages, some each second.
async function feed(messages) {
  const { channel } = await open('feeder', kit.BEHAVIOUR)
  const send = () => {
    for (let i = 0; i < messages; i++) channel.sendToQueue(kit.BEHAVIOUR, body)
  }
  send()
  setInterval(send, 1000)
}

// Works off what comes, ten at a time, as fast as it can.
async function heldBack() {
  const { channel } = await open(kit.BEHAVIOUR, kit.BEHAVIOUR, { noDelay: false, prefetch: 10 })
  await consume(channel, kit.BEHAVIOUR)
  await feed(200)
  await kit.untilOverAndSeen()
}

// The same with a call, for all that are there, to something that is as far away as the broker.
async function farDatabase() {
  const [host, port] = process.env.CLOVERLEAF_NSQD_HTTP.split(':')
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
  const call = () => new Promise((resolve, reject) => {
    const options = { host, port, path: '/ping', agent }
    const request = http.get(options, (answer) => answer.resume().on('end', resolve))
    request.setNoDelay(true)
    request.on('error', reject)
  })
  const { channel } = await open(kit.BEHAVIOUR, kit.BEHAVIOUR, { prefetch: 10 })
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
      for (const message of messages) { kit.saw(); channel.ack(message) }
    }
    works = false
  })
  await feed(200)
  await kit.untilOverAndSeen()
}

// A pool of four workers that has more to do than it can.
async function slowHandler() {
  const options = { confirms: true, prefetch: 4 }
  const { connection, channel } = await open(kit.BEHAVIOUR, kit.BEHAVIOUR, options)
  const consumer = await channel.consume(kit.BEHAVIOUR, async (message) => {
    await kit.sleep(300)
    kit.saw()
    channel.ack(message)
  })
  while (!kit.isOver()) {
    for (let i = 0; i < 20; i++) channel.sendToQueue(kit.BEHAVIOUR, body, {}, () => {})
    await kit.sleep(1000)
  }
  await channel.cancel(consumer.consumerTag)
  await kit.sleep(500)
  await connection.close()
  await kit.untilOverAndSeen()
}

async function good() {
  const options = { confirms: true, prefetch: 20 }
  const { connection, channel } = await open('good', 'good-amqplib', options)
  await consume(channel, 'good-amqplib')
  while (!kit.isOver()) {
    channel.sendToQueue('good-amqplib', body, {}, () => {})
    await kit.sleep(7)
  }
  await channel.waitForConfirms()
  await connection.close()
  await kit.untilOverAndSeen()
}

kit.say('amqplib', kit.version('amqplib'))
kit.main({
  nagle: heldBack,
  'far-database': farDatabase,
  'sync-produce': syncProduce,
  'window-too-small': windowTooSmall,
  'slow-handler': slowHandler,
  good
})
