-- +goose Up

-- The buckets of API keys' rates, which all appliances draw from: they hold time, as in the generic cell rate algorithm. What was taken is
-- earned by then; a bucket is full when that is past.
CREATE TABLE rates (
	key_id text        COLLATE "C" PRIMARY KEY,             -- API key
	paid   timestamptz NOT NULL                             -- by the database's clock
) WITH (fillfactor = 50);
