// Reads stakes with the published SDK's Staking service, and with the six staking documents of the app: node staking.mjs URL
import assert from "node:assert/strict"
import { reachOnly, run } from "./steps.mjs"

const [url] = process.argv.slice(2)
process.env.GRAPHQL_ENDPOINT = url
globalThis.localStorage = globalThis.sessionStorage = { length: 0, key: () => null, getItem: () => null, setItem() {}, removeItem() {}, clear() {} }
reachOnly(url)

const { Effect, Exit, Layer, Logger, LogLevel, ParseResult, Schema } = await import("effect")
const { GraphQLClient } = await import("graphql-request")
const [Staking, ucs05, packets, indexer] =
  await Promise.all(["Staking", "Ucs05", "schema/packet", "Indexer"].map(name => import(`@unionlabs/sdk/${name}`)))

const client = new GraphQLClient(url)
const service = Layer.provideMerge(Staking.Staking.Default, indexer.Indexer.Default)
  .pipe(Layer.provideMerge(Logger.minimumLogLevel(LogLevel.None)))

const queries = {
  v2_bonds: { method: "getBonds", request: Staking.GetBonds },
  v2_unbonds: { method: "getUnbonds", request: Staking.GetUnbonds },
  v2_withdraws: { method: "getWithdrawals", request: Staking.GetWithdrawals },
  v2_dust_withdraws: { method: "getDustWithdrawals", request: Staking.GetDustWithdrawals },
}

/** All rows of a query, of which there must be some in each of the states. */
async function all(query, state, wanted) {
  const rows = []
  for (let cursor = null; ;) {
    const page = await client.request(
      `query ($cursor: String) { rows: ${query}(args: { p_limit: 50, p_sort_order: $cursor }) { packet_hash staker_canonical sort_order state: ${state} } }`, { cursor })
    rows.push(...page.rows)
    if (page.rows.length < 50) break
    cursor = page.rows.at(-1).sort_order
  }
  for (const one of wanted) assert.ok(rows.some(row => row.state === one), `${query}: none whose ${state} is ${one}`)
  assert.deepEqual(rows.map(row => row.sort_order), rows.map(row => row.sort_order).sort().reverse(), "the order of pages")
  return rows
}

/** What the service says of an address; every row of it must decode. */
async function ask(query, address) {
  const { method, request } = queries[query]
  const addresses = Schema.decodeUnknownSync(Schema.Array(ucs05.AnyDisplayFromString))([address])
  const exit = await Effect.runPromiseExit(Effect.flatMap(Staking.Staking, staking => staking[method](new request({ addresses })))
    .pipe(Effect.provide(service)))
  if (Exit.isFailure(exit)) {
    const cause = exit.cause.error?.cause
    throw new Error(cause && ParseResult.isParseError(cause) ? ParseResult.TreeFormatter.formatErrorSync(cause).slice(0, 4000) : exit.cause.toString())
  }
  return exit.value._tag === "None" ? [] : exit.value.value
}

async function decodes(query, state, wanted) {
  const rows = await all(query, state, wanted)
  const stakers = new Set(rows.map(row => row.staker_canonical))
  let decoded = 0
  for (const staker of stakers) {
    const found = await ask(query, staker)
    const expected = rows.filter(row => row.staker_canonical === staker).slice(0, 100)
    assert.deepEqual(found.map(row => row.packet_hash), expected.map(row => row.packet_hash))
    decoded += found.length
  }
  assert.deepEqual(await ask(query, "0x000000000000000000000000000000000000dEaD"), [])
  return `${decoded} rows of ${stakers.size} stakers`
}

const forms = who => `${who}_canonical ${who}_display ${who}_zkgm`
const steps = of => ["send", "recv", "timeout"].map(step => `${of}_${step}_timestamp ${of}_${step}_transaction_hash`).join(" ")
const ends = `source_chain { chain_id universal_chain_id display_name rpc_type } destination_chain { chain_id universal_chain_id display_name rpc_type } sort_order`

