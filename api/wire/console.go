package wire

import "time"

// RedactQuery is the query parameter that removes addresses from the answers of GET /log/records, GET /log/records/{id}
// and GET /log/records/{id}/proof: redact=addresses.
const RedactQuery = "redact"

// ConsoleRole is the body of POST /console/links.
type ConsoleRole struct {
	Role string `json:"role"` // viewer, auditor or operator
}

// ConsoleLink is the answer of POST /console/links. The link opens the console once.
type ConsoleLink struct {
	URL     string    `json:"url"`
	Role    string    `json:"role"`
	Expires time.Time `json:"expires"`
}

// Settings is the answer of GET /settings, in the order of the documentation.
type Settings struct {
	Settings []Setting `json:"settings"`
}

// Setting is a value in effect. Secrets are not shown.
type Setting struct {
	Name    string `json:"name"`
	Value   any    `json:"value"`   // as written in the configuration file
	Source  string `json:"source"`  // default, file, environment or flag
	Restart bool   `json:"restart"` // whether a change needs a restart; otherwise 'attestd reload' is enough
	// Waiting means that the configuration already has another value, which takes effect at the next start.
	Waiting bool   `json:"waiting,omitempty"`
	Doc     string `json:"doc"`
}
