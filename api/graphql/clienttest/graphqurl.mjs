// Downloads the schema with graphqurl's command, as .graphql and as .json, and queries with it: node graphqurl.mjs URL
import assert from "node:assert/strict"
import { execFile } from "node:child_process"
import { promisify } from "node:util"
import { buildClientSchema, buildSchema, isIntrospectionType, isSpecifiedScalarType, lexicographicSortSchema, printSchema } from "graphql"
import { run } from "./steps.mjs"

const [url] = process.argv.slice(2)
const command = new URL("node_modules/graphqurl/bin/run", import.meta.url).pathname

const gq = async (...args) =>
  (await promisify(execFile)(process.execPath, [command, url, ...args], { maxBuffer: 64 << 20, timeout: 60_000 })).stdout

let text
await run({
  "the schema downloads as .graphql": async () => {
    text = await gq("--introspect")
    const query = buildSchema(text).getQueryType()
    for (const field of ["v2_transfers", "v2_packets", "v1_packets", "v2_tokens", "v2_stats_count"]) {
      assert.ok(query.getFields()[field], `${field} is missing`)
    }
  },
  "and as .json, the same": async () => {
    const json = JSON.parse(await gq("--introspect", "--format", "json"))
    const schema = buildClientSchema(json.data ?? json)
    const types = schema => Object.values(schema.getTypeMap()).filter(type => !isIntrospectionType(type) && !isSpecifiedScalarType(type)).map(String).sort()
    assert.deepEqual(types(schema), types(buildSchema(text)))
    assert.ok(printSchema(lexicographicSortSchema(schema)).includes("v2_transfer_type"))
  },
  "a query with a variable answers": async () => {
    const out = await gq("-q", "query ($limit: Int!) @cached(ttl: 1) { v2_transfers(args: { p_limit: $limit }) { sort_order } }",
      "-j", JSON.stringify({ limit: 3 }))
    assert.equal(JSON.parse(out.slice(out.indexOf("{"))).data.v2_transfers.length, 3)
  },
})
