-- +goose Up

-- Whether attesting is stopped, for all appliances; see appliance/stop. It is read with the head: by each append under its lock, and by
-- each appliance twice a second.
ALTER TABLE log_head
	ADD COLUMN stopped         text   NOT NULL DEFAULT '',      -- JSON; '' where it never was
	ADD COLUMN stopped_version bigint NOT NULL DEFAULT 0;       -- goes up with each change of it
