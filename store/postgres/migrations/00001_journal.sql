-- Names are not qualified: the tables are in the schema that the owner's connection has as its first. Keys are compared byte by
-- byte (COLLATE "C"), so that no new version of the system's collations can break an index.

-- +goose Up

-- The one row of log_head is the sequencer: who holds its lock appends. It says how far the journal goes, and all that it takes to go on.
CREATE TABLE log_head (
	id           smallint    PRIMARY KEY DEFAULT 1 CHECK (id = 1),
	log          text        NOT NULL DEFAULT '',           -- name and hash of the log key; '' until the first appliance has come
	size         bigint      NOT NULL DEFAULT 0,
	edge         bytea       NOT NULL DEFAULT '',           -- the tree's right edge: 32 bytes for each bit that size has set
	last_time    timestamptz,                               -- of the newest record
	checkpoint   text        NOT NULL DEFAULT '',           -- the signed checkpoint of this size
	continued    bigint      NOT NULL DEFAULT 0,            -- how many events stand before record 0, each with which a log goes on as another
	generation   bigint      NOT NULL DEFAULT 0,            -- which hashes are this log's
	keys_version bigint      NOT NULL DEFAULT 0,            -- goes up with each change of api_keys
	appended_by  text        NOT NULL DEFAULT ''            -- the appliance that appended last
) WITH (fillfactor = 10);                                   -- a commit writes the row anew: on the same page, while that has room

INSERT INTO log_head DEFAULT VALUES;

-- The leaves. A leaf's place in the tree is its index + log_head.continued: when the journal goes on as another log, the event that says
-- so has index -1, the next such -2, and no row is written anew.
CREATE TABLE records (
	index           bigint      PRIMARY KEY,
	id              uuid        NOT NULL UNIQUE,            -- of the attestation or the event
	key_id          text        COLLATE "C",                -- API key; NULL for an event
	idempotency_key text        COLLATE "C",
	time            timestamptz NOT NULL,
	hash            bytea       NOT NULL,                   -- SHA-256(0x00 ‖ leaf)
	leaf            bytea       NOT NULL
);
CREATE INDEX records_key ON records (key_id, index);
CREATE UNIQUE INDEX records_idempotency ON records (key_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- The roots of complete tiles (C2SP tlog-tiles, 256 hashes): entry n of level l covers 256^l leaves. Level 0 is records.hash. The
-- log that is now has those of log_head.generation.
CREATE TABLE hashes (
	generation bigint   NOT NULL,
	level      smallint NOT NULL CHECK (level > 0),
	n          bigint   NOT NULL CHECK (n >= 0),
	hash       bytea    NOT NULL,
	PRIMARY KEY (generation, level, n)
);

CREATE TABLE api_keys (
	id        text        COLLATE "C" PRIMARY KEY,
	key       text        NOT NULL,                         -- JSON of what no other column has
	expires   timestamptz,
	revoked   timestamptz,
	last_used timestamptz                                   -- to about a minute
);

-- The appliances, for people who look at the cluster. Nothing depends on it.
CREATE TABLE members (
	name        text        PRIMARY KEY,
	version     text        NOT NULL,
	signer      text        NOT NULL,                       -- address of the attestor key
	size        bigint      NOT NULL,                       -- of the head that it saw last
	last_append timestamptz,
	last_seen   timestamptz NOT NULL                        -- by the database's clock
);
