-- +goose Up

-- A migration that an older attestd must not write beside raises oldest_schema to its own number. Each transaction reads it.
--
-- The MAC of the API keys and of the stop state. Its key is derived from the log key, so that the owner of the database can change
-- neither; see store/postgres/mac.go.
ALTER TABLE log_head
	ADD COLUMN oldest_schema bigint NOT NULL DEFAULT 5,         -- the oldest version whose appliances may use this schema
	ADD COLUMN keys_digest bytea NOT NULL DEFAULT '',           -- SHA-256 over all API keys
	ADD COLUMN state_mac   bytea NOT NULL DEFAULT '';           -- HMAC-SHA-256; '' before an appliance has begun the journal
