// The playground opens with one tab for each of these. Every query runs unchanged.
const transfers = `# Transfers, newest first. Ctrl-Enter runs the query.
# Next page: the last row's sort_order as "cursor".
# The book on the left has every field and filter.
query Transfers(
  $limit: Int
  $cursor: String
) @cached(ttl: 1) {
  v2_transfers(
    args: {
      p_limit: $limit
      p_sort_order: $cursor
      p_comparison: "lt"
    }
  ) {
    sender_canonical
    receiver_canonical
    base_amount
    base_token_meta {
      denom
      representations {
        name
        symbol
        decimals
      }
    }
    source_universal_chain_id
    destination_universal_chain_id
    transfer_send_timestamp
    transfer_send_transaction_hash
    sort_order
  }
}
`

const packets = `# Packets, with traces: how far each has come.
# For all packets of one transaction: put a transfer's
# transfer_send_transaction_hash into "transaction".
query PacketTraces(
  $transaction: String
) @cached(ttl: 1) {
  v2_packets(
    args: {
      p_limit: 3
      p_transaction_hash: $transaction
    }
  ) {
    source_universal_chain_id
    destination_universal_chain_id
    status
    decoded
    traces {
      type
      universal_chain_id
      transaction_hash
      height
      timestamp
    }
    sort_order
  }
}
`

const tokens = `# The tokens of all chains, or of one: put its
# id into "chain" below, as "union.union-1".
query Tokens($chain: String) @cached(ttl: 60) {
  v2_tokens(
    args: { p_universal_chain_id: $chain }
  ) {
    denom
    universal_chain_id
    representations {
      name
      symbol
      decimals
    }
  }
}
`

const counts = `query Counts @cached(ttl: 5) {
  v2_stats_count {
    name
    value
  }
  v2_stats_transfers_daily_count(
    args: { p_days_back: 7 }
  ) {
    day_date
    count
  }
}
`

const variables = members => JSON.stringify(members, null, 2)

export const examples = [
  { query: transfers, variables: variables({ limit: 10, cursor: null }) },
  { query: packets, variables: variables({ transaction: null }) },
  { query: tokens, variables: variables({ chain: null }) },
  { query: counts, variables: variables({}) },
]
