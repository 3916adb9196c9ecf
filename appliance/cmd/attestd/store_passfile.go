package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/store/postgres"
)

// initWithPassfile makes the tables and the role, and writes a new password for the role to a passfile. If it is
// interrupted before the file exists, a second run makes another password.
func (a *app) initWithPassfile(ctx context.Context, url, role, passfile string) error {
	passfile, err := filepath.Abs(passfile)
	if err != nil {
		return fmt.Errorf("--passfile: %w", err)
	}
	if files.Exists(passfile) {
		return fmt.Errorf("--passfile: %s exists, and is not replaced; to keep its password, leave --passfile out",
			passfile)
	}
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	daemons, err := service.UserOf(c.DataDir)
	if err != nil {
		return err
	}
	of, err := config.DatabaseURL(url).As(role)
	if err != nil {
		return err
	}
	secret := make([]byte, 24)
	rand.Read(secret)
	password := base64.RawURLEncoding.EncodeToString(secret)
	if err := postgres.Init(ctx, url, role, password); err != nil {
		return fmt.Errorf("store init: %w", err)
	}
	if err := writePassfile(passfile, role, password, daemons); err != nil {
		return fmt.Errorf("--passfile: %w", err)
	}
	a.say("%s has the new password of the role %s. Only the user %s can read it.", passfile, role, daemons.Name)
	return a.printInit(of.WithPassfile(passfile), role, false)
}

// writePassfile writes a passfile (PostgreSQL 15, section 34.16) that only its owner can read.
func writePassfile(path, role, password string, owner service.User) (err error) {
	escaped := strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(role)
	if err := files.Write(path, []byte("*:*:*:"+escaped+":"+password+"\n"), 0o600); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	folder, err := os.OpenRoot(filepath.Dir(path)) // prevents a symbolic link from leading out of the folder
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	return folder.Lchown(filepath.Base(path), int(owner.UID), int(owner.GID))
}
