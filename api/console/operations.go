package console

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// operationsPage shows the state of each part of the appliance. Operators pause and resume attesting, download backups
// and bind API keys here.
func operationsPage() page {
	return page{name: "operations", path: "/operations", title: "Operations", least: Viewer, routes: []route{
		{"GET /operations", Viewer, showOperations},
		{"POST /operations/pause", Operator, pauseAttesting},
		{"POST /operations/resume", Operator, resumeAttesting},
		{"POST /operations/backup", Operator, downloadBackup},
		{"POST /operations/bind", Operator, bindKey},
	}}
}

// operationsView is the page's data.
type operationsView struct {
	Signing wire.Signing
	Parts   []finding // all checks of the status
	Keys    []appliance.APIKey
	Changes bool // the user may make changes
}

func showOperations(w http.ResponseWriter, v *visit) error {
	status, err := v.Admin.Status(v.Context())
	if err != nil {
		return err
	}
	data := operationsView{Signing: status.Signing, Changes: v.IsOperator()}
	for _, f := range status.Checks {
		data.Parts = append(data.Parts, finding{f})
	}
	keys, err := v.Admin.ListKeys(v.Context())
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.Revoked.IsZero() {
			data.Keys = append(data.Keys, k)
		}
	}
	return v.show(w, data)
}

func pauseAttesting(w http.ResponseWriter, v *visit) error {
	reason := strings.TrimSpace(v.PostFormValue("reason"))
	if reason == "" {
		return badRequest("Give the reason of the pause. The journal records it.")
	}
	if _, err := v.Admin.Pause(v.Context(), reason); err != nil {
		return err
	}
	return v.redirect(w, "/operations")
}

func resumeAttesting(w http.ResponseWriter, v *visit) error {
	if _, err := v.Admin.Resume(v.Context()); err != nil {
		return err
	}
	return v.redirect(w, "/operations")
}

// downloadBackup sends a new backup. The backup contains no log key, because only the command can encrypt one.
func downloadBackup(w http.ResponseWriter, v *visit) error {
	file := &backupFile{w: w, name: "attestd-" + v.console.now().UTC().Format("20060102T150405Z") + ".tar.zst"}
	compressed, err := zstd.NewWriter(file, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true))
	if err != nil {
		return err
	}
	return v.download(w, func(ctx context.Context) error {
		if err := v.Admin.Backup(ctx, compressed); err != nil {
			return err // not closed: the file must not look complete
		}
		return compressed.Close()
	}, func() bool { return file.begun })
}

// backupFile sends the download's headers with the first byte, so that an earlier error is still shown as a page.
type backupFile struct {
	w     http.ResponseWriter
	name  string
	begun bool
}

func (f *backupFile) Write(p []byte) (int, error) {
	if !f.begun {
		f.begun = true
		f.w.Header().Set("Content-Type", "application/zstd")
		f.w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", f.name))
	}
	return f.w.Write(p)
}

func bindKey(w http.ResponseWriter, v *visit) error {
	id := v.PostFormValue("id")
	if id == "" {
		return badRequest("Choose an API key.")
	}
	if _, err := v.Admin.BindKey(v.Context(), id, strings.TrimSpace(v.PostFormValue("attestor"))); err != nil {
		return err
	}
	return v.redirect(w, "/operations")
}
