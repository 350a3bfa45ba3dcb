// nsqjs: a reader that takes one message at a time, one that works for too long, a writer over a full
// link, and a good one.

const nsq = require('nsqjs')
const kit = require('./kit')

const [host, port] = process.env.CLOVERLEAF_NSQD.split(':')
const body = 'v'.repeat(200)

function ready(writer) {
  return new Promise((resolve, reject) => {
    writer.on('ready', resolve)
    writer.on('error', reject)
    writer.connect()
  })
}

async function writer(clientId) {
  const writer = new nsq.Writer(host, Number(port), { clientId })
  await ready(writer)
  return writer
}

function reader(topic, options, handle) {
  const reader = new nsq.Reader(topic, 'channel', {
    nsqdTCPAddresses: [process.env.CLOVERLEAF_NSQD],
    ...options
  })
  reader.on('message', handle)
  // A message that has gone to somebody else cannot be finished.
  reader.on('error', () => {})
  reader.connect()
  return reader
}

async function windowTooSmall() {
  const feeder = await writer('feeder')
  feeder.publish('nsqjs', Array(5000).fill(body))
  reader('nsqjs', { clientId: kit.BEHAVIOUR }, (message) => { kit.saw(); message.finish() })
  await kit.untilOverAndSeen()
}

// Half a second more than the least deadline that a client may ask for.
async function ackDeadline() {
  const feeder = await writer('feeder')
  feeder.publish('nsqjs-slow', Array(20).fill(body))
  reader('nsqjs-slow', { clientId: kit.BEHAVIOUR, messageTimeout: 1000 }, async (message) => {
    await kit.sleep(1500)
    kit.saw()
    message.finish()
  })
  await kit.untilOverAndSeen()
}

// What programs send each other: the same names in each, with other values.
function text(number) {
  let text = ''
  while (text.length < 1000) {
    const value = Math.floor(Math.random() * 1e9)
    text += `{"order":${number},"customer":"c-${value % 1e6}","amount":${value % 977},"currency":"EUR","state":"paid"}`
  }
  return text
}

// As much as the connection takes; so many at a time, for the program's own sake.
async function noCompression() {
  const publisher = await writer(kit.BEHAVIOUR)
  const send = (number) => publisher.publish('nsqjs-text', text(number), (problem) => {
    if (problem) throw problem
    kit.saw()
    send(number + 1)
  })
  for (let i = 0; i < 500; i++) send(i)
  await kit.untilOverAndSeen()
}

async function good() {
  const publisher = await writer('good')
  reader('good-nsqjs', { maxInFlight: 20, clientId: 'good' }, (message) => {
    kit.saw()
    message.finish()
  })
  while (!kit.isOver()) {
    publisher.publish('good-nsqjs', body)
    await kit.sleep(7)
  }
  await kit.untilOverAndSeen()
}

kit.say('nsqjs', kit.version('nsqjs'))
kit.main({
  'window-too-small': windowTooSmall,
  'ack-deadline': ackDeadline,
  'no-compression': noCompression,
  good
})
