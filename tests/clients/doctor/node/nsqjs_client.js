// nsqjs: a reader that takes one message at a time, one that works for too long, a writer over a full
// link, and a good one.

const nsq = require('nsqjs')
const kit = require('./kit')

const body = 'v'.repeat(200)

async function writer(clientId) {
  const [host, port] = process.env.CLOVERLEAF_NSQD.split(':')
  const writer = new nsq.Writer(host, Number(port), { clientId })
  await new Promise((resolve, reject) => {
    writer.on('ready', resolve)
    writer.on('error', reject)
    writer.connect()
  })
  return writer
}

// Finishes each message, after some milliseconds.
function read(topic, options, workMs = 0) {
  const nsqdTCPAddresses = [process.env.CLOVERLEAF_NSQD]
  const settings = { nsqdTCPAddresses, clientId: kit.BEHAVIOUR, ...options }
  const reader = new nsq.Reader(topic, 'channel', settings)
  reader.on('message', async (message) => {
    if (workMs) await kit.sleep(workMs)
    kit.saw()
    message.finish()
  })
  // A message that was requeued after its deadline cannot be finished.
  reader.on('error', () => {})
  reader.connect()
}

// Reads a backlog of messages.
async function drain(topic, messages, options, workMs) {
  (await writer('feeder')).publish(topic, Array(messages).fill(body))
  read(topic, options, workMs)
  await kit.untilOverAndSeen()
}

// JSON with the same field names in each message, and other values.
function text(number) {
  let text = ''
  while (text.length < 1000) {
    const value = Math.floor(Math.random() * 1e9)
    text += `{"order":${number},"customer":"c-${value % 1e6}","amount":${value % 977},"currency":"EUR","state":"paid"}`
  }
  return text
}

// Keeps 500 messages in flight, which is more than the connection takes.
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
  const publisher = await writer(kit.BEHAVIOUR)
  read('good-nsqjs', { maxInFlight: 20 })
  await kit.every(7, () => publisher.publish('good-nsqjs', body))
  await kit.untilOverAndSeen()
}

kit.main('nsqjs', kit.version('nsqjs'), {
  'window-too-small': () => drain('nsqjs', 5000),
  // Half a second more than the least deadline that a client may ask for.
  'ack-deadline': () => drain('nsqjs-slow', 20, { messageTimeout: 1000 }, 1500),
  'no-compression': noCompression,
  good
})
