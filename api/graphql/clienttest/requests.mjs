// The queries of the interface document through graphql-request and urql, with the arguments written each way that
// clients write them: node requests.mjs URL
import assert from "node:assert/strict"
import { cacheExchange, Client, fetchExchange } from "@urql/core"
import { ClientError, GraphQLClient } from "graphql-request"
import { reachOnly, run } from "./steps.mjs"

const [url] = process.argv.slice(2)
reachOnly(url)

const plain = new GraphQLClient(url)
const urql = new Client({ url, exchanges: [cacheExchange, fetchExchange], preferGetMethod: false })
const urqlByGet = new Client({ url, exchanges: [fetchExchange], preferGetMethod: "force" })
const byUrql = client => async (query, variables) => {
  const { data, error } = await client.query(query, variables ?? {}).toPromise()
  if (error) throw error
  return data
}
const bare = value => JSON.parse(JSON.stringify(value, (name, member) => (name === "__typename" ? undefined : member)))

const clients = {
  "graphql-request": (query, variables) => plain.request(query, variables),
  urql: byUrql(urql),
  "urql by GET": byUrql(urqlByGet),
}

const steps = {}
for (const [client, ask] of Object.entries(clients)) {
  const step = (name, body) => (steps[`${client}: ${name}`] = body)
  const orders = list => list.map(({ sort_order }) => sort_order)

  step("transfers, as the document shows them", async () => {
    const { v2_transfers } = await ask(`query Transfers @cached(ttl: 1) {
      v2_transfers(args: { p_limit: 10 }) {
        sender_canonical receiver_canonical base_amount
        base_token_meta { denom representations { name symbol decimals } }
        source_universal_chain_id destination_universal_chain_id sort_order
      }
    }`)
    assert.equal(v2_transfers.length, 10)
    for (const { sort_order, base_amount } of v2_transfers) {
      assert.equal(typeof sort_order, "string")
      assert.match(base_amount, /^\d+$/)
    }
  })

  step("next and previous page, in every way to write the direction", async () => {
    const page = await ask("{ v2_transfers(args: { p_limit: 6 }) { sort_order } }")
    const [, , third, ...after] = orders(page.v2_transfers)
    const before = orders(page.v2_transfers).slice(0, 2)
    const next = after.slice(0, 2)
    const written = {
      string: d => [`query ($c: String!) { v2_transfers(args: { p_limit: 2, p_sort_order: $c, p_comparison: "${d}" }) { sort_order } }`],
      bare: d => [`query ($c: String!) { v2_transfers(args: { p_limit: 2, p_sort_order: $c, p_comparison: ${d} }) { sort_order } }`],
      ...Object.fromEntries(["String", "String!", "ComparisonOp", "ComparisonOp!"].map(type => [type, d => [
        `query ($c: String, $d: ${type}) { v2_transfers(args: { p_limit: 2, p_sort_order: $c, p_comparison: $d }) { sort_order } }`,
        { d },
      ]])),
      args: d => ["query ($args: v2_transfers_args) { v2_transfers(args: $args) { sort_order } }",
        c => ({ args: { p_limit: 2, p_sort_order: c, p_comparison: d } })],
      "args!": d => ["query ($args: v2_transfers_args!) { v2_transfers(args: $args) { sort_order } }",
        c => ({ args: { p_limit: 2, p_sort_order: c, p_comparison: d } })],
    }
    for (const [way, write] of Object.entries(written)) {
      for (const [direction, want] of [["lt", next], ["gt", [...before].reverse()]]) {
        const [query, more] = write(direction)
        const variables = typeof more === "function" ? more(third) : { c: third, ...more }
        const { v2_transfers } = await ask(query, variables)
        assert.deepEqual(orders(v2_transfers), want, `${way} ${direction}`)
      }
    }
  })

  step("transfers of an address, in every way to write the list", async () => {
    const { v2_transfers: [{ sender_canonical: address }] } = await ask("{ v2_transfers(args: { p_limit: 1 }) { sender_canonical } }")
    const members = "{ sender_canonical receiver_canonical sort_order }"
    const asked = [
      [`{ v2_transfers(args: { p_limit: 5, p_addresses_canonical: ["${address}"] }) ${members} }`],
      ...["jsonb", "jsonb!", "[String!]", "[String]", "[String!]!"].map(type => [
        `query ($a: ${type}) { v2_transfers(args: { p_limit: 5, p_addresses_canonical: $a }) ${members} }`, { a: [address] },
      ]),
    ]
    let first
    for (const [query, variables] of asked) {
      const { v2_transfers } = bare(await ask(query, variables))
      assert.ok(v2_transfers.length > 0, query)
      for (const row of v2_transfers) assert.ok([row.sender_canonical, row.receiver_canonical].includes(address))
      assert.deepEqual(v2_transfers, first ??= v2_transfers)
    }
  })

  step("packets with traces by transaction hash", async () => {
    const { v2_transfers: [{ transfer_send_transaction_hash: hash }] } =
      await ask("{ v2_transfers(args: { p_limit: 1 }) { transfer_send_transaction_hash } }")
    const { v2_packets } = await ask(`query ($hash: String!) @cached(ttl: 1) {
      v2_packets(args: { p_transaction_hash: $hash }) {
        source_universal_chain_id destination_universal_chain_id data decoded sort_order
        traces { type universal_chain_id transaction_hash height timestamp }
      }
    }`, { hash })
    assert.ok(v2_packets.length > 0)
    for (const { traces } of v2_packets) {
      assert.equal(traces[0].type, "SEND_PACKET")
      assert.equal(traces[0].transaction_hash, hash)
    }
  })

  step("a filter with a page", async () => {
    const { v2_transfers: [{ source_universal_chain_id: chain }] } =
      await ask("{ v2_transfers(args: { p_limit: 1 }) { source_universal_chain_id } }")
    const query = `query ($chain: String!, $cursor: String) {
      v2_transfers(args: { p_limit: 3, p_source_universal_chain_id: $chain, p_sort_order: $cursor }) { source_universal_chain_id sort_order }
    }`
    const { v2_transfers: first } = await ask(query, { chain })
    const { v2_transfers: second } = await ask(query, { chain, cursor: first.at(-1).sort_order })
    for (const row of [...first, ...second]) assert.equal(row.source_universal_chain_id, chain)
    assert.equal(new Set(orders([...first, ...second])).size, first.length + second.length)
  })

  step("tokens by chain", async () => {
    const { v2_tokens: [{ universal_chain_id: chain }] } = await ask("{ v2_tokens { universal_chain_id } }")
    const { v2_tokens } = await ask(`query Tokens($chain: String!) @cached(ttl: 60) {
      v2_tokens(args: { p_universal_chain_id: $chain }) { denom universal_chain_id representations { decimals name symbol } }
    }`, { chain })
    assert.ok(v2_tokens.length > 0)
    for (const token of v2_tokens) assert.equal(token.universal_chain_id, chain)
  })

  step("counts", async () => {
    const { v2_stats_count } = await ask("query Stats @cached(ttl: 1) { v2_stats_count { name value } }")
    assert.deepEqual(v2_stats_count.map(({ name }) => name).sort(), ["total_packets", "total_transfers"])
  })

  step("a where on the top level is accepted and does not filter", async () => {
    const { v2_transfers } = await ask(`{ v2_transfers(args: { p_limit: 3 }, where: { packet_hash: { _eq: "0x00" } }) { sort_order } }`)
    assert.equal(v2_transfers.length, 3)
  })
}

