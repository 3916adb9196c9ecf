package wire

import "time"

// RedactQuery is the parameter of GET /log/records, GET /log/records/{id} and its /proof that leaves out what links addresses: redact=addresses.
const RedactQuery = "redact"

// ConsoleRole is the body of POST /console/links.
type ConsoleRole struct {
	Role string `json:"role"` // viewer, auditor or operator
}

// ConsoleLink is the answer of POST /console/links: it opens the console once.
type ConsoleLink struct {
	URL     string    `json:"url"`
	Role    string    `json:"role"`
	Expires time.Time `json:"expires"`
}

// Settings is the answer of GET /settings, in the order in which they are documented.
type Settings struct {
	Settings []Setting `json:"settings"`
}

// Setting is a value that is in effect. Secrets are not told.
type Setting struct {
	Name    string `json:"name"`
	Value   any    `json:"value"`             // as it would be written in the file
	Source  string `json:"source"`            // default, file, environment or flag
	Restart bool   `json:"restart"`           // whether a change takes a restart, or 'attestd reload' is enough
	Waiting bool   `json:"waiting,omitempty"` // the configuration has another value by now, which takes effect with the next start
	Doc     string `json:"doc"`
}
