package console

import "regexp"

// commands are how remedies name what is to be typed. They are sentences for people, in which a command may stand anywhere.
var commands = regexp.MustCompile(`\b(?:` +
	`attestd (?:setup|reload|resume|doctor|restore|(?:log|replica|config|chain|hsm|store|key) [a-z]+)` +
	`|systemctl [a-z-]+(?: --now)? attestd(?:\.[a-z]+)?|systemctl enable --now [a-z-]+` +
	`|chmod [0-7]{4}|chown [\w-]+:|tar -C|psql` +
	`)(?: (?:--?[a-z-]+|'[^']*'|/[^\s,;:]*|[A-Z]+\b|[a-z0-9]{16}\b|token\.tar\.gz))*`)

// commandIn is the command that a remedy names, "" where it names none.
func commandIn(remedy string) string { return commands.FindString(remedy) }
