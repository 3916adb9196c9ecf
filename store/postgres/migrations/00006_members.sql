-- +goose Up

-- What must be the same on each appliance, and the process that writes the row. An older appliance leaves these columns as they are.
ALTER TABLE members
	ADD COLUMN instance    text NOT NULL DEFAULT '',            -- random, of the process
	ADD COLUMN scheme      text NOT NULL DEFAULT '',            -- digest scheme, with its EIP-712 domain
	ADD COLUMN policy      text NOT NULL DEFAULT '',            -- SHA-256 of attestation.policy in effect; '' without
	ADD COLUMN screening   text NOT NULL DEFAULT '',            -- SHA-256 of attestation.screening_list in effect; '' without
	ADD COLUMN shared_seen timestamptz;                         -- when two processes last took turns to write the row
