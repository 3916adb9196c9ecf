// Package witness has checkpoints countersigned by others, the witnesses, who see to it that a log shows everybody one history and never
// goes back (C2SP tlog-witness v1.0, tlog-cosignature v1.0). A Policy (C2SP tlog-policy) says whose cosignatures count, and checks them
// offline; a Gatherer asks for them in the background, which attesting never waits for.
package witness