steps["@cached: equal queries share one answer, whatever the order of their variables"] = async () => {
  const query = "query Shared($limit: Int, $chain: String) @cached(ttl: 30) { v2_transfers(args: { p_limit: $limit, p_source_universal_chain_id: $chain }) { sort_order } }"
  const ask = async variables => {
    const response = await fetch(url, {
      method: "POST", headers: { "content-type": "application/json" },
      body: `{"query":${JSON.stringify(query)},"operationName":"Shared","variables":${variables}}`,
    })
    return { control: response.headers.get("cache-control"), age: response.headers.get("age"), body: await response.text() }
  }
  const first = await ask('{"limit":7,"chain":null}')
  const second = await ask('{"chain":null,"limit":7}')
  assert.match(first.control, /max-age=\d+/)
  assert.notEqual(second.age, null)
  assert.equal(second.body, first.body)
}

steps["an error reaches graphql-request as one, with path, location and code"] = async () => {
  const error = await plain.request("{ v2_transfers(args: { p_limit: 0 }) { sort_order } }").catch(error => error)
  assert.ok(error instanceof ClientError, String(error))
  const [{ message, locations, path, extensions }] = error.response.errors
  assert.ok(message && locations?.length && path?.[0] === "v2_transfers" && extensions?.code, JSON.stringify(error.response.errors))
}

steps["an error reaches urql as one"] = async () => {
  const { error } = await urql.query("{ no_such_field }", {}).toPromise()
  assert.ok(error?.graphQLErrors.length === 1, String(error))
}

await run(steps)
