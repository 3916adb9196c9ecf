// Package witness collects cosignatures of checkpoints from witnesses (C2SP tlog-witness v1.0, tlog-cosignature v1.0).
// A witness cosigns a checkpoint only if it extends the last one, so that a log can show one history only. A Policy
// (C2SP tlog-policy) defines which cosignatures count and verifies them offline. A Gatherer requests them in the
// background; attesting never waits for it.
package witness
