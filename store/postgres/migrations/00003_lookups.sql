-- +goose Up

-- What attestations are looked for by, beside their id: both NULL for an event.
ALTER TABLE records
	ADD COLUMN digest      bytea,                               -- the 32 bytes that were signed
	ADD COLUMN unspendable bytea;                               -- the unspendable address, 20 bytes

UPDATE records SET
	digest      = decode(substr(convert_from(leaf, 'UTF8')::jsonb ->> 'hash', 3), 'hex'),
	unspendable = decode(substr(convert_from(leaf, 'UTF8')::jsonb ->> 'unspendableAddress', 3), 'hex')
WHERE key_id IS NOT NULL;

CREATE INDEX records_digest ON records (digest, index);
CREATE INDEX records_unspendable ON records (unspendable, index);
CREATE INDEX records_events ON records (index) WHERE key_id IS NULL;
