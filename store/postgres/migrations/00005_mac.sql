-- +goose Up

-- The API keys and whether attesting is stopped are in no tree. A MAC under a secret that only the appliances have covers both, so that
-- whoever may write the database cannot change them; see store/postgres/mac.go.
ALTER TABLE log_head
	ADD COLUMN keys_digest bytea NOT NULL DEFAULT '',           -- SHA-256 over all API keys
	ADD COLUMN state_mac   bytea NOT NULL DEFAULT '';           -- HMAC-SHA-256; '' before an appliance has begun the journal
