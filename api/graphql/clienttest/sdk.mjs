// Reads with the published SDK: its documents, its fragments, and its schemas on every row: node sdk.mjs URL
import assert from "node:assert/strict"
import { readFile } from "node:fs/promises"
import { reachOnly, run } from "./steps.mjs"

const [url] = process.argv.slice(2)

// The SDK takes the address from the environment, and caches in a browser's storage.
process.env.GRAPHQL_ENDPOINT = url
globalThis.localStorage = globalThis.sessionStorage = memoryStorage()
reachOnly(url)

const { Effect, Exit, Layer, Logger, LogLevel, ParseResult, Schema } = await import("effect")
const { buildClientSchema, buildSchema, getIntrospectionQuery, isInputObjectType, isObjectType, print } = await import("graphql")
const { GraphQLClient } = await import("graphql-request")
const sdk = name => import(`@unionlabs/sdk/${name}`)
const [transfers, details, packets, tokens, chains, statistics, channels, indexer, registry, quote, chainFragment, tokenFragment, tracesFragment] =
  await Promise.all([
    "schema/transfer-list", "schema/transfer-details", "schema/packet", "schema/token", "schema/chain", "schema/statistics",
    "schema/channel", "Indexer", "ChainRegistry", "graphql/unwrapped-quote-token",
    "graphql/fragments/ChainFragment", "graphql/fragments/TokenFragment", "graphql/fragments/TracesFragment",
  ].map(sdk))

const client = new GraphQLClient(url)
const chain = print(chainFragment.ChainFragment)
const token = print(tokenFragment.TokenFragment)
const traces = print(tracesFragment.TracesFragment)

/** Decodes as the SDK does, and names the row and member that it cannot decode. */
function decode(schema, value) {
  const result = Schema.decodeUnknownEither(schema, { errors: "all" })(value)
  if (result._tag === "Left") throw new Error(ParseResult.TreeFormatter.formatErrorSync(result.left).slice(0, 4000))
  return result.right
}

/** Decodes every row of `field`, and says how many there were; at least one. */
async function rows(schema, field, query, variables) {
  const data = await client.request(query, variables)
  const decoded = decode(schema, data[field])
  assert.ok(decoded.length > 0, `${field} has no rows`)
  return decoded
}

/**
 * Walks all of `field` to learn what its pages hold, and decodes every tenth of them and the first with a row in each
 * stage. `ask` asks for the page after a cursor.
 */
async function walk(schema, field, ask) {
  const pages = []
  const stages = new Set()
  for (let cursor = null; ;) {
    const { rows } = await client.request(
      `query ($cursor: String) { rows: ${field}(args: { p_sort_order: $cursor }) { sort_order status } }`, { cursor })
    const fresh = rows.filter(({ status }) => !stages.has(status))
    fresh.forEach(({ status }) => stages.add(status))
    pages.push({ cursor, interesting: fresh.length > 0 })
    if (rows.length < 100) break
    cursor = rows.at(-1).sort_order
  }
  for (const stage of ["SEND_PACKET", "PACKET_RECV", "WRITE_ACK", "PACKET_ACK", "TIMEOUT"]) {
    assert.ok(stages.has(stage), `nothing is in the stage ${stage}`)
  }
  let decoded = 0
  for (const [i, { cursor, interesting }] of pages.entries()) {
    if (interesting || i % 10 === 0) decoded += decode(schema, (await ask(cursor)).rows).length
  }
  return `${decoded} rows in ${stages.size} stages, of ${pages.length} pages`
}

const count = list => `${list.length} rows`

const transferMembers = `
  source_chain { universal_chain_id } destination_chain { universal_chain_id }
  sender_canonical receiver_canonical transfer_send_timestamp transfer_recv_timestamp packet_hash sort_order
  base_token base_amount quote_token quote_amount`
const packetMembers = `
  packet_hash channel_version data destination_chain_id destination_channel_id destination_client_id
  destination_connection_id destination_port_id destination_universal_chain_id packet_ack_block_hash packet_ack_height
  packet_ack_maker packet_ack_timestamp packet_ack_transaction_hash packet_recv_block_hash packet_recv_height
  packet_recv_maker packet_recv_maker_msg packet_recv_timestamp packet_recv_transaction_hash packet_send_block_hash
  packet_send_height packet_send_timestamp packet_send_transaction_hash sort_order source_channel_id source_client_id
  source_connection_id source_port_id source_universal_chain_id status timeout_height timeout_timestamp
  write_ack_block_hash write_ack_height write_ack_timestamp write_ack_transaction_hash decoded decoded_flattened
  acknowledgement traces { ...TracesFragment }`

