package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// attestationsPage lists new attestations live, searches attestations, and shows each one with its proof.
func attestationsPage() page {
	return page{name: "attestations", path: "/attestations", title: "Attestations", least: Viewer, routes: []route{
		{"GET /attestations", Viewer, showAttestations},
		{"GET /attestations.csv", Viewer, downloadAttestations},
		{"GET /attestations/tail", Viewer, followAttestations},
		{"GET /attestations/{id}", Viewer, showAttestation},
		{"GET /attestations/{id}/proof", Viewer, downloadProof},
	}}
}

const (
	listedAttestations = 50 // per page
	// searchedAttestations bounds the records that are read for one page if no index covers the search.
	searchedAttestations = 50_000
	// tailOthers is how often, in seconds, the journal is polled even if this appliance attests nothing. Other
	// appliances may share the journal.
	tailOthers = 10
)

// attestationsView is a page of attestations.
type attestationsView struct {
	Search search
	Secret bool // the user may not see addresses
	Rows   []attestationRow
	Newest int64  // highest listed index; -1 for none
	Live   bool   // new attestations are added live
	Next   string // URL of the attestations that follow; empty if none remain
	Read   bool   // Next continues a search that has not read all records
	Record *recordView
}

// attestationRow is an attestation in a list.
type attestationRow struct {
	journal.Entry
	Key      string // name of the API key; empty if unknown
	IsSecret bool   // the user may not see the addresses
}

func showAttestations(w http.ResponseWriter, v *visit) error {
	keys, err := keyNames(v)
	if err != nil {
		return err
	}
	data := attestationsView{Search: readSearch(v.URL.Query(), keys, v.IsAuditor()), Secret: !v.IsAuditor()}
	if data.Search.id != uuid.Nil {
		return v.redirect(w, "/attestations/"+data.Search.id.String())
	}
	if data.Search.Wrong != "" {
		return v.show(w, data)
	}
	found, err := data.Search.find(v.Context(), v)
	if err != nil {
		return err
	}
	data.Live, data.Newest = data.Search.isEmpty(), -1
	if len(found.Entries) > 0 {
		data.Newest = found.Entries[0].Index
	}
	data.Rows = rowsOf(found.Entries, keys, !v.IsAuditor())
	if found.Before > 0 {
		data.Next, data.Read = data.Search.at(found.Before), len(found.Entries) < listedAttestations
	}
	return v.show(w, data)
}

// keyNames returns the names of all API keys by id.
func keyNames(v *visit) (map[string]string, error) {
	keys, err := v.Admin.ListKeys(v.Context())
	names := make(map[string]string, len(keys))
	for _, k := range keys {
		names[k.ID] = k.Name
	}
	return names, err
}

func rowsOf(entries []journal.Entry, keys map[string]string, secret bool) []attestationRow {
	rows := make([]attestationRow, len(entries))
	for i, e := range entries {
		rows[i] = attestationRow{Entry: e, Key: keys[e.Record.KeyID], IsSecret: secret}
	}
	return rows
}

// at returns the URL that continues the search at an index.
func (s search) at(before int64) string {
	q := s.values()
	if before > 0 {
		q.Set(s.cursor(), strconv.FormatInt(before, 10))
	}
	return "/attestations?" + q.Encode()
}

// CSV returns the URL of the search's result as a file.
func (s search) CSV() string { return "/attestations.csv?" + s.values().Encode() }

func (s search) values() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"q": s.Q, "from": s.From, "until": s.Until} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if s.Oldest {
		q.Set("sort", sortOldest)
	}
	return q
}

// tailed is one update of a live page.
type tailed struct {
	HTML string `json:"html"` // table rows, newest first
	Left int64  `json:"left"` // number of new entries that are not in HTML
}

// followAttestations streams new attestations as table rows, rendered by the page's own template.
func followAttestations(w http.ResponseWriter, v *visit) error {
	keys, err := keyNames(v)
	if err != nil {
		return err
	}
	return v.followEntries(w, journal.Query{AttestationsOnly: true, Limit: listedAttestations},
		func(entries []journal.Entry) any { return rowsOf(entries, keys, !v.IsAuditor()) })
}

