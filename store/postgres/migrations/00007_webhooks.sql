-- +goose Up

-- Webhooks. The definition has secrets and is encrypted; one appliance at a time delivers and writes the state.
CREATE TABLE webhooks (
	name       text        COLLATE "C" PRIMARY KEY,
	definition bytea       NOT NULL,                        -- AES-256-GCM, by a key derived from the log key
	state      bytea       NOT NULL                         -- JSON: the position in the journal, the events that wait, the newest deliveries
);

-- The appliance that delivers the webhooks.
CREATE TABLE webhook_holder (
	id       smallint    PRIMARY KEY CHECK (id = 1),
	instance text        NOT NULL,                          -- random, of the process
	until    timestamptz NOT NULL                           -- by the database's clock
);
INSERT INTO webhook_holder (id, instance, until) VALUES (1, '', '-infinity');
