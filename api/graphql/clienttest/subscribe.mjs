// Follows transfers and packets with graphql-sse: node subscribe.mjs URL. The test changes rows when this program prints
// a line that begins with "write ".
import assert from "node:assert/strict"
import { createClient } from "graphql-sse"
import { createInterface } from "node:readline"
import { run } from "./steps.mjs"

const [url] = process.argv.slice(2)
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const write = async status => {
  console.log(`write ${status}`)
  assert.equal((await answers.next()).value, "written")
}

const client = createClient({ url, retryAttempts: 0 })
const query = `subscription Follow($of: String) {
  v2_transfers(args: { p_addresses_canonical: ["0xaa"], p_packet_hash: $of }) { packet_hash status }
}`

await run({
  "a subscription has the current rows, then each change": async () => {
    const rows = client.iterate({ query })
    assert.deepEqual((await rows.next()).value, { data: { v2_transfers: [{ packet_hash: "0xab", status: "PACKET_SEND" }] } })
    for (const status of ["PACKET_RECV", "WRITE_ACK", "PACKET_ACK"]) {
      await write(status)
      assert.deepEqual((await rows.next()).value, { data: { v2_transfers: [{ packet_hash: "0xab", status }] } })
    }
    await rows.return()
  },
  "a query is one result": async () => {
    const results = []
    for await (const result of client.iterate({ query: "{ v2_transfers { packet_hash } }" })) results.push(result)
    assert.equal(results.length, 1)
    assert.equal(results[0].data.v2_transfers.length, 2)
  },
  "an invalid subscription is one result with errors": async () => {
    const results = []
    for await (const result of client.iterate({ query: "subscription { v2_chains { chain_id } }" })) results.push(result)
    assert.equal(results.length, 1)
    assert.equal(results[0].errors[0].extensions.code, "validation_failed")
  },
})
client.dispose()
process.exit()