// followEntries streams the new entries of a query, which must be limited, as the page's template "rows". rowsOf returns
// the template's data. The query parameter after is the index of the newest entry that the page shows.
func (v *visit) followEntries(w http.ResponseWriter, q journal.Query,
	rowsOf func([]journal.Entry) any) error {
	after, err := strconv.ParseInt(v.FormValue("after"), 10, 64)
	if err != nil || after < -1 {
		return badRequest("after must be an index")
	}
	return v.stream(w, func(ctx context.Context, send func(event string, data any) error) error {
		look := func() error {
			entries, err := v.Admin.Records(ctx, q)
			if err != nil {
				return err
			}
			told := tailed{}
			fresh, full := since(entries, after), len(entries) == q.Limit
			if len(fresh) == 0 {
				return nil
			}
			if full && len(fresh) == len(entries) {
				told.Left = fresh[len(fresh)-1].Index - after - 1 // including other entries among them
			}
			if told.HTML, err = v.console.looks.part(v.page.name, "rows", rowsOf(fresh)); err != nil {
				return err
			}
			after = fresh[0].Index
			return send("rows", told)
		}
		if err := look(); err != nil {
			return err
		}
		seconds := 0
		return v.Admin.Activity(ctx, 0, true, func(s wire.Sample) error {
			if seconds++; (s.Attestations == 0 || q.EventsOnly) && seconds%tailOthers != 0 {
				return nil
			}
			return look()
		})
	})
}

// since returns the entries with an index above after. The entries are newest first.
func since(entries []journal.Entry, after int64) []journal.Entry {
	if i := slices.IndexFunc(entries, func(e journal.Entry) bool { return e.Index <= after }); i >= 0 {
		return entries[:i]
	}
	return entries
}

// badRequest is an error that explains to the client why its request is invalid.
func badRequest(text string) error {
	return &client.Problem{Problem: wire.Problem{Status: http.StatusBadRequest, Code: appliance.CodeInvalidField,
		Detail: text}}
}

// recordView is one entry of the journal with its proof.
type recordView struct {
	attestationRow
	Steps       []appliance.Step // derivation of the digest; empty if the addresses are secret
	DigestIs    bool             // the last step's value equals the hash
	Recovered   string           // signer recovered from the signature; empty if recovery failed
	SignerIs    bool             // Recovered is the record's signer
	Proof       journal.InclusionProof
	Leaf        string // hex; empty if secret
	LeafHash    string // hex
	VerifierKey string
}

func showAttestation(w http.ResponseWriter, v *visit) error {
	id, err := uuid.Parse(v.PathValue("id"))
	if err != nil {
		return badRequest(fmt.Sprintf("%q is not an attestation id: it must be a UUID.", v.PathValue("id")))
	}
	keys, err := keyNames(v)
	if err != nil {
		return err
	}
	e, proof, err := v.Admin.Prove(v.Context(), id)
	if err != nil {
		return err
	}
	verifierKey, err := v.Admin.LogKey(v.Context())
	if err != nil {
		return err
	}
	if e.Event != nil {
		e.Record.KeyID = e.Event.Details["keyId"] // whose name the page shows
	}
	record := newRecordView(attestationRow{Entry: e, Key: keys[e.Record.KeyID], IsSecret: !v.IsAuditor()}, proof)
	record.VerifierKey = verifierKey
	return v.show(w, attestationsView{Record: &record})
}

func newRecordView(row attestationRow, proof journal.InclusionProof) recordView {
	r := recordView{attestationRow: row, Proof: proof, LeafHash: fmt.Sprintf("%x", proof.LeafHash),
		Leaf: fmt.Sprintf("%x", row.Leaf)}
	if row.Event != nil {
		return r
	}
	if signer, err := row.Record.Signature.Recover(row.Record.Hash); err == nil {
		r.Recovered, r.SignerIs = signer.String(), signer == row.Record.SignerAddress
	}
	if row.IsSecret {
		return r
	}
	if steps, err := row.Record.Derivation(); err == nil {
		r.Steps, r.DigestIs = steps, steps[len(steps)-1].Value == row.Record.Hash.String()
	}
	return r
}

// downloadProof answers with a C2SP tlog-proof. With ?record the proof contains the leaf as extra data, and can be
// verified on its own.
func downloadProof(w http.ResponseWriter, v *visit) error {
	id, err := uuid.Parse(v.PathValue("id"))
	if err != nil {
		return badRequest(fmt.Sprintf("%q is not an attestation id: it must be a UUID.", v.PathValue("id")))
	}
	e, proof, err := v.Admin.Prove(v.Context(), id)
	if err != nil {
		return err
	}
	text := proof.String()
	if v.URL.Query().Has("record") {
		if !v.IsAuditor() {
			return errRole
		}
		text = proof.WithLeaf(e.Leaf)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", id.String()+".tlog-proof"))
	_, _ = w.Write([]byte(text)) // fails only if the client has disconnected
	return nil
}