/** The app's documents by packet hash: what they select, and what of it must be there. */
const byPacketHash = {
  v2_bonds: ["GetBondByPacketHash", `packet_hash delivery_packet_hash bond_success delivery_success packet_shape source_universal_chain_id
    remote_universal_chain_id destination_universal_chain_id ${forms("sender")} ${forms("receiver")} base_token base_amount quote_token quote_amount
    remote_base_token remote_base_amount remote_quote_token remote_quote_amount ${steps("bond")} ${steps("delivery")} ${ends}`,
    /^(delivery_.*|bond_success|bond_(recv|timeout)_.*)$/],
  v2_unbonds: ["GetUnbondByPacketHash", `packet_hash success packet_shape source_universal_chain_id destination_universal_chain_id ${forms("sender")}
    base_token base_amount ${steps("unbond")} ${ends}`, /^(success|unbond_(recv|timeout)_.*)$/],
  v2_withdraws: ["GetWithdrawalByPacketHash", `packet_hash withdraw_success delivery_success packet_shape source_universal_chain_id
    destination_universal_chain_id ${forms("staker")} quote_token quote_amount ${steps("withdraw")} ${ends}`,
    /^(withdraw_success|delivery_success|withdraw_(recv|timeout)_.*)$/],
  v2_dust_withdraws: ["GetDustWithdrawalByPacketHash", `packet_hash delivery_packet_hash dust_withdraw_success delivery_success packet_shape
    source_universal_chain_id destination_universal_chain_id ${forms("staker")} quote_token quote_amount ${steps("dust_withdraw")} ${steps("delivery")} ${ends}`,
    /^(delivery_.*|dust_withdraw_success|dust_withdraw_(recv|timeout)_.*)$/],
}

async function shows(query) {
  const [name, selected, mayBeNull] = byPacketHash[query]
  const { rows } = await client.request(`{ rows: ${query} { packet_hash } }`)
  for (const { packet_hash } of rows) {
    const data = await client.request(
      `query ${name}($packet_hash: String!) @cached(ttl: 10) { ${query}(args: { p_packet_hash: $packet_hash }) { ${selected} } }`, { packet_hash })
    assert.equal(data[query].length, 1)
    for (const [field, value] of Object.entries(data[query][0])) {
      if (value === null) assert.match(field, mayBeNull, `${query} of ${packet_hash}`)
    }
  }
  const none = await client.request(`query ($packet_hash: String!) { ${query}(args: { p_packet_hash: $packet_hash }) { packet_hash } }`,
    { packet_hash: "0x" + "0".repeat(64) })
  assert.deepEqual(none[query], [])
  return `${rows.length} rows`
}

/** The app asks for the packet of a transaction until there is one. */
async function findsByTransaction(name, query, sent) {
  const { rows } = await client.request(`{ rows: ${query} { packet_hash sent: ${sent} } }`)
  const decode = Schema.decodeUnknownSync(Schema.NonEmptyArray(Schema.Struct({ packet_hash: packets.PacketHash })))
  for (const row of rows) {
    const data = await client.request(`query ${name}($tx_hash: String!) @cached(ttl: 10) { ${query}(args: { p_transaction_hash: $tx_hash }) { packet_hash } }`,
      { tx_hash: row.sent })
    assert.ok(decode(data[query]).some(found => found.packet_hash === row.packet_hash))
  }
  return `${rows.length} transactions`
}

await run({
  "GetBondsByAddress decodes all bonds": () => decodes("v2_bonds", "delivery_success", [true, null]),
  "GetUnbondsByAddress decodes all unbonds": () => decodes("v2_unbonds", "success", [true]),
  "GetWithdrawalsByAddress decodes all withdrawals": () => decodes("v2_withdraws", "withdraw_success", [true]),
  "GetDustWithdrawalsByAddress decodes all dust withdrawals": () => decodes("v2_dust_withdraws", "dust_withdraw_success", [true]),
  "GetBondByPacketHash shows each bond": () => shows("v2_bonds"),
  "GetUnbondByPacketHash shows each unbond": () => shows("v2_unbonds"),
  "GetWithdrawalByPacketHash shows each withdrawal": () => shows("v2_withdraws"),
  "GetDustWithdrawalByPacketHash shows each dust withdrawal": () => shows("v2_dust_withdraws"),
  "GetBondByTxHash finds each bond": () => findsByTransaction("GetBondByTxHash", "v2_bonds", "bond_send_transaction_hash"),
  "GetUnbondByTxHash finds each unbond": () => findsByTransaction("GetUnbondByTxHash", "v2_unbonds", "unbond_send_transaction_hash"),
})
