package webhooks

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/attestd/attestd/appliance/files"
)

// Folder stores webhooks as files of mode 0600 in a folder of one appliance. It implements Store.
type Folder struct {
	path     string
	changing sync.Mutex
}

// NewFolder returns the Store in a folder, which need not exist.
func NewFolder(path string) *Folder { return &Folder{path: path} }

const (
	definitionFile = ".json"
	stateFile      = ".state"
)

func (f *Folder) file(name, suffix string) string { return filepath.Join(f.path, name+suffix) }

// HoldWebhooks implements Store: no other appliance uses the folder.
func (f *Folder) HoldWebhooks(context.Context) (bool, error) { return true, nil }

// ReleaseWebhooks implements Store.
func (f *Folder) ReleaseWebhooks(context.Context) error { return nil }

// Webhooks implements Store.
func (f *Folder) Webhooks(_ context.Context, yield func(name string, definition, state []byte) error) error {
	found, err := os.ReadDir(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, file := range found { // sorted
		name, is := strings.CutSuffix(file.Name(), definitionFile)
		if !is || !webhookName.MatchString(name) {
			continue
		}
		definition, err := os.ReadFile(f.file(name, definitionFile))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since
		}
		if err != nil {
			return err
		}
		state, err := os.ReadFile(f.file(name, stateFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := yield(name, definition, state); err != nil {
			return err
		}
	}
	return nil
}

func (f *Folder) exists(name string) bool { return files.Exists(f.file(name, definitionFile)) }

// CreateWebhook implements Store.
func (f *Folder) CreateWebhook(_ context.Context, name string, definition, state []byte) error {
	f.changing.Lock()
	defer f.changing.Unlock()
	if f.exists(name) {
		return Exists(name)
	}
	err := os.MkdirAll(f.path, 0o700)
	if err == nil {
		err = files.Write(f.file(name, stateFile), state, 0o600)
	}
	if err == nil {
		err = files.Write(f.file(name, definitionFile), definition, 0o600)
	}
	return err
}

// ChangeWebhook implements Store.
func (f *Folder) ChangeWebhook(_ context.Context, name string, definition []byte) error {
	return f.replace(name, definitionFile, definition)
}

// SaveWebhookState implements Store.
func (f *Folder) SaveWebhookState(_ context.Context, name string, state []byte) error {
	return f.replace(name, stateFile, state)
}

func (f *Folder) replace(name, suffix string, content []byte) error {
	f.changing.Lock()
	defer f.changing.Unlock()
	if !f.exists(name) {
		return NotFound(name)
	}
	return files.Write(f.file(name, suffix), content, 0o600)
}

// DeleteWebhook implements Store.
func (f *Folder) DeleteWebhook(_ context.Context, name string) error {
	f.changing.Lock()
	defer f.changing.Unlock()
	if !f.exists(name) {
		return NotFound(name)
	}
	var failures []error
	for _, suffix := range []string{definitionFile, stateFile} { // without a definition, there is no webhook
		if err := os.Remove(f.file(name, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, err)
		}
	}
	return errors.Join(slices.Concat(failures, []error{files.SyncFolder(f.path)})...)
}
