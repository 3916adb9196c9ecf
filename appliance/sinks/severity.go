package sinks

import (
	"github.com/attestd/attestd/appliance/journal"
)

// severity is a syslog severity (RFC 5424, section 6.2.1).
type severity int

const (
	critical      severity = 2
	failure       severity = 3
	warning       severity = 4
	notice        severity = 5
	informational severity = 6
)

// String returns the keyword that syslog daemons use.
func (s severity) String() string {
	return map[severity]string{critical: "crit", failure: "err", warning: "warning", notice: "notice",
		informational: "info"}[s]
}

// cef returns the severity on ArcSight's scale from 0 to 10.
func (s severity) cef() int {
	return map[severity]int{critical: 10, failure: 8, warning: 6, notice: 4, informational: 2}[s]
}

// severities lists the kinds of events that need an operator's attention. Other kinds are notices, because an operator
// caused them.
var severities = map[journal.EventKind]severity{
	journal.EventLogContinued: critical,
	"unknown_redemption":      critical,
	"chain_disagreement":      critical,
	"unproven_redemption":     critical,
	"witness_contradiction":   critical,
	"halted":                  critical,
	"hsm_lost":                failure,
	"quorum_invalid_answer":   failure,
	"attestor_mismatch":       warning,
	"paused":                  warning,
	"refused":                 warning,
	"redeemed":                informational,
	"second_beneficiary":      warning,
}

func severityOf(e journal.Entry) severity {
	if e.Event == nil {
		return informational
	}
	if s, listed := severities[e.Event.Kind]; listed {
		return s
	}
	return notice
}
