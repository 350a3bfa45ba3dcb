// nsqjs against a broker: publish, delayed publish, consume, requeue, compression, TLS,
// authentication.
//
// The addresses come from the environment: NSQ_TCP, NSQ_TLS_CA, and for authentication
// NSQ_AUTH_TCP (a broker) and NSQ_AUTH_HTTP (where that broker asks; this program serves it).
// Prints `ok NAME` or `not ok NAME: WHY` per check; the exit status is 1 when one failed.

const assert = require('assert')
const http = require('http')
const nsq = require('nsqjs')

const {NSQ_TCP, NSQ_AUTH_TCP, NSQ_AUTH_HTTP} = process.env
// Only what hangs takes so long; a machine that is slow and busy does not decide.
const WAIT_MS_MAX = 600000
// nsqjs offers no way to name a certificate authority, so it is told not to look.
const TLS = {tls: true, tlsVerification: false}
let topics = 0

const newTopic = () => `nsqjs_${process.pid}_${topics++}`

async function within(promise, what) {
  let timer
  const late = new Promise((resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`waited in vain until ${what}`)), WAIT_MS_MAX)
  })
  try {
    return await Promise.race([promise, late])
  } finally {
    clearTimeout(timer)
  }
}

async function connectedWriter(options = {}, address = NSQ_TCP) {
  const [host, port] = address.split(':')
  const writer = new nsq.Writer(host, Number(port), options)
  const ready = new Promise((resolve, reject) => {
    writer.on('ready', resolve)
    writer.on('error', reject)
  })
  writer.connect()
  await within(ready, 'the writer is connected')
  return writer
}

function publish(writer, topic, messages, delayMs) {
  const answer = new Promise((resolve, reject) => {
    const done = (error) => (error ? reject(error) : resolve())
    if (delayMs === undefined) writer.publish(topic, messages, done)
    else writer.deferPublish(topic, [messages], delayMs, done)
  })
  return within(answer, 'the publish is answered')
}

// Consumes until `count` messages have come; `decide` says what becomes of a message.
async function consume(topic, count, options = {}, decide = (m) => m.finish(), address = NSQ_TCP) {
  const reader = new nsq.Reader(topic, 'ch', {
    nsqdTCPAddresses: [address], maxInFlight: 50, maxBackoffDuration: 0, ...options,
  })
  const got = []
  const all = new Promise((resolve, reject) => {
    reader.on('error', reject)
    reader.on('message', (message) => {
      got.push({body: message.body.toString(), attempts: message.attempts, at: Date.now()})
      decide(message)
      if (got.length === count) resolve()
    })
  })
  reader.connect()
  try {
    await within(all, `${count} messages have come (${got.length} did)`)
  } finally {
    reader.close()
  }
  return got
}

async function roundTrip(options) {
  const topic = newTopic()
  const writer = await connectedWriter(options)
  const sent = Array.from({length: 300}, (_, n) => `message ${n} ${'x'.repeat((n * 7) % 3000)}`)
  for (const body of sent.slice(0, 100)) await publish(writer, topic, body)
  await publish(writer, topic, sent.slice(100))
  const got = await consume(topic, 300, options)
  assert.deepStrictEqual(got.map((m) => m.body).sort(), [...sent].sort())
  assert(got.every((m) => m.attempts === 1))
  writer.close()
}

async function authentication() {
  const [host, port] = NSQ_AUTH_HTTP.split(':')
  const server = http.createServer((request, response) => {
    const {searchParams} = new URL(request.url, `http://${NSQ_AUTH_HTTP}`)
    if (searchParams.get('secret') !== 'sesame') {
      response.writeHead(403).end()
      return
    }
    response.writeHead(200, {'content-type': 'application/json'}).end(JSON.stringify({
      ttl: 30,
      identity: 'tester',
      authorizations: [
        {permissions: ['subscribe', 'publish'], topic: 'allowed.*', channels: ['.*']},
      ],
    }))
  })
  await new Promise((resolve) => server.listen(Number(port), host, resolve))
  try {
    const options = {authSecret: 'sesame'}
    const topic = `allowed_${newTopic()}`
    const writer = await connectedWriter(options, NSQ_AUTH_TCP)
    await publish(writer, topic, 'secret')
    const [message] = await consume(topic, 1, options, undefined, NSQ_AUTH_TCP)
    assert.strictEqual(message.body, 'secret')
    writer.on('error', () => {})
    await assert.rejects(publish(writer, 'forbidden', 'x'), /E_UNAUTHORIZED/)
    writer.close()
  } finally {
    server.close()
  }
}

const checks = {
  'publish and consume': () => roundTrip({}),
  deflate: () => roundTrip({deflate: true}),
  snappy: () => roundTrip({snappy: true}),
  tls: () => roundTrip(TLS),
  'tls and deflate': () => roundTrip({...TLS, deflate: true}),
  'tls and snappy': () => roundTrip({...TLS, snappy: true}),
  authentication,

  'delayed publish': async () => {
    const topic = newTopic()
    const writer = await connectedWriter()
    const start = Date.now()
    await publish(writer, topic, 'later', 400)
    const [message] = await consume(topic, 1)
    assert.strictEqual(message.body, 'later')
    assert(message.at - start >= 400, `it came after ${message.at - start} ms`)
    writer.close()
  },

  'requeue counts attempts': async () => {
    const topic = newTopic()
    const writer = await connectedWriter()
    await publish(writer, topic, 'again')
    const again = (m) => (m.attempts < 4 ? m.requeue(0, false) : m.finish())
    const got = await consume(topic, 4, {}, again)
    assert.deepStrictEqual(got.map((m) => m.attempts), [1, 2, 3, 4])
    writer.close()
  },

  'timeout redelivers': async () => {
    const topic = newTopic()
    const writer = await connectedWriter()
    await publish(writer, topic, 'forgotten')
    const forget = (m) => m.attempts > 1 && m.finish()
    const got = await consume(topic, 2, {messageTimeout: 1000}, forget)
    assert.deepStrictEqual(got.map((m) => m.attempts), [1, 2])
    writer.close()
  },
}

async function main() {
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check()
      console.log(`ok ${name}`)
    } catch (error) {
      process.exitCode = 1
      console.error(error)
      console.log(`not ok ${name}: ${String(error.message).replace(/\s+/g, ' ')}`)
    }
  }
  // Readers that were closed keep timers.
  process.exit()
}

main()
