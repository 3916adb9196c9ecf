package console

import (
	"context"
	"encoding/csv"
	"fmt"
	"net/http"
	"strings"

	"github.com/attestd/attestd/appliance/journal"
)

// mostCSV bounds the rows of a downloaded file.
const mostCSV = 100_000

// csvFile writes a list as comma-separated values (RFC 4180).
type csvFile struct{ *csv.Writer }

// newCSV starts the answer with a file of that name and the header of its columns.
func newCSV(w http.ResponseWriter, v *visit, name string, columns ...string) csvFile {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q",
		name+"-"+v.console.now().UTC().Format("2006-01-02T150405Z")+".csv"))
	f := csvFile{csv.NewWriter(w)}
	_ = f.Write(columns) // end returns the error
	return f
}

// add writes a row. Spreadsheets run a cell that begins with one of =+-@ as a formula, so such a cell gets a quote.
func (f csvFile) add(cells ...string) {
	for i, cell := range cells {
		if strings.HasPrefix(cell, "\t") || strings.HasPrefix(cell, "\r") || cell != "" && strings.Contains("=+-@", cell[:1]) {
			cells[i] = "'" + cell
		}
	}
	_ = f.Write(cells) // end returns the error
}

// end writes what is left. An error before it cuts the connection, so that no incomplete file looks complete.
func (f csvFile) end(err error) error {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	f.Flush()
	return nil // an error means that the client has disconnected
}

// allPages calls each for all entries that find returns, page by page, up to mostCSV.
func allPages(ctx context.Context, before int64, find func(ctx context.Context, before int64) (journal.Found, error),
	each func(journal.Entry)) error {
	for rows := 0; rows < mostCSV; {
		found, err := find(ctx, before)
		if err != nil {
			return err
		}
		for _, e := range found.Entries {
			each(e)
		}
		rows += len(found.Entries)
		if before = found.Before; before == 0 {
			return nil
		}
	}
	return nil
}

// downloadAttestations answers with the attestations that match a search. Viewers get no addresses and hashes.
func downloadAttestations(w http.ResponseWriter, v *visit) error {
	keys, err := keyNames(v)
	if err != nil {
		return err
	}
	s := readSearch(v.URL.Query(), keys, v.IsAuditor())
	if s.Wrong != "" {
		return badRequest(s.Wrong)
	}
	s.query.Limit = journal.MaxListed
	file := newCSV(w, v, "attestations", "index", "time", "id", "key_id", "key_name", "unspendable_address",
		"beneficiary", "hash", "signer")
	find := func(ctx context.Context, before int64) (journal.Found, error) {
		s.query.Before = before
		return s.find(ctx, v)
	}
	return file.end(allPages(v.Context(), s.query.Before, find, func(e journal.Entry) {
		addresses := []string{"", "", ""}
		if v.IsAuditor() {
			addresses = []string{e.Record.UnspendableAddress.String(), e.Record.Beneficiary.String(),
				e.Record.Hash.String()}
		}
		file.add(fmt.Sprint(e.Index), e.Record.Time.UTC().Format("2006-01-02T15:04:05.000Z"), e.Record.ID.String(),
			e.Record.KeyID, keys[e.Record.KeyID], addresses[0], addresses[1], addresses[2],
			e.Record.SignerAddress.String())
	}))
}
