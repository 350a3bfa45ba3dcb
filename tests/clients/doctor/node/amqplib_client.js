// amqplib: it leaves Nagle's algorithm on, unless it is told not to.

const http = require('http')
const amqp = require('amqplib')
const kit = require('./kit')

const body = Buffer.from('v'.repeat(200))

// The behaviour's queue on a connection of this name, with confirms and a prefetch count where they are
// wanted.
async function open({ name = kit.BEHAVIOUR, noDelay = true, confirms = false, prefetch = 0 } = {}) {
  const clientProperties = { connection_name: name }
  const socket = noDelay ? { noDelay } : {}
  const connection = await amqp.connect(process.env.CLOVERLEAF_AMQP_URL, { clientProperties, ...socket })
  const channel = await (confirms ? connection.createConfirmChannel() : connection.createChannel())
  await channel.assertQueue(kit.BEHAVIOUR)
  if (prefetch) await channel.prefetch(prefetch)
  return {
    connection,
    channel,
    publish: (confirmed) => channel.sendToQueue(kit.BEHAVIOUR, body, {}, confirmed),
    consume: (handle) => channel.consume(kit.BEHAVIOUR, handle)
  }
}

const done = (channel, message) => { kit.saw(); channel.ack(message) }

async function syncProduce() {
  const { connection, channel, publish } = await open({ confirms: true })
  await kit.every(0, () => { publish(); return channel.waitForConfirms() })
  await connection.close()
}

// Consumes a backlog that another connection has published: the consumer's connection only consumes.
async function windowTooSmall() {
  const feeder = await open({ name: 'feeder', confirms: true })
  for (let i = 0; i < 5000; i++) feeder.publish()
  // A close does not wait for bytes that are still to be written.
  await feeder.channel.waitForConfirms()
  await feeder.connection.close()
  const { channel, consume } = await open({ prefetch: 1 })
  await consume((message) => done(channel, message))
  await kit.untilOverAndSeen()
}

// Consumes messages that another connection publishes each second, with a prefetch count of ten.
async function fed(options, handle) {
  const { channel, consume } = await open({ ...options, prefetch: 10 })
  await consume((message) => handle(channel, message))
  const feeder = await open({ name: 'feeder' })
  await kit.every(1000, () => { for (let i = 0; i < 200; i++) feeder.publish() })
  await kit.untilOverAndSeen()
}

// Before it acknowledges the messages that are there, it makes a call to something as far away as the
// broker.
function farDatabase() {
  const [host, port] = process.env.CLOVERLEAF_NSQD_HTTP.split(':')
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
  const call = () => new Promise((resolve, reject) => {
    const options = { host, port, path: '/ping', agent }
    const request = http.get(options, (answer) => answer.resume().on('end', resolve))
    request.setNoDelay(true)
    request.on('error', reject)
  })
  let waiting = []
  let works = false
  return fed({}, async (channel, message) => {
    waiting.push(message)
    if (works) return
    works = true
    while (waiting.length) {
      const messages = waiting
      waiting = []
      await call()
      for (const message of messages) done(channel, message)
    }
    works = false
  })
}

// A pool of four workers that gets more messages than it can work off.
async function slowHandler() {
  const { channel, publish, consume } = await open({ confirms: true, prefetch: 4 })
  const consumer = await consume(async (message) => {
    await kit.sleep(300)
    done(channel, message)
  })
  await kit.every(1000, () => { for (let i = 0; i < 20; i++) publish(() => {}) })
  await channel.cancel(consumer.consumerTag)
  await kit.sleep(500)
  await kit.untilOverAndSeen()
}

async function good() {
  const { channel, publish, consume } = await open({ confirms: true, prefetch: 20 })
  await consume((message) => done(channel, message))
  await kit.every(7, () => publish(() => {}))
  await channel.waitForConfirms()
  await kit.untilOverAndSeen()
}

kit.main('amqplib', kit.version('amqplib'), {
  nagle: () => fed({ noDelay: false }, done),
  'far-database': farDatabase,
  'sync-produce': syncProduce,
  'window-too-small': windowTooSmall,
  'slow-handler': slowHandler,
  good
})
