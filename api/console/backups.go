package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
)

// downloadBackup sends a new backup, which it has verified as the command does. The backup contains no log key, because
// only the command can encrypt one.
func downloadBackup(w http.ResponseWriter, v *visit) error {
	begun := false
	return v.download(w, func(ctx context.Context) error {
		file, err := verifiedBackup(ctx, archive.Name(v.console.now()), v.Admin.Backup)
		if err != nil {
			return err
		}
		defer file.Close()
		size, err := file.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		begun = true
		w.Header().Set("Content-Type", "application/zstd")
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", filepath.Base(file.Name())))
		_, err = io.Copy(w, file)
		return err
	}, func() bool { return begun })
}

// verifiedBackup makes a backup in a temporary folder, verifies it, and removes the folder. The file remains readable
// until it is closed. The folder is in TMPDIR, or in /var/tmp: /tmp may be too small for a journal.
func verifiedBackup(ctx context.Context, name string, take func(context.Context, io.Writer) error) (*os.File, error) {
	dir, err := os.MkdirTemp(cmp.Or(os.Getenv("TMPDIR"), "/var/tmp"), "attestd-backup-*")
	if err != nil {
		return nil, noBackup(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what remains is in a folder for temporary files
	path := filepath.Join(dir, name)
	_, _, err = archive.Make(ctx, path, func(w io.Writer) error { return take(ctx, w) }, archive.Sealing{},
		archive.AuditOptions{SkipRecords: true})
	if err != nil {
		return nil, noBackup(err)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, noBackup(err)
	}
	return file, nil
}

// noBackup explains on a page why there is no backup. It leaves the admin socket's own errors as they are.
func noBackup(err error) error {
	_, known := errors.AsType[*client.Problem](err)
	if known || errors.Is(err, errRole) || errors.Is(err, errStale) || errors.Is(err, context.Canceled) {
		return err
	}
	remedy := "The appliance's log has more. To make a backup without the console, run: attestd backup FILE"
	if errors.Is(err, syscall.ENOSPC) {
		remedy = "Free space in /var/tmp, which needs twice the size of the journal, or run: attestd backup FILE"
	}
	return &client.Problem{Problem: wire.Problem{Status: http.StatusInternalServerError, Code: appliance.CodeInternal,
		Detail: fmt.Sprintf("No backup was made: %s. %s", err, remedy)}}
}
