// Automatic persisted queries through the links of Apollo and of urql, which send the hash of a query first: node persisted.mjs URL
import assert from "node:assert/strict"
import { createHash } from "node:crypto"
import { ApolloClient, gql, HttpLink, InMemoryCache } from "@apollo/client/core"
import { PersistedQueryLink } from "@apollo/client/link/persisted-queries"
import { Client, fetchExchange } from "@urql/core"
import { persistedExchange } from "@urql/exchange-persisted"
import { reachOnly, run } from "./steps.mjs"

const [url] = process.argv.slice(2)
reachOnly(url)

const sha256 = text => createHash("sha256").update(text).digest("hex")
const page = n => `query Page { v2_transfers(args: { p_limit: ${n} }) { sort_order } }`

/** A fetch that notes of each request whether it has a query, a hash, and by which method. */
function noted(sent) {
  return (input, init) => {
    const parameters = init.method === "GET" ? Object.fromEntries(new URL(input).searchParams) : JSON.parse(init.body)
    sent.push([init.method, "query" in parameters ? "query" : "hash alone"].join(" "))
    return fetch(input, init)
  }
}

const steps = {}
for (const byGet of [false, true]) {
  const method = byGet ? "GET" : "POST"

  steps[`Apollo, hashes by ${method}: falls back to queries, and asks by hash no more`] = async () => {
    const sent = []
    const client = new ApolloClient({
      cache: new InMemoryCache(),
      link: new PersistedQueryLink({ sha256, useGETForHashedQueries: byGet }).concat(new HttpLink({ uri: url, fetch: noted(sent) })),
    })
    for (const n of [2, 3]) {
      const { data } = await client.query({ query: gql(page(n)) })
      assert.equal(data.v2_transfers.length, n)
    }
    assert.deepEqual(sent, [`${method} hash alone`, "POST query", "POST query"])
  }

  steps[`urql, hashes by ${method}: falls back to queries, and asks by hash no more`] = async () => {
    const sent = []
    const client = new Client({
      url, fetch: noted(sent), preferGetMethod: false,
      exchanges: [persistedExchange({ generateHash: async query => sha256(query), preferGetForPersistedQueries: byGet }), fetchExchange],
    })
    for (const n of [2, 3]) {
      const { data, error } = await client.query(page(n), {}).toPromise()
      assert.equal(error, undefined)
      assert.equal(data.v2_transfers.length, n)
    }
    assert.equal(sent[0], `${method} hash alone`)
    assert.deepEqual(sent.slice(1).map(request => request.split(" ").slice(1).join(" ")), ["query", "query"])
  }
}

await run(steps)
