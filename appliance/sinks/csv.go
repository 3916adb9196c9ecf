package sinks

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// csvColumns are the columns of an export.
var csvColumns = []string{
	"type", "severity", "log", "index", "id", "time", "leafHash",
	"keyId", "hash", "signerAddress", "scheme", "unspendableAddress", "beneficiary", "event", "by", "details",
}

// CSVHeader returns the first line of a CSV export, without its line end.
func CSVHeader() string { return strings.Join(csvColumns, ",") }

// CSVEnd is the line end (RFC 4180, section 2).
const CSVEnd = "\r\n"

func (t fields) csv() ([]byte, error) {
	detail, err := t.detail()
	if err != nil {
		return nil, fmt.Errorf("entry %d: %w", t.Index, err)
	}
	cells := []string{
		t.Type, t.Severity, t.Log, strconv.FormatInt(t.Index, 10), t.ID.String(), t.Time.Format(time.RFC3339Nano),
		t.LeafHash,
		t.KeyID, t.Hash, t.SignerAddress, t.Scheme, t.UnspendableAddress, t.Beneficiary, string(t.Event), t.By, detail,
	}
	for i, cell := range cells {
		cells[i] = harmless(cell)
	}
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	w.UseCRLF = true
	err = w.Write(cells)
	w.Flush()
	return bytes.TrimSuffix(b.Bytes(), []byte(CSVEnd)), err
}

// harmless puts an apostrophe before a cell that a spreadsheet would read as a formula.
func harmless(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@\t\r\n", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}
