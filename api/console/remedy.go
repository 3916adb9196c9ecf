package console

import "regexp"

// commands matches a command in a remedy. Remedies are sentences for people, and the command can be at any position.
var commands = regexp.MustCompile(`\b(?:` +
	`attestd (?:setup|reload|resume|doctor|restore|(?:log|replica|config|chain|hsm|store|key|quorum) [a-z]+)` +
	`|systemctl [a-z-]+(?: --now)? attestd(?:\.[a-z]+)?|systemctl enable --now [a-z-]+` +
	`|chmod [0-7]{4}|chown [\w-]+:|tar -C|psql` +
	`)(?: (?:--?[a-z-]+|'[^']*'|/[^\s,;:]*|[A-Z]+\b|[a-z0-9]{16}\b|token\.tar\.gz))*`)

// commandIn returns the command in a remedy, or "".
func commandIn(remedy string) string { return commands.FindString(remedy) }
