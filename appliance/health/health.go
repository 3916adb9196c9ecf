// Package health rates the parts of an appliance. 'attestd status', 'attestd doctor', the console and the metrics show
// the same findings with the same severity, because all of them come from the functions of this package.
package health

import "fmt"

// State is the severity of a finding.
type State string

// The states, from good to bad.
const (
	OK   State = "ok"
	Warn State = "warn"
	Fail State = "fail"
)

// Finding is one result of a check. A check may have several.
type Finding struct {
	Check  string `json:"check"`
	State  State  `json:"state"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"` // empty if State is OK
}

// Good returns a finding without a fault.
func Good(format string, args ...any) Finding {
	return Finding{State: OK, Detail: fmt.Sprintf(format, args...)}
}

// Warning returns a finding with State Warn.
func Warning(remedy, format string, args ...any) Finding {
	return Finding{State: Warn, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Failure returns a finding with State Fail.
func Failure(remedy, format string, args ...any) Finding {
	return Finding{State: Fail, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Named sets the check of each finding, and returns the findings.
func Named(check string, findings ...Finding) []Finding {
	for i := range findings {
		findings[i].Check = check
	}
	return findings
}

// Of returns the findings of one check.
func Of(all []Finding, check string) (found []Finding) {
	for _, f := range all {
		if f.Check == check {
			found = append(found, f)
		}
	}
	return found
}

// Faults returns the findings that are not OK, the failures first.
func Faults(all []Finding) (found []Finding) {
	for _, state := range []State{Fail, Warn} {
		for _, f := range all {
			if f.State == state {
				found = append(found, f)
			}
		}
	}
	return found
}

// Worst returns the worst state of all findings; OK without findings.
func Worst(findings []Finding) State {
	result := OK
	for _, f := range findings {
		if f.State == Fail || f.State == Warn && result == OK {
			result = f.State
		}
	}
	return result
}
