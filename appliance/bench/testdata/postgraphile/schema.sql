-- The tables that answer the queries of BenchmarkReads, with an index for each.
CREATE TABLE token (
  universal_chain_id text COLLATE "C",
  denom text COLLATE "C",
  PRIMARY KEY (universal_chain_id, denom)
);
CREATE TABLE representation (
  universal_chain_id text COLLATE "C",
  denom text COLLATE "C",
  at int,
  name text,
  symbol text,
  decimals int,
  PRIMARY KEY (universal_chain_id, denom, at),
  FOREIGN KEY (universal_chain_id, denom) REFERENCES token
);
CREATE TABLE transfer (
  sort_order text COLLATE "C" PRIMARY KEY,
  packet_hash text COLLATE "C" NOT NULL,
  source_universal_chain_id text COLLATE "C" NOT NULL,
  destination_universal_chain_id text COLLATE "C" NOT NULL,
  sender_canonical text COLLATE "C",
  receiver_canonical text COLLATE "C",
  base_token text COLLATE "C",
  base_token_symbol text,
  base_amount text,
  transaction_hash text COLLATE "C"
);
CREATE TABLE trace (
  packet_hash text COLLATE "C",
  at int,
  type text,
  universal_chain_id text,
  transaction_hash text,
  height text,
  timestamp timestamptz,
  PRIMARY KEY (packet_hash, at)
);
CREATE INDEX ON transfer (sender_canonical, sort_order);
CREATE INDEX ON transfer (receiver_canonical, sort_order);
CREATE INDEX ON transfer (transaction_hash, sort_order);

CREATE FUNCTION transfer_base_token_meta(t transfer) RETURNS token STABLE LANGUAGE sql AS $$
  SELECT * FROM token WHERE universal_chain_id = t.source_universal_chain_id AND denom = t.base_token
$$;
CREATE FUNCTION transfer_traces(t transfer) RETURNS SETOF trace STABLE LANGUAGE sql AS $$
  SELECT * FROM trace WHERE packet_hash = t.packet_hash ORDER BY at
$$;
-- the pages that order and condition of a table cannot express
CREATE FUNCTION transfers_before(cursor text) RETURNS SETOF transfer STABLE LANGUAGE sql AS $$
  SELECT * FROM transfer WHERE sort_order < cursor COLLATE "C" ORDER BY sort_order DESC
$$;
CREATE FUNCTION transfers_of(address text) RETURNS SETOF transfer STABLE LANGUAGE sql AS $$
  SELECT * FROM (
    (SELECT * FROM transfer WHERE sender_canonical = address COLLATE "C" ORDER BY sort_order DESC LIMIT 20)
    UNION
    (SELECT * FROM transfer WHERE receiver_canonical = address COLLATE "C" ORDER BY sort_order DESC LIMIT 20)
  ) AS both_sides ORDER BY sort_order DESC LIMIT 20
$$;