/** The SDK's service, as an app provides it. */
const service = Layer.mergeAll(registry.ChainRegistry.Default, indexer.Indexer.Default)
  .pipe(Layer.provideMerge(Logger.minimumLogLevel(LogLevel.None)))
async function perform(effect) {
  const exit = await Effect.runPromiseExit(effect.pipe(Effect.provide(service)))
  if (Exit.isFailure(exit)) throw new Error(exit.cause.toString())
  return exit.value
}

await run({
  "TransferList decodes transfers in every stage": () =>
    walk(transfers.TransferList, "v2_transfers", cursor => client.request(
      `query TransferList($cursor: String, $order: ComparisonOp! = lt) @cached(ttl: 1) {
        rows: v2_transfers(args: { p_limit: 100, p_sort_order: $cursor, p_comparison: $order }) { ${transferMembers} }
      }`, { cursor })),

  "TransferDetails decodes transfers in every stage, with their traces": () =>
    walk(Schema.Array(details.TransferDetails), "v2_transfers", cursor => client.request(
      `query TransferDetails($cursor: String) {
        rows: v2_transfers(args: { p_limit: 100, p_sort_order: $cursor }) {
          ${transferMembers} sender_display receiver_display transfer_send_transaction_hash
          transfer_timeout_transaction_hash success traces { ...TracesFragment }
        }
      } ${traces}`, { cursor })),

  "TransferDetails decodes one transfer by its packet's hash": async () => {
    const [{ packet_hash }] = (await client.request("{ v2_transfers(args: { p_limit: 1 }) { packet_hash } }")).v2_transfers
    return count(await rows(Schema.Array(details.TransferDetails), "v2_transfers",
      `query TransferByPacketHash($packet_hash: String!) @cached(ttl: 1) {
        v2_transfers(args: { p_packet_hash: $packet_hash }) {
          ${transferMembers} sender_display receiver_display transfer_send_transaction_hash
          transfer_timeout_transaction_hash success traces { ...TracesFragment }
        }
      } ${traces}`, { packet_hash }))
  },

  "PacketDetails decodes packets in every stage": () =>
    walk(Schema.Array(packets.PacketDetails), "v2_packets", cursor => client.request(
      `query PacketDetails($cursor: String) {
        rows: v2_packets(args: { p_limit: 100, p_sort_order: $cursor }) { ${packetMembers} }
      } ${traces}`, { cursor })),

  "PacketList decodes packets": async () =>
    count(await rows(packets.PacketList, "v2_packets", `query PacketList {
      v2_packets(args: { p_limit: 100 }) {
        packet_hash channel_version destination_chain_id destination_channel_id destination_universal_chain_id
        source_channel_id source_universal_chain_id packet_send_timestamp packet_recv_timestamp packet_ack_timestamp
        sort_order status
      }
    }`)),

  "Tokens decodes every token, and those of each chain": async () => {
    const all = await rows(tokens.Tokens, "v2_tokens", `query Tokens { v2_tokens { ...TokenFragment } } ${token}`)
    const { v2_chains } = await client.request("{ v2_chains { universal_chain_id } }")
    let sum = 0
    for (const { universal_chain_id } of v2_chains) {
      const data = await client.request(
        `query QueryTokens($id: String!) @cached(ttl: 60) {
          v2_tokens(args: { p_universal_chain_id: $id }, order_by: { rank: asc_nulls_last }) { ...TokenFragment }
        } ${token}`, { id: universal_chain_id })
      sum += decode(tokens.Tokens, data.v2_tokens).length
    }
    assert.equal(sum, all.length, "the tokens of all chains")
    return count(all)
  },

  "Chains decodes every chain": async () =>
    count(await rows(chains.Chains, "v2_chains", `query Chains @cached(ttl: 60) { v2_chains { ...ChainFragment } } ${chain}`)),

  "Channels decodes the recommended channels": async () =>
    count(await rows(channels.Channels, "v2_channels", `query Channels @cached(ttl: 60) {
      v2_channels(args: { p_recommended: true }) {
        destination_channel_id destination_client_id destination_connection_id destination_port_id
        destination_universal_chain_id source_channel_id source_client_id source_connection_id source_port_id
        source_universal_chain_id tags fees { action fee }
      }
    }`)),

  "Statistics decodes the counts": async () => {
    const decoded = await rows(statistics.Statistics, "v2_stats_count", "query Statistics { v2_stats_count { name value } }")
    assert.deepEqual(decoded.map(({ name }) => name).sort(), ["total_packets", "total_transfers"])
    for (const { name, value } of decoded) assert.ok(value > 0, name)
  },

  "DailyTransfers decodes the days": async () =>
    count(await rows(statistics.DailyTransfers, "v2_stats_transfers_daily_count",
      "query Days { v2_stats_transfers_daily_count(args: { p_days_back: 60 }) { count day_date } }")),

  "ChainRegistry finds each chain by its id, and refuses an unknown one": async () => {
    const { v2_chains } = await client.request("{ v2_chains { universal_chain_id } }")
    for (const { universal_chain_id } of v2_chains) {
      const found = await perform(registry.ChainRegistry.byUniversalId(universal_chain_id))
      assert.equal(found.universal_chain_id, universal_chain_id)
    }
    await assert.rejects(perform(registry.ChainRegistry.byUniversalId("union.none-1")), /no such element/)
    return count(v2_chains)
  },

  "Indexer finds the packet that a transaction sent": async () => {
    const [{ packet_hash, transfer_send_transaction_hash: submissionTxHash }] =
      (await client.request("{ v2_transfers(args: { p_limit: 1 }) { packet_hash transfer_send_transaction_hash } }")).v2_transfers
    const found = await perform(Effect.flatMap(indexer.Indexer, service =>
      service.getPacketHashBySubmissionTxHash({ submissionTxHash })))
    const sent = (await client.request("query ($hash: String!) { v2_transfers(args: { p_transaction_hash: $hash }) { packet_hash } }",
      { hash: submissionTxHash })).v2_transfers.map(row => row.packet_hash)
    assert.ok(sent.includes(packet_hash) && sent.includes(found))
  },

  "its quote query finds what a wrapped token unwraps to": async () => {
    const { v2_tokens } = await client.request(`{ v2_tokens { denom universal_chain_id wrapping {
      unwrapped_denom destination_channel_id unwrapped_chain { universal_chain_id } } } }`)
    const wrapped = v2_tokens.find(({ wrapping }) => wrapping.length > 0)
    assert.ok(wrapped, "the data has no wrapped token")
    const [{ destination_channel_id, unwrapped_denom }] = wrapped.wrapping
    const find = sourceChannelId => perform(quote.graphqlQuoteTokenUnwrapQuery({
      baseToken: wrapped.denom, sourceChainId: wrapped.universal_chain_id, sourceChannelId,
    }))
    assert.equal((await find(destination_channel_id)).value, unwrapped_denom)
    assert.equal((await find(2_000_000_000))._tag, "None")
  },

  "our schema agrees with the one that the SDK was generated from": async () => {
    const hostedText = await readFile(new URL("node_modules/@unionlabs/sdk/src/generated/schema.graphql", import.meta.url), "utf8")
    const hosted = buildSchema(hostedText)
    const ours = buildClientSchema(await client.request(getIntrospectionQuery({
      descriptions: true, specifiedByUrl: true, directiveIsRepeatable: true, schemaDescription: true, inputValueDeprecation: true,
    })))
    // Answered only when proxying.
    const absent = /dashboard|v2_errors|v2_error_type/
    const differences = []
    for (const [name, type] of Object.entries(hosted.getTypeMap())) {
      if (name.startsWith("__") || absent.test(name) || !(isObjectType(type) || isInputObjectType(type))) continue
      const mine = ours.getType(name)
      if (!mine) {
        differences.push(`${name} is missing`)
        continue
      }
      for (const [field, { type: want, args }] of Object.entries(type.getFields())) {
        if (absent.test(field)) continue
        const found = mine.getFields()[field]
        // The type of p_comparison is wider here, and what has a default may be left out or null.
        const relaxed = text => `${text}`.replace(/^(ComparisonOp|v2_\w+_(?:args|bool_exp))!$/, "$1")
        if (!found) differences.push(`${name}.${field} is missing`)
        else if (field !== "p_comparison" && relaxed(found.type) !== relaxed(want)) {
          differences.push(`${name}.${field} is ${found.type}, not ${want}`)
        }
        for (const arg of args ?? []) {
          const given = found?.args.find(({ name }) => name === arg.name)
          if (!given) differences.push(`${name}.${field}(${arg.name}) is missing`)
          else if (relaxed(given.type) !== relaxed(arg.type)) differences.push(`${name}.${field}(${arg.name}) is ${given.type}, not ${arg.type}`)
        }
      }
    }
    assert.deepEqual(differences, [])
  },
})

function memoryStorage() {
  const kept = new Map()
  return {
    get length() { return kept.size },
    key: index => [...kept.keys()][index] ?? null,
    getItem: key => kept.get(key) ?? null,
    setItem: (key, value) => void kept.set(key, String(value)),
    removeItem: key => void kept.delete(key),
    clear: () => kept.clear(),
  }
}
