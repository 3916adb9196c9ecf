package audit

// TableAfter is the number of records after which an audit makes a table for their signer.
const TableAfter = tableAfter

// Leaf checks the next leaf.
func (a *Audit) Leaf(leaf []byte) { a.Add(a.Check([][]byte{leaf})[0]) }

// Tables returns for how many signers the audit has a table.
func (a *Audit) Tables() int { return len(a.tables.all()) }
