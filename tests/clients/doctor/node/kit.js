// The common part of the client programs in Node; see ../python/kit.py.

const fs = require('fs')
const path = require('path')

const SECONDS = Number(process.env.SECONDS || 20)
const BEHAVIOUR = process.argv[2]
const end = Date.now() + SECONDS * 1000

const isOver = () => Date.now() >= end
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// Calls `act` until the time is over, with a pause of some milliseconds after each call.
async function every(ms, act) {
  while (!isOver()) {
    await act()
    if (ms) await sleep(ms)
  }
}

// Counts a message that came, or an answer.
let seen = 0
const saw = () => { seen += 1 }

async function untilOverAndSeen() {
  await sleep(Math.max(0, end - Date.now()))
  if (!seen) throw new Error('nothing came')
}

// The version of a package. Some packages do not export their package.json.
function version(name) {
  const file = path.join(process.env.NODE_PATH, name, 'package.json')
  return JSON.parse(fs.readFileSync(file)).version
}

// Plays the behaviour. Writes library and version into IDENTITY, to be compared with what the broker
// recognises.
async function main(library, version, behaviours) {
  if (process.env.IDENTITY) {
    fs.writeFileSync(process.env.IDENTITY, JSON.stringify({ library, version }))
  }
  try {
    await behaviours[BEHAVIOUR]()
    process.exit(0)
  } catch (problem) {
    console.error(problem)
    process.exit(1)
  }
}

module.exports = { BEHAVIOUR, sleep, every, saw, untilOverAndSeen, version, main }
